//! The pages of a guest that changed, from one epoch to the next.

use std::sync::Arc;

use bindery_dirty::Reader;
use bindery_guest::{Connection, Guest};
use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::BLOCK_PAGES;

use crate::memory::MemoryError;
use crate::pieces::Piece;

/// Follows what changes in a guest's memory. Kept from one transfer of a guest to the next; a guest that
/// connects anew needs a new one.
///
/// At first every page counts as changed. While there is a tracker, writes are tracked in all of the guest's
/// memory; in huge pages 2 MiB at a time.
pub struct Tracker {
    guest: Arc<Guest>,
    changed: Reader,
    /// Pages that were taken since the last commit.
    taken: Vec<PageRange>,
    is_first: bool,
}

impl Tracker {
    /// Begins to follow a guest.
    ///
    /// # Errors
    /// [`MemoryError::Reader`] if too many follow it.
    pub fn begin(guest: Arc<Guest>) -> Result<Self, MemoryError> {
        let changed = guest.written().visit()?;
        // Regions that come after it joined are marked as they come.
        guest.regions().iter().for_each(|region| mark(&changed, region.pages));
        Ok(Self { guest, changed, taken: Vec::new(), is_first: true })
    }

    /// Returns true until an epoch was committed: the next one has all pages.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.is_first
    }

    /// Returns the guest.
    #[must_use]
    pub const fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }

    pub(crate) const fn parts(&mut self) -> (&Arc<Guest>, Marks<'_>) {
        let Self { guest, changed, taken, is_first } = self;
        (guest, Marks { changed, taken, is_first })
    }
}

/// A tracker's pages.
pub(crate) struct Marks<'t> {
    changed: &'t Reader,
    taken: &'t mut Vec<PageRange>,
    is_first: &'t mut bool,
}

impl Marks<'_> {
    /// Marks pages that somebody else found changed.
    pub(crate) fn mark(&self, pages: PageRange) {
        mark(self.changed, pages);
    }

    /// Takes the changed pages of `range`, in runs.
    pub(crate) fn take(&mut self, range: PageRange, runs: &mut Vec<PageRange>) {
        let before = self.taken.len();
        let harvested = self.changed.harvest_runs_into(range, self.taken);
        harvested.expect("regions lie within the pages that a guest may have");
        runs.extend_from_slice(&self.taken[before..]);
    }

    /// Counts changed pages that `pieces` have, which are ascending by the guest's numbers.
    pub(crate) fn count(&self, pieces: &[Piece]) -> u64 {
        let mut pages = 0;
        for run in self.changed.runs() {
            let run = PageRange::new(PageIndex(run.start as u32), (run.end - run.start) as u32);
            let from = pieces.partition_point(|piece| {
                piece.guest_pages().is_some_and(|pages| pages.end() <= run.first)
            });
            let within = pieces[from..].iter().filter_map(Piece::guest_pages);
            pages += within
                .take_while(|pages| pages.first < run.end())
                .map(|pages| u64::from(pages.intersection(run).count))
                .sum::<u64>();
        }
        pages
    }

    /// Returns the first pages of blocks that `pieces` have, which are ascending, and all of whose pages changed.
    pub(crate) fn whole_blocks(&self, pieces: &[Piece]) -> Vec<PageIndex> {
        let mut blocks = Vec::new();
        for run in self.changed.runs() {
            let first = (run.start as u32).next_multiple_of(BLOCK_PAGES);
            let whole = (first..run.end as u32).step_by(BLOCK_PAGES as usize);
            blocks.extend(whole.filter(|at| at + BLOCK_PAGES <= run.end as u32).map(PageIndex));
        }
        blocks.retain(|block| {
            let at = pieces.partition_point(|piece| {
                piece.guest_pages().is_some_and(|pages| pages.end() <= *block)
            });
            let pages = pieces.get(at).and_then(Piece::guest_pages);
            pages.is_some_and(|pages| pages.contains(*block))
        });
        blocks
    }

    pub(crate) fn commit(&mut self) {
        self.taken.clear();
        *self.is_first = false;
    }

    pub(crate) fn put_back(&mut self) {
        let changed = self.changed;
        self.taken.drain(..).for_each(|pages| mark(changed, pages));
    }
}

fn mark(changed: &Reader, pages: PageRange) {
    let marked = changed.mark_range(pages.first.0, u64::from(pages.count));
    marked.expect("regions lie within the pages that a guest may have");
}
