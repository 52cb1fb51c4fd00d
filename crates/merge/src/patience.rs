//! How long a guest may keep the engine waiting in one period.
//!
//! Each answer is waited for at most [`ANSWER_PATIENCE`], but it is the guest that decides how many
//! answers a question takes: it may report one page at a time. And a phase ends only when the last of
//! its tasks does. So what answers take is counted, less what they may take for as much work, and a guest
//! that has taken too much more is left alone for the rest of the period, like one that does not answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bindery_guest::{
    ANSWER_PATIENCE, Fetched, Gauges, GuestError, Lane, LaneLease, Resume, Segment, Unmerged,
};
use bindery_units::PageRange;
use bindery_wire::control::StoreId;
use bindery_wire::lane::{
    BlockOutcome, BlockSample, Lost, MergedSpan, PageDigest, PageOutcome, PageSpan, Reach, Run,
};

/// How much later than they may be all answers of a period may come together: so much, and one part in so
/// many of the time that the period has lasted, for guests that are starved of CPU in a long one.
const LATENESS_MAX: Duration = ANSWER_PATIENCE.saturating_mul(3);
const LATENESS_SHARE: u32 = 10;

/// Time that an answer may take whatever it is about, if it is the last one to a question. The others get no such
/// time: a guest could make any number of them.
const ANSWER: Duration = Duration::from_micros(200);

/// Time that an answer may take for each page covered, mended, read or remapped: several times what
/// that takes where the guest has a CPU.
const COVERED: Duration = Duration::from_nanos(100);
const MENDED: Duration = Duration::from_micros(1);
const READ: Duration = Duration::from_micros(10);
const REMAPPED: Duration = Duration::from_micros(50);

/// Time that an answer may take for each block sampled, or collapsed.
const SAMPLED: Duration = Duration::from_micros(20);
const COLLAPSED: Duration = Duration::from_millis(20);

/// Lateness of a guest's answers of this period, all together.
#[derive(Debug)]
pub(crate) struct Lateness {
    /// Start of the period.
    start: Instant,
    ns: AtomicU64,
}

impl Lateness {
    /// None, in a period that begins now.
    pub(crate) fn none() -> Self {
        Self { start: Instant::now(), ns: AtomicU64::new(0) }
    }

    fn add(&self, late: Duration) {
        // Relaxed, here and below: a sum that orders nothing.
        self.ns.fetch_add(late.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Checks whether the guest may be asked for more.
    ///
    /// # Errors
    /// [`GuestError::Stalled`].
    pub(crate) fn check(&self, request: &'static str) -> Result<(), GuestError> {
        let patience = LATENESS_MAX + self.start.elapsed() / LATENESS_SHARE;
        if Duration::from_nanos(self.ns.load(Ordering::Relaxed)) < patience {
            return Ok(());
        }
        Err(GuestError::Stalled { request, patience })
    }
}

/// A lane of a guest, whose answers are timed.
pub(crate) struct TimedLane<'a> {
    lane: LaneLease<'a>,
    lateness: &'a Lateness,
}

impl<'a> TimedLane<'a> {
    pub(crate) fn new(lane: LaneLease<'a>, lateness: &'a Lateness) -> Self {
        Self { lane, lateness }
    }

    /// Asks, unless the guest has taken too long already.
    fn time<T>(
        &mut self,
        request: &'static str,
        ask: impl FnOnce(&mut dyn Lane) -> Result<T, GuestError>,
        may_take: impl FnOnce(&T) -> Duration,
    ) -> Result<T, GuestError> {
        self.lateness.check(request)?;
        let start = Instant::now();
        let answer = ask(&mut *self.lane)?;
        self.lateness.add(start.elapsed().saturating_sub(may_take(&answer)));
        Ok(answer)
    }

    /// Asks about a range, of which an answer may cover a part.
    fn time_through(
        &mut self,
        request: &'static str,
        range: PageRange,
        ask: impl FnOnce(&mut dyn Lane) -> Result<Resume, GuestError>,
    ) -> Result<Resume, GuestError> {
        self.time(request, ask, |resume| for_range(range, *resume))
    }
}

/// Returns what an answer about `range` may take.
fn for_range(range: PageRange, resume: Resume) -> Duration {
    match resume {
        Some(at) => COVERED * (at.0 - range.first.0),
        None => ANSWER + COVERED * range.count,
    }
}

fn for_pages(pages: usize, each: Duration) -> Duration {
    ANSWER + each * pages as u32
}

impl Lane for TimedLane<'_> {
    fn scan(
        &mut self,
        reach: Reach,
        range: PageRange,
        written: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError> {
        self.time_through("a scan", range, |lane| lane.scan(reach, range, written))
    }

    fn survey(
        &mut self,
        reach: Reach,
        range: PageRange,
        present: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError> {
        self.time_through("a survey", range, |lane| lane.survey(reach, range, present))
    }

    fn lost(&mut self, lost: &mut Vec<Lost>) -> Result<bool, GuestError> {
        let ask = |lane: &mut dyn Lane| lane.lost(lost).map(|more| (more, lost.len() as u32));
        let may_take =
            |(more, lost): &(bool, u32)| READ * *lost + if *more { Duration::ZERO } else { ANSWER };
        self.time("which pages it lost", ask, may_take).map(|(more, _)| more)
    }

    fn digest(&mut self, pages: &[u32], digests: &mut Vec<PageDigest>) -> Result<(), GuestError> {
        let may_take = for_pages(pages.len(), READ);
        self.time("digests", |lane| lane.digest(pages, digests), |()| may_take)
    }

    fn fetch(&mut self, pages: &[u32], fetched: &mut Fetched) -> Result<(), GuestError> {
        let may_take = for_pages(pages.len(), READ);
        self.time("pages", |lane| lane.fetch(pages, fetched), |()| may_take)
    }

    fn merge(
        &mut self,
        store: StoreId,
        segments: &[Segment<'_>],
        runs: &[Run],
        outcomes: &mut Vec<PageOutcome>,
    ) -> Result<(), GuestError> {
        let pages = runs.iter().map(|run| run.count as usize).sum();
        let may_take = for_pages(pages, REMAPPED);
        let ask = |lane: &mut dyn Lane| lane.merge(store, segments, runs, outcomes);
        self.time("to merge", ask, |()| may_take)
    }

    fn unmerge(&mut self, range: PageRange) -> Result<Unmerged, GuestError> {
        let may_take = |done: &Unmerged| for_range(range, done.resume) + REMAPPED * done.pages;
        self.time("to unmerge", |lane| lane.unmerge(range), may_take)
    }

    fn report(
        &mut self,
        range: PageRange,
        merged: &mut Vec<MergedSpan>,
    ) -> Result<Resume, GuestError> {
        self.time_through("what is merged", range, |lane| lane.report(range, merged))
    }

    fn mend(&mut self, range: PageRange) -> Result<u32, GuestError> {
        let may_take = for_pages(range.count as usize, MENDED);
        self.time("to mend", |lane| lane.mend(range), |_| may_take)
    }

    fn sample(&mut self, blocks: &[u32], samples: &mut Vec<BlockSample>) -> Result<(), GuestError> {
        let may_take = for_pages(blocks.len(), SAMPLED);
        self.time("samples", |lane| lane.sample(blocks, samples), |()| may_take)
    }

    fn split(
        &mut self,
        blocks: &[u32],
        outcomes: &mut Vec<BlockOutcome>,
    ) -> Result<(), GuestError> {
        let may_take = for_pages(blocks.len(), REMAPPED);
        self.time("to split blocks", |lane| lane.split(blocks, outcomes), |()| may_take)
    }

    fn collapse(
        &mut self,
        blocks: &[u32],
        outcomes: &mut Vec<BlockOutcome>,
    ) -> Result<(), GuestError> {
        let may_take = |count: &usize| for_pages(*count, COLLAPSED);
        let ask = |lane: &mut dyn Lane| lane.collapse(blocks, outcomes).map(|()| outcomes.len());
        self.time("to collapse blocks", ask, may_take).map(|_| ())
    }

    fn gauges(&mut self) -> Gauges {
        self.lane.gauges()
    }

    fn rest(&mut self) {
        self.lane.rest();
    }

    fn owes(&self) -> bool {
        self.lane.owes()
    }

    fn settle(&mut self) -> Result<bool, GuestError> {
        self.lane.settle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_units::PageIndex;

    #[test]
    fn answers_that_are_no_end_get_time_for_what_they_cover_only() {
        let range = PageRange::new(PageIndex(100), 1 << 20);
        assert_eq!(for_range(range, Some(PageIndex(101))), COVERED);
        assert_eq!(for_range(range, None), ANSWER + COVERED * (1 << 20));
    }

    #[test]
    fn a_guest_may_be_late_for_some_time_and_longer_in_long_periods() {
        let lateness = Lateness::none();
        lateness.add(LATENESS_MAX / 2);
        lateness.check("a scan").unwrap();
        lateness.add(LATENESS_MAX);
        assert!(matches!(lateness.check("a scan"), Err(GuestError::Stalled { .. })));
        let long = Instant::now().checked_sub(LATENESS_MAX * LATENESS_SHARE);
        let Some(start) = long else { return };
        Lateness { start, ..lateness }.check("a scan").unwrap();
    }
}
