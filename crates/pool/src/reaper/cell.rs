//! One object's memory, and when it was last accessed.
//!
//! Accesses of pages that are mapped leave no trace that a program may read, and mpool, which saw faults
//! alone, took what is hot and fully resident for idle. So a **probe** is laid: a few pages are taken out
//! of the page tables, not out of memory. When they are back, somebody has touched them; that costs him one
//! fault without a read. A probe is as long as what a fault maps at once, and lies elsewhere each time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bindery_sys::pagemap::Pagemap;

use crate::map::{BackEndKind, EvictError, Identity, Mapped, PageRun, Temperature};

/// What the kernel maps around a page that is touched (`fault_around_bytes` is 64 KiB by default), and so
/// the length of a probe, in pages.
const PROBE_PAGES: u64 = 16;

/// Where the memory of an object is: a map, and the object's number in it.
type Owner = (Weak<Mapped>, usize);

#[derive(Debug)]
pub(super) struct Cell {
    pub(super) identity: Identity,
    /// All maps that show this memory.
    owners: Vec<Owner>,
    /// When it was last known to be accessed; when it was first seen, if never.
    accessed: Duration,
    /// How many of its pages were in the page tables when the probe had been laid.
    probe: Option<u64>,
    resident_pages: u64,
}

impl Cell {
    pub(super) fn new(identity: Identity, now: Duration) -> Self {
        Self { identity, owners: Vec::new(), accessed: now, probe: None, resident_pages: 0 }
    }

    pub(super) fn add(&mut self, map: &Arc<Mapped>, object: usize) {
        self.owners.push((Arc::downgrade(map), object));
    }

    /// What was known of the same memory, if it is the same: an address may be used again.
    pub(super) fn inherit(&mut self, old: &Self) {
        if old.owner().is_some() {
            (self.accessed, self.probe) = (old.accessed, old.probe);
            self.resident_pages = old.resident_pages;
        }
    }

    /// One of the maps that show it, while there is one.
    pub(super) fn owner(&self) -> Option<(Arc<Mapped>, usize)> {
        self.owners.iter().find_map(|(map, object)| Some((map.upgrade()?, *object)))
    }

    /// The warmest of the maps that show it.
    pub(super) fn temperature(&self) -> Temperature {
        let maps = self.owners.iter().filter_map(|(map, _)| map.upgrade());
        maps.map(|map| map.temperature()).max().unwrap_or(Temperature::Cold)
    }

    /// Of it in memory when it was last looked at, in pages.
    pub(super) const fn resident_pages(&self) -> u64 {
        self.resident_pages
    }

    /// For how long nobody is known to have accessed it.
    pub(super) const fn idle(&self, now: Duration) -> Duration {
        now.saturating_sub(self.accessed)
    }

    /// Puts off looking at it again for eviction, as if it had been accessed.
    pub(super) const fn spare(&mut self, now: Duration) {
        self.accessed = now;
    }

    pub(super) fn kind(&self) -> Option<BackEndKind> {
        Some(self.owner()?.0.back_end.kind())
    }

    /// Sees what is in memory and whether it was touched since the last time, and lays the next probe
    /// near the page `place` (any number).
    pub(super) fn visit(
        &mut self,
        pagemap: &Pagemap,
        now: Duration,
        place: u64,
    ) -> Result<(), EvictError> {
        let Some((map, object)) = self.owner() else { return Ok(()) };
        let resident = map.back_end.resident_pages(object)?;
        let mapped = map.back_end.mapped_pages(pagemap, object)?;
        let touched = self.probe.is_some_and(|before| mapped > before);
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
        if let Some((map, object)) = self.owner() {
            self.resident_pages = map.back_end.resident_pages(object)?;
        }
        Ok(())
    }
}

/// One of the probes that an object of so many pages has.
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
