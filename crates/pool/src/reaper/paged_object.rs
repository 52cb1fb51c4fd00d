//! Memory of an object whose pages are evicted one by one.

use std::ops::Range;
use std::sync::Arc;

use bindery_units::PAGE_BYTES;

use super::owners::Owners;
use crate::map::{Accesses, EvictError, Mapped, MemoryIdentity, MemoryRange};

/// Memory of an object, and the accesses to its pages.
#[derive(Debug)]
pub(super) struct PagedObject {
    pub(super) identity: MemoryIdentity,
    pub(super) owners: Owners,
    pub(super) accesses: Arc<Accesses>,
    /// True if all maps that show it report each access.
    pub(super) is_reported: bool,
    /// True if nobody has noted accesses to it before.
    pub(super) is_new: bool,
}

impl PagedObject {
    /// Returns true while a map shows it.
    pub(super) fn is_shown(&self) -> bool {
        self.owners.any().is_some()
    }

    /// Counts pages as in memory and accessed.
    pub(super) fn touch(&self, pages: Range<usize>) {
        for page in pages {
            self.accesses.correct(page, true);
            self.accesses.touch(page);
        }
    }

    /// Learns from the kernel what is in memory. Returns the number of pages that were not known to be.
    pub(super) fn correct(&self) -> Result<u64, EvictError> {
        let Some((map, object)) = self.owners.any() else { return Ok(0) };
        let (mut at, mut unknown) = (0, 0);
        let pages = self.accesses.len();
        let mut correct = |range: Range<usize>, is_resident| {
            let changed = range.filter(|page| self.accesses.correct(*page, is_resident)).count();
            unknown += if is_resident { changed as u64 } else { 0 };
        };
        map.back_end.cached_runs(object, &mut |first, count| {
            let (first, end) = (first.min(pages), (first + count).min(pages));
            correct(at..first, false);
            correct(first..end, true);
            at = end;
        })?;
        correct(at..pages, false);
        self.accesses.recount();
        Ok(unknown)
    }
}

/// Consecutive pages of an object.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) object: Arc<PagedObject>,
    pub(super) first_page: usize,
    pub(super) pages: usize,
}

impl Run {
    /// Returns the numbers of its pages.
    pub(super) const fn range(&self) -> Range<usize> {
        self.first_page..self.first_page + self.pages
    }

    /// Returns its range in the holder's memory.
    pub(super) fn memory(&self) -> MemoryRange {
        let start = self.object.identity.offset_bytes + (self.first_page * PAGE_BYTES) as u64;
        (start, (self.pages * PAGE_BYTES) as u64)
    }
}

/// A map that shows some of the runs, the number of an object of it, and the runs that any map shows.
fn shown(runs: &[Run]) -> Option<(Arc<Mapped>, usize, Vec<&Run>)> {
    let shown: Vec<&Run> = runs.iter().filter(|run| run.object.is_shown()).collect();
    let (map, number) = shown.iter().find_map(|run| run.object.owners.any())?;
    Some((map, number, shown))
}

/// Takes pages of one holder out of the page tables.
pub(super) fn forget(runs: &[Run]) -> Result<(), EvictError> {
    let Some((map, number, runs)) = shown(runs) else { return Ok(()) };
    let ranges: Vec<MemoryRange> = runs.iter().map(|run| run.memory()).collect();
    let object = map.objects[number].id();
    let failed = |source| EvictError { what: "unmap pages", object, source };
    map.back_end.forget_ranges(&ranges).map_err(failed)
}

/// Evicts pages of one holder, and returns how many went. Those that are left count as in memory.
pub(super) fn evict(runs: &[Run]) -> Result<Evicted, EvictError> {
    let Some((map, number, runs)) = shown(runs) else { return Ok(Evicted::default()) };
    let ranges: Vec<MemoryRange> = runs.iter().map(|run| run.memory()).collect();
    let object = map.objects[number].id();
    let failed = |source| EvictError { what: "evict pages", object, source };
    let left = map.back_end.evict_ranges(&ranges).map_err(failed)?;
    for &(at, _) in &left {
        let run = &runs[at];
        run.range().for_each(|page| _ = run.object.accesses.correct(page, true));
    }
    let stuck = left.iter().map(|(_, pages)| pages).sum::<u64>();
    let pages = runs.iter().map(|run| run.pages as u64).sum::<u64>();
    Ok(Evicted { pages: pages.saturating_sub(stuck), stuck })
}

/// Pages that went, and pages that did not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evicted {
    pub(super) pages: u64,
    pub(super) stuck: u64,
}
