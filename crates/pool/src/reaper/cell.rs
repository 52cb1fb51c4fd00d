//! Memory of one object, and the time of its last access.
//!
//! Accesses of pages that are mapped leave no trace that a program may read, and mpool, which saw faults
//! alone, took what is hot and fully resident for idle. So a **probe** is laid: a few pages are taken out
//! of the page tables, not out of memory. When they are back, somebody has touched them; that costs him one
//! fault without a read. A probe is as long as what a fault maps at once, and lies elsewhere each time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bindery_sys::pagemap::Pagemap;

use super::heat::{Heat, LEVELS};
use super::reaper_settings::ReaperSettings;
use crate::map::{BackEndKind, EvictError, Mapped, MemoryIdentity, PageRun, Temperature};
use crate::pace::Pace;

/// Pages that the kernel maps around a page that is touched (`fault_around_bytes` is 64 KiB by default), and so
/// the length of a probe, in pages.
const PROBE_PAGES: u64 = 16;

/// Location of an object's memory: a map, and the object's number in it.
type Owner = (Weak<Mapped>, usize);

#[derive(Debug)]
pub(super) struct Cell {
    pub(super) identity: MemoryIdentity,
    /// All maps that show this memory.
    owners: Vec<Owner>,
    /// When it was last known to be accessed; when it was first seen, if never.
    accessed: Duration,
    /// Number of the object's pages that were in the page tables when the probe had been laid.
    probe: Option<u64>,
    resident_pages: u64,
    /// State of single pages, if pages are evicted.
    pages: Option<Pages>,
}

/// State of an object's pages.
#[derive(Debug)]
struct Pages {
    heat: Heat,
    /// When they were taken out of the page tables, so that accesses show.
    forgotten: Option<Duration>,
    cooled: Duration,
}

/// Pages that the kernel was asked to let go of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub(super) pages: u64,
    /// Of them, those that were just as warm as what may stay.
    pub(super) equal_pages: u64,
}

impl Cell {
    pub(super) fn new(identity: MemoryIdentity, now: Duration) -> Self {
        Self {
            identity,
            owners: Vec::new(),
            accessed: now,
            probe: None,
            resident_pages: 0,
            pages: None,
        }
    }

    pub(super) fn add(&mut self, map: &Arc<Mapped>, object: usize) {
        self.owners.push((Arc::downgrade(map), object));
    }

    /// Takes over the state of the same memory, if it is the same: an address may be used again.
    pub(super) fn inherit(&mut self, old: &mut Self) {
        if old.owner().is_some() {
            (self.accessed, self.probe) = (old.accessed, old.probe);
            self.resident_pages = old.resident_pages;
            self.pages = old.pages.take();
        }
    }

    /// Returns a map that shows the object, while there is one.
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

    /// Returns the time for which nobody is known to have accessed the object.
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

    /// Sees what is in memory, and which pages were accessed. Every now and then all are taken out of the
    /// page tables, so that the next accesses show.
    pub(super) fn visit_pages(
        &mut self,
        pagemap: &Pagemap,
        now: Duration,
        settings: &ReaperSettings,
    ) -> Result<(), EvictError> {
        let Some((map, object)) = self.owner() else { return Ok(()) };
        let of_object = map.pages_of(object);
        let new = || Pages { heat: Heat::new(of_object), forgotten: None, cooled: now };
        let pages = self.pages.get_or_insert_with(new);
        self.resident_pages = map.back_end.resident_pages(object)?;
        let is_due =
            pages.forgotten.is_none_or(|at| now.saturating_sub(at) >= settings.page_interval);
        // What is there though it was forgotten was accessed since.
        let shows = is_due && pages.forgotten.is_some();
        let mut mapped = 0;
        map.back_end.mapped_runs(pagemap, object, &mut |first, count| {
            mapped += count;
            pages.heat.see(first, count);
            if shows {
                pages.heat.warm(first, count);
            }
        })?;
        if mapped > 0 {
            self.accessed = now;
        }
        if is_due {
            pages.forgotten = Some(now);
            map.back_end.forget(PageRun { object, first_page: 0, pages: of_object })?;
        }
        if now.saturating_sub(pages.cooled) >= settings.page_cooling {
            pages.heat.cool();
            pages.cooled = now;
        }
        Ok(())
    }

    /// Counts its pages in memory by their warmth, if it was visited for them.
    pub(super) fn count_pages(&self, counts: &mut [u64; LEVELS]) {
        if let Some(pages) = &self.pages {
            pages.heat.count(counts);
        }
    }

    /// Evicts its pages below a warmth, and up to `more` of just that warmth, and counts again what is in
    /// memory.
    pub(super) fn evict_pages(
        &mut self,
        below: usize,
        more: u64,
        pace: &mut Pace,
    ) -> Result<Asked, EvictError> {
        let (Some((map, object)), Some(pages)) = (self.owner(), &mut self.pages) else {
            return Ok(Asked::default());
        };
        let runs = pages.heat.take(below, u64::MAX);
        let equal = pages.heat.take(below + 1, more);
        for &(first_page, pages) in runs.iter().chain(&equal) {
            map.back_end.evict_pages(PageRun { object, first_page, pages })?;
            pace.step();
        }
        if !(runs.is_empty() && equal.is_empty()) {
            self.recount()?;
        }
        let pages = |runs: &[(u64, u64)]| runs.iter().map(|(_, pages)| pages).sum::<u64>();
        Ok(Asked { pages: pages(&runs) + pages(&equal), equal_pages: pages(&equal) })
    }

    /// Counts again what is in memory.
    pub(super) fn recount(&mut self) -> Result<(), EvictError> {
        if let Some((map, object)) = self.owner() {
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
