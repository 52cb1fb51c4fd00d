//! Which pages of a guest were written: found once, told to everybody who wants to know.
//!
//! To ask a guest's process what was written protects those pages again, so whoever asks takes the
//! answer from all others. It goes into [`Feed`]s, in which each reader has a set of its own and takes
//! from that when it likes. There are two:
//!
//! - of pages that were written and are the guest's own: those that may be merged
//!   ([`Written::join`]);
//! - of all that are not what they were ([`Written::visit`]), for who wants to know the guest's memory
//!   (an operator who watches, a checkpoint, a migration): also pages that were written and then merged
//!   before anybody asked, and those that were discarded.
//!
//! # What holds
//! Every page that was written or discarded before [`Written::collect`] was called, in the range that it
//! was called for, is in each visitor's set when it returns, or was taken out of it before. In blocks that
//! are whole, writes are tracked while there is a visitor: in the first answer after one came, all of their
//! pages count as written. Two exceptions: a page that is in transit while somebody merges is told by a later call, and one that is
//! swapped out by the first after it was touched. Whoever needs all pages, as the last round of a
//! migration does, calls when nobody merges.
//! A page that was written just while it was merged is in each answer from then on, until its guest
//! discards it: writes to it are not tracked.
//!
//! An answer may be lost on the way, and the guest may do what it was asked long after nobody waits
//! for it. From then on the guest is in doubt: what was written is known again once all that is there
//! was asked for ([`Written::survey`]), after no lane owes an answer any more. For a visitor every page
//! may have changed then.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bindery_dirty::{Feed, JoinError, Joining, MOST_READERS, Reader};
use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::{PageSpan, Presence, Reach};

use crate::{GuestError, Lane, PAGES_MAX};

/// Pages of one request: 16 GiB, 10 ms if nothing was written and 100 if all was.
const REQUEST_PAGES: u32 = 1 << 22;

/// Readers that may come and go; the others' seats are kept for moving the guest.
const VISITORS_MAX: usize = MOST_READERS - 4;

/// The written pages of one guest, for each of their readers.
#[derive(Debug)]
pub struct Written {
    /// Pages that were written and are the guest's own.
    own: Arc<Feed>,
    /// Pages that are not what they were.
    changed: Arc<Feed>,
    /// Held from a question until its answer is told: otherwise another's question in between would
    /// find nothing, and its asker would not know what was found.
    asking: RwLock<()>,
    /// Answers that were lost so far, and how many of them a survey has made up for.
    lost: AtomicU64,
    made_up_for: AtomicU64,
    /// Number of those who want no page moved.
    hushes: AtomicU32,
}

/// Answers that were lost up to some time.
#[derive(Clone, Copy, Debug)]
pub struct Doubt {
    lost: u64,
}

impl Default for Written {
    fn default() -> Self {
        // Address space for every page that a guest may have; memory where pages are written.
        let feed = || Feed::new(u64::from(PAGES_MAX)).expect("a guest's pages fit in a tree");
        Self {
            own: Arc::new(feed()),
            changed: Arc::new(feed()),
            asking: RwLock::default(),
            lost: AtomicU64::new(0),
            made_up_for: AtomicU64::new(0),
            hushes: AtomicU32::new(0),
        }
    }
}

/// Wish that no page of a guest is moved, until it is dropped: see [`Written::hush`].
#[derive(Debug)]
pub struct Hush<'a> {
    written: &'a Written,
}

impl Drop for Hush<'_> {
    fn drop(&mut self) {
        self.written.hushes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Right to ask a guest without anybody else asking, merging or unmerging meanwhile: see [`Written::alone`].
#[derive(Debug)]
pub struct Alone<'a> {
    written: &'a Written,
    _asking: RwLockWriteGuard<'a, ()>,
}

impl Alone<'_> {
    /// As [`Written::collect`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn collect(&self, lane: &mut dyn Lane, range: PageRange) -> Result<(), GuestError> {
        let reach = self.written.reach();
        self.written.ask(range, || (), |request, spans| lane.scan(reach, request, spans))
    }

    /// As [`Written::survey`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn survey(
        &self,
        lane: &mut dyn Lane,
        regions: &[PageRange],
        doubt: Doubt,
    ) -> Result<(), GuestError> {
        self.written.survey_by(lane, regions, doubt, || ())
    }
}

impl Written {
    /// A set of the pages that were written and are the guest's own, empty at first.
    ///
    /// # Errors
    /// If there is no memory for it, or there are too many readers.
    pub fn join(&self) -> Result<Reader, JoinError> {
        self.own.join(Joining::Clean)
    }

    /// A set of all pages that are not what they were, empty at first, for those whom the guest can do
    /// without: the last seats are not for them.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn visit(&self) -> Result<Reader, JoinError> {
        if self.changed.readers() >= VISITORS_MAX {
            return Err(JoinError::Full);
        }
        self.changed.join(Joining::Clean)
    }

    /// A set of the pages of split blocks that were written and are the guest's own, as others ask for them,
    /// empty at first; for those whom the guest can do without.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn listen(&self) -> Result<Reader, JoinError> {
        if self.own.readers() >= VISITORS_MAX {
            return Err(JoinError::Full);
        }
        self.own.join(Joining::Clean)
    }

    /// Whether there is a visitor. One who comes later finds in the pages whatever was done to them
    /// before this said that there is none.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        // Pairs with the fence of `Feed::join`, as that of a mark does.
        fence(Ordering::SeqCst);
        self.changed.readers() > 0
    }

    /// Keeps all from asking until what this returns is dropped: nothing is told meanwhile. Several may have
    /// it at a time. Blocks while somebody asks.
    pub fn silence(&self) -> RwLockReadGuard<'_, ()> {
        self.asking.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks those who merge to begin no more requests until the returned guard is dropped, so that
    /// [`alone`](Self::alone) waits for little. Never blocks.
    pub fn hush(&self) -> Hush<'_> {
        // Relaxed: a wish, which one who is late does not hear.
        self.hushes.fetch_add(1, Ordering::Relaxed);
        Hush { written: self }
    }

    /// Returns true while somebody wants no page of the guest moved.
    #[must_use]
    pub fn is_hushed(&self) -> bool {
        self.hushes.load(Ordering::Relaxed) > 0
    }

    /// Waits until nobody asks, and nobody moves pages in [silence](Self::silence), and keeps it so. If no lane
    /// owes an answer either, no page is in transit. Blocks for the rest of their requests. Keep it for
    /// milliseconds: merging waits.
    pub fn alone(&self) -> Alone<'_> {
        Alone { written: self, _asking: self.question() }
    }

    fn question(&self) -> RwLockWriteGuard<'_, ()> {
        self.asking.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells visitors that pages may not be what they were: their region came or went.
    pub(crate) fn note_region(&self, pages: PageRange) {
        mark(&self.changed, pages);
    }

    /// Tells visitors that a page may not be what it was.
    ///
    /// # Panics
    /// If the page is not within [`PAGES_MAX`], as those of all regions are.
    pub fn note_changed(&self, page: PageIndex) {
        self.changed.mark(page.0).expect("regions lie within the pages that a guest may have");
    }

    /// Whether an answer was lost, and nobody has asked for all that is there since.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        // Relaxed, here and below: counters that are compared; what they are about is told under the
        // lock.
        self.made_up_for.load(Ordering::Relaxed) < self.lost.load(Ordering::Relaxed)
    }

    /// What there is to make up for now.
    #[must_use]
    pub fn doubt(&self) -> Doubt {
        Doubt { lost: self.lost.load(Ordering::Relaxed) }
    }

    /// Asks the guest's process which pages of `range` were written, and tells every reader. Blocks as
    /// [`Lane::scan`] does, once for each 16 GiB and each full answer, and for others who ask.
    ///
    /// # Errors
    /// [`GuestError`]; the guest is [in doubt](Self::is_in_doubt) then.
    ///
    /// # Panics
    /// If the range is not within [`PAGES_MAX`], as all regions are.
    pub fn collect(&self, lane: &mut dyn Lane, range: PageRange) -> Result<(), GuestError> {
        let reach = self.reach();
        self.ask(range, || self.question(), |request, spans| lane.scan(reach, request, spans))
    }

    /// Asks for all that is there in `regions`, which are all that the guest has, and tells every reader
    /// that it was written. That makes up for a `doubt` after which the caller has seen that no lane
    /// owes an answer any more. Blocks as [`collect`](Self::collect).
    ///
    /// # Errors
    /// As [`collect`](Self::collect).
    ///
    /// # Panics
    /// As [`collect`](Self::collect).
    pub fn survey(
        &self,
        lane: &mut dyn Lane,
        regions: &[PageRange],
        doubt: Doubt,
    ) -> Result<(), GuestError> {
        self.survey_by(lane, regions, doubt, || self.question())
    }

    fn survey_by<Question>(
        &self,
        lane: &mut dyn Lane,
        regions: &[PageRange],
        doubt: Doubt,
        question: impl Fn() -> Question,
    ) -> Result<(), GuestError> {
        let reach = self.reach();
        for range in regions {
            self.ask(*range, &question, |request, spans| lane.survey(reach, request, spans))?;
            if self.is_in_doubt() {
                // What is gone was told in the answer that was lost.
                mark(&self.changed, *range);
            }
        }
        self.made_up_for.fetch_max(doubt.lost, Ordering::Relaxed);
        Ok(())
    }

    /// Blocks in which writes matter to anybody: merging has no use for those in whole ones.
    fn reach(&self) -> Reach {
        if self.is_watched() { Reach::All } else { Reach::Split }
    }

    /// Asks about a range, each time under what `question` returns.
    fn ask<Question>(
        &self,
        range: PageRange,
        question: impl Fn() -> Question,
        mut ask: impl FnMut(PageRange, &mut Vec<PageSpan>) -> Result<crate::Resume, GuestError>,
    ) -> Result<(), GuestError> {
        let mut spans: Vec<PageSpan> = Vec::new();
        let mut at = range.first;
        while at < range.end() {
            let rest = range.end().0 - at.0;
            let request = PageRange::new(at, rest.min(REQUEST_PAGES));
            let asking = question();
            let resume = ask(request, &mut spans).inspect_err(|_| {
                self.lost.fetch_add(1, Ordering::Relaxed);
            })?;
            for span in &spans {
                let pages = PageRange::new(PageIndex(span.first), span.count);
                mark(&self.changed, pages);
                if span.presence == Presence::Present {
                    mark(&self.own, pages);
                }
            }
            drop(asking);
            at = resume.unwrap_or(request.end());
        }
        Ok(())
    }
}

fn mark(feed: &Feed, pages: PageRange) {
    let marked = feed.mark_range(pages.first.0, u64::from(pages.count));
    marked.expect("regions lie within the pages that a guest may have");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bindery_wire::control::StoreId;
    use bindery_wire::lane::{
        BlockOutcome, BlockSample, Lost, MergedSpan, PageDigest, PageOutcome, Presence, Run,
    };

    use super::*;
    use crate::{Fetched, Gauges, Resume, Segment, Unmerged};

    const ALL: PageRange = PageRange { first: PageIndex(0), count: 1000 };

    /// A process that knows what was written to it.
    #[derive(Default)]
    struct Process {
        written: BTreeSet<u32>,
        gone: BTreeSet<u32>,
        present: BTreeSet<u32>,
        /// Does what it is asked, and its answer is lost.
        loses: bool,
    }

    impl Process {
        fn write(&mut self, page: u32) {
            self.written.insert(page);
            self.present.insert(page);
        }

        fn answer(
            &mut self,
            pages: &BTreeSet<u32>,
            range: PageRange,
            spans: &mut Vec<PageSpan>,
        ) -> Result<Resume, GuestError> {
            let asked = |page: &u32| range.contains(PageIndex(*page));
            let spans_of = |pages: &BTreeSet<u32>, presence| -> Vec<PageSpan> {
                let pages = pages.iter().copied().filter(asked);
                pages.map(|first| PageSpan { first, count: 1, presence }).collect()
            };
            *spans =
                [spans_of(pages, Presence::Present), spans_of(&self.gone, Presence::Gone)].concat();
            self.written.retain(|page| !asked(page));
            self.gone.retain(|page| !asked(page));
            if self.loses { Err(GuestError::Gone) } else { Ok(None) }
        }
    }

    impl Lane for Process {
        fn scan(
            &mut self,
            _: Reach,
            range: PageRange,
            written: &mut Vec<PageSpan>,
        ) -> Result<Resume, GuestError> {
            let pages = self.written.clone();
            self.answer(&pages, range, written)
        }

        fn survey(
            &mut self,
            _: Reach,
            range: PageRange,
            present: &mut Vec<PageSpan>,
        ) -> Result<Resume, GuestError> {
            let pages = self.present.clone();
            self.answer(&pages, range, present)
        }

        fn lost(&mut self, _: &mut Vec<Lost>) -> Result<bool, GuestError> {
            unreachable!("nobody asks")
        }

        fn digest(&mut self, _: &[u32], _: &mut Vec<PageDigest>) -> Result<(), GuestError> {
            unreachable!("nobody asks")
        }

        fn fetch(&mut self, _: &[u32], _: &mut Fetched) -> Result<(), GuestError> {
            unreachable!("nobody asks")
        }

        fn merge(
            &mut self,
            _: StoreId,
            _: &[Segment<'_>],
            _: &[Run],
            _: &mut Vec<PageOutcome>,
        ) -> Result<(), GuestError> {
            unreachable!("nobody asks")
        }

        fn unmerge(&mut self, _: PageRange) -> Result<Unmerged, GuestError> {
            unreachable!("nobody asks")
        }

        fn report(&mut self, _: PageRange, _: &mut Vec<MergedSpan>) -> Result<Resume, GuestError> {
            unreachable!("nobody asks")
        }

        fn mend(&mut self, _: PageRange) -> Result<u32, GuestError> {
            unreachable!("nobody asks")
        }

        fn sample(&mut self, _: &[u32], _: &mut Vec<BlockSample>) -> Result<(), GuestError> {
            unreachable!("nobody asks")
        }

        fn split(&mut self, _: &[u32], _: &mut Vec<BlockOutcome>) -> Result<(), GuestError> {
            unreachable!("nobody asks")
        }

        fn collapse(&mut self, _: &[u32], _: &mut Vec<BlockOutcome>) -> Result<(), GuestError> {
            unreachable!("nobody asks")
        }

        fn gauges(&mut self) -> Gauges {
            unreachable!("nobody asks")
        }

        fn owes(&self) -> bool {
            false
        }

        fn settle(&mut self) -> Result<bool, GuestError> {
            Ok(true)
        }
    }

    fn harvest(reader: &Reader) -> Vec<u32> {
        let mut pages = Vec::new();
        reader.harvest_into(ALL, &mut pages).expect("the pages are a guest's");
        pages.into_iter().map(|page| page.0).collect()
    }

    #[test]
    fn what_one_asks_for_all_are_told() {
        let (written, mut process) = (Written::default(), Process::default());
        let (one, other) = (written.join().unwrap(), written.visit().unwrap());
        process.write(7);
        written.collect(&mut process, ALL).unwrap();
        process.write(8);
        assert_eq!(harvest(&one), [7]);
        written.collect(&mut process, ALL).unwrap();
        assert_eq!((harvest(&one), harvest(&other)), (vec![8], vec![7, 8]));
        assert!(!written.is_in_doubt());
    }

    #[test]
    fn a_lost_answer_is_made_up_for_by_a_survey_that_began_later() {
        let (written, mut process) = (Written::default(), Process::default());
        let (one, other) = (written.join().unwrap(), written.join().unwrap());
        process.write(3);
        process.loses = true;
        let before = written.doubt();
        written.collect(&mut process, ALL).unwrap_err();
        process.loses = false;
        assert!(written.is_in_doubt());
        written.collect(&mut process, ALL).unwrap();
        assert!(harvest(&one).is_empty(), "the process told it once");
        // This one had begun before.
        written.survey(&mut process, &[ALL], before).unwrap();
        assert!(written.is_in_doubt());
        written.survey(&mut process, &[ALL], written.doubt()).unwrap();
        assert!(!written.is_in_doubt());
        assert_eq!((harvest(&one), harvest(&other)), (vec![3], vec![3]));
    }

    #[test]
    fn what_is_gone_visitors_are_told_and_after_an_answer_was_lost_everything() {
        let (written, mut process) = (Written::default(), Process::default());
        let (merging, visitor) = (written.join().unwrap(), written.visit().unwrap());
        process.write(4);
        process.gone.insert(9);
        written.collect(&mut process, ALL).unwrap();
        assert_eq!((harvest(&merging), harvest(&visitor)), (vec![4], vec![4, 9]));
        process.gone.insert(9);
        process.loses = true;
        written.collect(&mut process, ALL).unwrap_err();
        process.loses = false;
        written.survey(&mut process, &[ALL], written.doubt()).unwrap();
        assert_eq!((harvest(&merging), harvest(&visitor).len()), (vec![4], 1000));
        // Another one, of who has just come and knows nothing yet.
        written.survey(&mut process, &[ALL], written.doubt()).unwrap();
        assert_eq!((harvest(&merging), harvest(&visitor)), (vec![4], vec![4]));
    }

    #[test]
    fn a_visitor_makes_the_guest_watched_and_merging_does_not() {
        let written = Written::default();
        let _merging = written.join().unwrap();
        assert!(!written.is_watched());
        let visitor = written.visit().unwrap();
        assert!(written.is_watched());
        written.note_changed(PageIndex(7));
        assert_eq!(harvest(&visitor), [7]);
        drop(visitor);
        assert!(!written.is_watched());
    }

    #[test]
    fn whoever_asks_alone_waits_for_those_who_merge() {
        let written = Written::default();
        let mut process = Process::default();
        let visitor = written.visit().unwrap();
        process.write(5);
        let silence = written.silence();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| written.alone().collect(&mut process, ALL));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!asks.is_finished() && harvest(&visitor).is_empty());
            drop(silence);
            asks.join().unwrap().unwrap();
        });
        assert_eq!(harvest(&visitor), [5]);
        let wishes = [written.hush(), written.hush()];
        assert!(written.is_hushed());
        drop(wishes);
        assert!(!written.is_hushed());
    }

    #[test]
    fn visitors_leave_seats_for_others() {
        let written = Written::default();
        let visitors: Vec<Reader> = std::iter::from_fn(|| written.visit().ok()).collect();
        assert_eq!(visitors.len(), VISITORS_MAX);
        let all = || written.changed.join(Joining::Clean).ok();
        let others: Vec<Reader> = std::iter::from_fn(all).collect();
        assert_eq!(visitors.len() + others.len(), MOST_READERS);
    }
}
