//! Memory of one object, and the time of its last access.
//!
//! Accesses of pages that are mapped leave no trace that a program may read, and mpool, which saw faults
//! alone, took what is hot and fully resident for idle. So a **probe** is laid: a few pages are taken out
//! of the page tables, not out of memory. When they are back, somebody has touched them; that costs him one
//! fault without a read. A probe is as long as what a fault maps at once, and lies elsewhere each time.

use std::time::Duration;

use bindery_sys::pagemap::Pagemap;

use super::owners::Owners;
use crate::map::{EvictError, MemoryIdentity, PageRun};

/// Pages that the kernel maps around a page that is touched (`fault_around_bytes` is 64 KiB by default), and so
/// the length of a probe, in pages.
const PROBE_PAGES: u64 = 16;

#[derive(Debug)]
pub(super) struct Cell {
    pub(super) identity: MemoryIdentity,
    pub(super) owners: Owners,
    /// When it was last known to be accessed; when it was first seen, if never.
    accessed: Duration,
    /// Number of the object's pages that were in the page tables when the probe had been laid.
    probe: Option<u64>,
    resident_pages: u64,
}

impl Cell {
    pub(super) fn new(identity: MemoryIdentity, now: Duration) -> Self {
        Self { identity, owners: Owners::default(), accessed: now, probe: None, resident_pages: 0 }
    }

    /// Takes over the state of the same memory, if it is the same: an address may be used again.
    pub(super) fn inherit(&mut self, old: &Self) {
        if old.owners.any().is_some() {
            (self.accessed, self.probe) = (old.accessed, old.probe);
            self.resident_pages = old.resident_pages;
        }
    }

    /// Of it in memory when it was last looked at, in pages.
    pub(super) const fn resident_pages(&self) -> u64 {
        self.resident_pages
    }

    /// Returns the time for which nobody is known to have accessed the object.
    pub(super) const fn idle(&self, now: Duration) -> Duration {
        now.saturating_sub(self.accessed)
    }

    /// Puts off looking at it again for eviction, as if it had been accessed.
    pub(super) const fn spare(&mut self, now: Duration) {
        self.accessed = now;
    }

    /// Sees what is in memory and whether it was touched since the last time, and lays the next probe
    /// near the page `place` (any number).
    pub(super) fn visit(
        &mut self,
        pagemap: &Pagemap,
        now: Duration,
        place: u64,
    ) -> Result<(), EvictError> {
        let Some((map, object)) = self.owners.any() else { return Ok(()) };
        let resident = map.back_end.resident_pages(object)?;
        let mapped = map.back_end.mapped_pages(pagemap, object)?;
        let touched = self.probe.is_some_and(|before| mapped != before);
        let grown = resident > self.resident_pages;
        if map.back_end.take_fetched(object) || touched || grown {
            self.accessed = now;
        }
        self.resident_pages = resident;
        self.probe = Some(if mapped == 0 {
            0
        } else {
            map.back_end.forget(probe(object, map.pages_of(object), place))?;
            map.back_end.mapped_pages(pagemap, object)?
        });
        Ok(())
    }

    /// Counts again what is in memory.
    pub(super) fn recount(&mut self) -> Result<(), EvictError> {
        if let Some((map, object)) = self.owners.any() {
            self.resident_pages = map.back_end.resident_pages(object)?;
        }
        Ok(())
    }
}

/// Returns a probe of an object of so many pages.
fn probe(object: usize, pages: u64, place: u64) -> PageRun {
    let first_page = place % pages.div_ceil(PROBE_PAGES).max(1) * PROBE_PAGES;
    PageRun { object, first_page, pages: PROBE_PAGES.min(pages - first_page) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_cover_an_object_and_no_more() {
        for pages in [1, 15, 16, 17, 32, 100] {
            let mut covered = vec![false; pages as usize];
            for place in 0..200 {
                let run = probe(3, pages, place);
                assert!(run.pages > 0 && run.object == 3);
                let (first, end) = (run.first_page as usize, (run.first_page + run.pages) as usize);
                covered[first..end].fill(true);
            }
            assert!(covered.iter().all(|covered| *covered), "{pages}");
        }
    }
}
