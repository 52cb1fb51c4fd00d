//! What one lane can do with a space.

mod blocks;
mod look;

use std::{
    io,
    sync::{Arc, PoisonError},
};

use bindery_sys::pagemap::{EXTENTS_PER_CALL_MAX, Extent};
use bindery_sys::table;
use bindery_units::{HostAddress, PageIndex, PageRange, Slot};
pub use bindery_wire::lane::Reach;
pub use look::Sought;

use bindery_wire::lane::{LossCause, Lost, MergedSpan, PageOutcome, RUN_PAGES_MAX, Run, RunTarget};

use crate::{
    Core,
    blocks::Joints,
    merge::Target,
    region::{GROUP_PAGES, Region},
    restore::Unmerged,
    space_entry::{Kind, SpaceEntry},
    spare::Spare,
    store::Segments,
    transfer::Staging,
};

/// One thread's hands on the space: a staging area, spare pages and the room for a scan's answer.
#[derive(Debug)]
pub struct Worker {
    core: Arc<Core>,
    staging: Staging,
    spare: Spare,
    joints: Joints,
    extents: Box<[Extent; EXTENTS_PER_CALL_MAX]>,
    /// A slot for each page of the runs at work.
    slots: Vec<Slot>,
    transit_max_ns: u64,
}

impl Worker {
    pub(crate) fn new(core: Arc<Core>) -> io::Result<Self> {
        let staging = Staging::new(&core.guest_faults)?;
        let extents = Box::new([Extent::default(); EXTENTS_PER_CALL_MAX]);
        let (spare, joints, slots) = (Spare::new()?, Joints::default(), Vec::new());
        Ok(Self { core, staging, spare, joints, extents, slots, transit_max_ns: 0 })
    }

    /// Merged pages that came back since this was asked last, into `lost` until it has `max`
    /// elements; all whose writers had gone on when it was called. Whether there are more. Old stores
    /// and segments that no page is left in are forgotten, and what merging has no use for in between is
    /// given back: this is asked once a period.
    ///
    /// # Panics
    /// If `max` has no room for a group of pages that are told together (64).
    pub fn lost(&mut self, lost: &mut Vec<Lost>, max: usize) -> bool {
        assert!(max >= GROUP_PAGES, "room for {max} losses would never be enough");
        self.tend();
        let regions: Vec<Arc<Region>> = self.core.regions.read().iter().cloned().collect();
        // A page that came back is noted after its writer has gone on.
        regions.iter().for_each(|region| self.core.settle(region.start(), region.end()));
        let all = regions.iter().all(|region| {
            region.take_lost_groups(|pages| {
                if lost.len() + pages.count as usize > max {
                    return false;
                }
                for page in pages.pages() {
                    let entry = region.entry(page);
                    // A page that changed meanwhile left its mark again for the next time.
                    if entry.is_lost() && region.report_loss(page, entry) {
                        lost.push(describe(page, entry));
                    }
                }
                true
            })
        });
        !all
    }

    /// What [`lost`](Self::lost) does besides.
    fn tend(&mut self) {
        self.staging.empty();
        self.core.forget_old_stores();
        self.core.rest_stores();
        self.core.budget.follow();
        self.core.follow_memory_errors();
    }

    /// Merges runs of pages with runs of slots or of zeros; one [`PageOutcome`] each is appended. Runs
    /// whose pages follow one another are merged together, which costs less.
    pub fn merge(&mut self, segments: &Segments, runs: &[Run], outcomes: &mut Vec<PageOutcome>) {
        table::run(|| self.merge_runs(segments, runs, outcomes));
    }

    fn merge_runs(&mut self, segments: &Segments, runs: &[Run], outcomes: &mut Vec<PageOutcome>) {
        for stretch in runs.chunk_by(|run, next| is_continued(run, next, segments)) {
            // A window is held as long as all its runs take.
            for runs in stretch.chunks(WINDOW_RUNS_MAX) {
                self.merge_consecutive(segments, runs, outcomes);
            }
        }
    }

    /// Merges runs whose pages are consecutive, and that are alike in kind and in whether they make
    /// sense.
    fn merge_consecutive(
        &mut self,
        segments: &Segments,
        runs: &[Run],
        outcomes: &mut Vec<PageOutcome>,
    ) {
        let pages: u32 = runs.iter().map(|run| run.count).sum();
        let asked = outcomes.len();
        outcomes.resize(asked + pages as usize, PageOutcome::Never);
        let outcomes = &mut outcomes[asked..];
        let [first, ..] = runs else { return };
        if !is_sane(first, segments) {
            return;
        }
        self.slots.clear();
        if first.target == RunTarget::Slots {
            self.slots.extend(runs.iter().flat_map(|run| run.slot..run.slot + run.count).map(Slot));
        }
        let pages = PageRange::new(PageIndex(first.page), pages);
        let core = Arc::clone(&self.core);
        for part in core.parts(pages) {
            for piece in part.pages.pieces(RUN_PAGES_MAX) {
                let at = (piece.first.0 - first.page) as usize;
                let piece_at = at..at + piece.count as usize;
                let outcomes = &mut outcomes[piece_at.clone()];
                let target = match first.target {
                    RunTarget::Slots => Target::Slots(segments, &self.slots[piece_at]),
                    RunTarget::Zeros => Target::Zero,
                };
                // Nobody unmaps the region while its pages are in transit.
                let _mapped = part.region.mapped.read().unwrap_or_else(PoisonError::into_inner);
                if !core.regions.has(&part.region) {
                    outcomes.fill(PageOutcome::Busy);
                    continue;
                }
                let transit_ns =
                    core.merge(&part.region, piece, target, &mut self.staging, outcomes);
                self.transit_max_ns = self.transit_max_ns.max(transit_ns);
            }
        }
    }

    /// Makes merged pages of `range` private again, at most about `budget_pages` of them.
    pub fn unmerge(&mut self, range: PageRange, budget_pages: u32) -> Unmerged {
        table::run(|| self.unmerge_range(range, budget_pages))
    }

    fn unmerge_range(&mut self, range: PageRange, budget_pages: u32) -> Unmerged {
        self.staging.empty();
        let mut done = Unmerged::default();
        for part in self.core.parts(range) {
            let _mapped = part.region.mapped.read().unwrap_or_else(PoisonError::into_inner);
            if !self.core.regions.has(&part.region) {
                continue;
            }
            let budget = budget_pages.saturating_sub(done.pages);
            let some = self.core.unmerge(&part.region, part.pages, budget, &mut self.spare);
            done.pages += some.pages;
            done.stuck += some.stuck;
            if some.resume_at.is_some() {
                done.resume_at = some.resume_at;
                break;
            }
        }
        done
    }

    /// Joins the mappings that restored pages left apart in `range`. Returns how many fewer there
    /// are. Reads the process's list of mappings twice; about 0.3 µs a page of torn runs.
    pub fn mend(&mut self, range: PageRange) -> u32 {
        self.core.budget.refresh();
        let before = self.core.budget.now();
        for part in self.core.parts(range) {
            let _mapped = part.region.mapped.read().unwrap_or_else(PoisonError::into_inner);
            if part.region.watched && self.core.regions.has(&part.region) {
                self.core.mend(&part.region, part.pages, &mut self.spare);
            }
        }
        before.saturating_sub(self.core.budget.now())
    }

    /// Which pages of `range` are merged, ascending, into `spans` until it has `max` elements.
    /// Returns where to go on if it became full.
    pub fn report(
        &self,
        range: PageRange,
        spans: &mut Vec<MergedSpan>,
        max: usize,
    ) -> Option<PageIndex> {
        for part in self.core.parts(range) {
            for page in part.pages.pages() {
                let entry = part.region.entry(page);
                if !matches!(entry.kind(), Kind::Merged | Kind::Unprotected) {
                    continue;
                }
                let (store, slot) = (u32::from(entry.store().0), entry.slot().0);
                let full = spans.len() >= max;
                match spans.last_mut() {
                    Some(last)
                        if last.page + last.count == page.0
                            && last.slot + last.count == slot
                            && last.store == store =>
                    {
                        last.count += 1;
                    }
                    _ if full => return Some(page),
                    _ => spans.push(MergedSpan { page: page.0, count: 1, slot, store }),
                }
            }
        }
        None
    }

    /// The longest that pages were in transit since this was asked last, in nanoseconds.
    pub fn transit_max_ns(&mut self) -> u64 {
        std::mem::take(&mut self.transit_max_ns)
    }
}

/// Runs merged together at most: each takes some microseconds, for which guests wait that touch any.
const WINDOW_RUNS_MAX: usize = 16;

/// Whether a run makes sense: pages that can be, slots that are at hand.
fn is_sane(run: &Run, segments: &Segments) -> bool {
    run.page.checked_add(run.count).is_some()
        && (run.target == RunTarget::Zeros || segments.have(Slot(run.slot), run.count))
}

/// Whether `next` can be merged together with `run`.
fn is_continued(run: &Run, next: &Run, segments: &Segments) -> bool {
    run.page.checked_add(run.count) == Some(next.page)
        && run.target == next.target
        && is_sane(run, segments) == is_sane(next, segments)
}

fn describe(page: PageIndex, entry: SpaceEntry) -> Lost {
    let cause = match entry.kind() {
        Kind::Discarded => LossCause::Discard,
        Kind::Unmerged => LossCause::Unmerge,
        _ => LossCause::Write,
    };
    Lost { page: page.0, slot: entry.slot().0, store: u32::from(entry.store().0), cause }
}

/// The part of a range that lies in one region.
pub(crate) struct Part {
    pub(crate) region: Arc<Region>,
    pub(crate) pages: PageRange,
}

impl Part {
    pub(crate) fn end_address(&self) -> HostAddress {
        self.region.address(self.pages.first).plus_pages(self.pages.count)
    }
}

impl Core {
    /// Returns the managed parts of a range, ascending.
    pub(crate) fn parts(&self, range: PageRange) -> Vec<Part> {
        let regions = self.regions.read();
        let part = |region: &Arc<Region>| Part {
            region: Arc::clone(region),
            pages: region.pages().intersection(range),
        };
        regions.within(range).map(part).filter(|part| !part.pages.is_empty()).collect()
    }
}
