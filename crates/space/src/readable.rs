//! Pages that can be read without ending the process.
//!
//! Who reads a page with an uncorrected memory error gets SIGBUS, and a thread that has that blocked, as
//! ours have, takes the process along. A guest may live with such a page for long: it was told of it, or
//! has not touched it yet; of a slot many guests have it. The kernel takes the page out of every page
//! table (mm/memory-failure.c), so a page that is there can be read, and the others are brought in by a
//! call that may fail. Asking costs up to a fifth of merging a short run, so that is left out on machines
//! that had no such error. What fails between asking and reading ends the process still.

use std::sync::atomic::Ordering;

use bindery_sys::{mapping, memory};
use bindery_units::{HostAddress, PAGE_BYTES, PageRange, Slot};

use crate::{
    Core,
    descriptors::Pagemap,
    region::Region,
    store::StoreView,
    transfer::{PRESENT, PageSet, find_pages},
};

impl Core {
    /// Whether it is worth asking: whether the machine had any such error, as of the last period.
    pub(crate) fn has_memory_errors(&self) -> bool {
        // Relaxed: whoever misses it asks from the next period on.
        self.memory_errors.load(Ordering::Relaxed)
    }

    /// Looks once a period whether the machine had one.
    pub(crate) fn follow_memory_errors(&self) {
        // If it cannot be told, what was known holds.
        if let Ok(lost_bytes) = memory::lost_bytes() {
            self.memory_errors.store(lost_bytes > 0, Ordering::Relaxed);
        }
    }

    /// Which of the `wanted` pages from `start` on can be read: all, on a machine that had no error.
    /// Waits for a fault handler as who reads them would.
    pub(crate) fn readable(&self, start: HostAddress, wanted: PageSet) -> PageSet {
        if self.has_memory_errors() { find_readable(&self.pagemap, start, wanted) } else { wanted }
    }

    /// Which of `count` slots from `slot` on can be read, the first as page 0.
    pub(crate) fn readable_slots(&self, store: &StoreView, slot: Slot, count: u32) -> PageSet {
        self.readable(HostAddress(store.page(slot) as usize), PageSet::first(count))
    }

    /// Which slots of a run that is merged with consecutive ones can be read. One that a writer waits
    /// for can: it was in its page table, or the kernel would not have asked who may write it.
    pub(crate) fn readable_run(&self, region: &Region, run: PageRange) -> PageSet {
        let entry = region.entry(run.first);
        self.readable_slots(&self.store_of(entry), entry.slot(), run.count)
    }
}

/// Which of the `wanted` pages from `start` on can be read.
fn find_readable(pagemap: &Pagemap, start: HostAddress, wanted: PageSet) -> PageSet {
    // Where the kernel does not say, each is brought in.
    let present = find_pages(pagemap, start, wanted.end(), PRESENT).unwrap_or_default();
    let mut readable = wanted.and(present);
    for (first, count) in wanted.without(readable).spans() {
        if bring_in(start.plus_pages(first), count) {
            readable = readable.with_span(first, count);
            continue;
        }
        for page in (first..first + count).filter(|&page| bring_in(start.plus_pages(page), 1)) {
            readable.insert(page);
        }
    }
    readable
}

/// Whether all of so many pages could be brought in.
fn bring_in(start: HostAddress, pages: u32) -> bool {
    let bytes = pages as usize * PAGE_BYTES;
    // SAFETY: bringing pages in changes no content.
    unsafe { mapping::advise(start, bytes, libc::MADV_POPULATE_READ) }.is_ok()
}
