//! The merge primitive: a run of a guest's pages becomes a run of a store's slots.
//!
//! ```text
//! hold the range                     nobody else changes its backing
//! move the pages to staging          the guest waits if it touches them; nobody can write them
//! compare each with its slot         byte for byte, exact
//! unequal: move back
//! zero: the kernel's zero page       in place, no mapping cut
//! equal: map the slots in place      the guest reads what it wrote; populate
//!        register, write-protect     from here a write waits for the handler
//!        which were written before?  copied by the kernel: strays, never touched again
//! let go, wake
//! ```
//!
//! Between mapping the slots and protecting them a guest may write, and the kernel then copies the
//! page inside the store's mapping. Such a copy may be pinned for direct I/O and can be neither
//! moved nor copied safely, so it is found (present, but not the file's) and left alone. As the page
//! had been quiet for two periods this is rare, and it spares the handshake with another thread that
//! moving a registered mapping into place would cost every run.

use std::time::Instant;

use bindery_sys::{mapping, userfault::mode};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange, Slot};

use crate::{
    Core,
    entry::{Entry, Kind},
    region::Region,
    store::StoreView,
    transfer::{COPIED, PageSet, STAGING_PAGES, Staging, find_pages},
    wire::lane::{RUN_PAGES_MAX, outcome},
};

/// Mappings that one merged span can cost: itself, and a neighbour cut in two.
const MAPPINGS_PER_SPAN: u32 = 2;

const _: () = assert!(RUN_PAGES_MAX <= STAGING_PAGES);

/// What a run of pages is to become.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    Zero,
    Slots(&'a StoreView, Slot),
}

/// A run at work: pages of one region, held, and what became of each.
struct Run<'a> {
    core: &'a Core,
    region: &'a Region,
    pages: PageRange,
    outcomes: &'a mut [u8],
}

impl Core {
    /// Merges `pages`, all of one region and at most [`RUN_PAGES_MAX`], with `target`, and writes
    /// one [`outcome`] each. Returns how long the pages were in transit, in nanoseconds.
    pub(crate) fn merge(
        &self,
        region: &Region,
        pages: PageRange,
        target: Target<'_>,
        staging: &Staging,
        outcomes: &mut [u8],
    ) -> u64 {
        assert_eq!(outcomes.len(), pages.count as usize, "one outcome for each page");
        outcomes.fill(outcome::BUSY);
        let start = region.address(pages.first);
        let hold = self.held.hold(start, start.plus_pages(pages.count));
        let transit = Instant::now();
        let mut run = Run { core: self, region, pages, outcomes };
        let (fresh, merged) = run.sort(target);
        run.merge_fresh(fresh, target, staging);
        if let Target::Slots(store, slot) = target {
            run.rehome(merged, store, slot);
        }
        drop(hold);
        self.wake(start, pages.count);
        transit.elapsed().as_nanos() as u64
    }
}

impl Run<'_> {
    const fn address(&self, page: u32) -> HostAddress {
        self.region
            .announced
            .address
            .plus_pages(self.pages.first.0 + page - self.region.announced.pages.first.0)
    }

    const fn page(&self, page: u32) -> PageIndex {
        self.pages.first.plus(page)
    }

    fn finish(&mut self, pages: PageSet, outcome: u8) {
        for page in pages.pages() {
            self.outcomes[page as usize] = outcome;
        }
    }

    /// The pages that are their guest's own, and those that are merged with another slot.
    fn sort(&mut self, target: Target<'_>) -> (PageSet, PageSet) {
        let (mut fresh, mut merged) = (PageSet::default(), PageSet::default());
        for page in 0..self.pages.count {
            let entry = self.region.entry(self.page(page));
            match (entry.kind(), target) {
                (Kind::Private, _) => fresh.insert(page),
                (Kind::Merged, Target::Slots(store, slot)) => {
                    if entry == Entry::new(Kind::Merged, store.id, slot.plus(page)) {
                        self.outcomes[page as usize] = outcome::ALREADY;
                    } else {
                        merged.insert(page);
                    }
                }
                (Kind::Stray | Kind::StrayLost | Kind::Bound, _) => {
                    self.outcomes[page as usize] = outcome::NEVER;
                }
                // Lost and not yet reported, or merged and now asked to be zero: later.
                _ => {}
            }
        }
        (fresh, merged)
    }

    /// Merges pages that are their guest's own.
    fn merge_fresh(&mut self, wanted: PageSet, target: Target<'_>, staging: &Staging) {
        if wanted.is_empty() {
            return;
        }
        let (faults, pagemap) = (&self.core.guest_faults, &self.core.pagemap);
        let guest = self.address(0);
        // SAFETY: the run is held, and staging was left empty by the last run.
        let staged = unsafe { staging.take(faults, pagemap, guest, wanted) };
        if staged.is_empty() {
            return;
        }
        let equal = self.compare(staged, target, staging);
        self.finish(staged.without(equal), outcome::DIFFERENT);
        let placed = match target {
            Target::Zero => self.place_zero_pages(equal),
            Target::Slots(store, slot) => self.place_slots(equal, store, slot),
        };
        let back = staged.without(placed);
        if !back.is_empty() {
            // SAFETY: the run is held, these pages are staged and their places are absent.
            unsafe { staging.give_back(faults, pagemap, guest, back) };
        }
        if !placed.is_empty() {
            staging.clear(self.pages.count);
        }
    }

    fn compare(&self, staged: PageSet, target: Target<'_>, staging: &Staging) -> PageSet {
        let mut equal = PageSet::default();
        for page in staged.pages() {
            let bytes = staging.page(page);
            // SAFETY: staged pages and slots are 4096 readable bytes, aligned to a page; neither
            // changes meanwhile.
            let same = unsafe {
                match target {
                    Target::Zero => bindery_page::is_zero_at(bytes),
                    Target::Slots(store, slot) => {
                        bindery_page::equal_at(bytes, store.page(slot.plus(page)))
                    }
                }
            };
            if same {
                equal.insert(page);
            }
        }
        equal
    }

    /// Puts the kernel's zero page at each of `pages`, which are absent.
    fn place_zero_pages(&mut self, pages: PageSet) -> PageSet {
        let mut placed = PageSet::default();
        for (first, count) in pages.spans() {
            for page in self.place_zero_span(first, count) {
                placed.insert(page);
            }
        }
        self.finish(placed, outcome::MERGED);
        placed
    }

    /// A span may lie in several mappings: then its pages are done one by one.
    fn place_zero_span(&self, first: u32, count: u32) -> impl Iterator<Item = u32> + use<'_> {
        // SAFETY: these pages are absent, held, and were found to be zero.
        let zero = |page: u32, count: u32| unsafe {
            let bytes = count as usize * PAGE_BYTES;
            self.core.guest_faults.zero(self.address(page), bytes, false)
        };
        let done = match zero(first, count) {
            Ok(()) => count,
            Err(stopped) => (stopped.done / PAGE_BYTES) as u32,
        };
        (first..first + done)
            .chain((first + done..first + count).filter(move |&page| zero(page, 1).is_ok()))
    }

    /// Maps the slots of `pages`, which are absent in the guest, in their places.
    fn place_slots(&mut self, pages: PageSet, store: &StoreView, slot: Slot) -> PageSet {
        let mut placed = PageSet::default();
        for (first, count) in pages.spans() {
            if !self.core.budget.allows(MAPPINGS_PER_SPAN)
                || !self.map_span(first, count, store, slot)
            {
                self.finish(PageSet(PageSet::first(count).0 << first), outcome::NO_MAPPINGS);
                continue;
            }
            for page in first..first + count {
                placed.insert(page);
            }
        }
        placed
    }

    /// Gives merged pages another slot with the same bytes: a new store, or a better place.
    fn rehome(&mut self, pages: PageSet, store: &StoreView, slot: Slot) {
        let mut equal = PageSet::default();
        for page in pages.pages() {
            let entry = self.region.entry(self.page(page));
            let Some(old) = self.core.store(entry.store()) else {
                unreachable!("a store stays while pages are merged with it")
            };
            // SAFETY: both are slots: 4096 readable bytes that do not change while they are mapped.
            let same = unsafe {
                bindery_page::equal_at(old.page(entry.slot()), store.page(slot.plus(page)))
            };
            if same {
                equal.insert(page);
            }
        }
        self.finish(pages.without(equal), outcome::DIFFERENT);
        for (first, count) in equal.spans() {
            let old: Vec<Entry> =
                (first..first + count).map(|page| self.region.entry(self.page(page))).collect();
            if self.map_span(first, count, store, slot) {
                for entry in old {
                    if let Some(store) = self.core.store(entry.store()) {
                        store.remove_mapped(1);
                    }
                }
            } else {
                self.finish(PageSet(PageSet::first(count).0 << first), outcome::NO_MAPPINGS);
            }
        }
    }

    /// Maps a span of slots over the guest's range and protects it. Whether it could be mapped.
    fn map_span(&mut self, first: u32, count: u32, store: &StoreView, slot: Slot) -> bool {
        let (address, bytes) = (self.address(first), count as usize * PAGE_BYTES);
        let offset = slot.plus(first).offset_bytes();
        // SAFETY: the range is held, and the slots' bytes are what its pages held.
        let mapped = unsafe { mapping::replace_with_file(address, bytes, store.file(), offset) };
        if mapped.is_err() {
            return false;
        }
        self.core.budget.made(MAPPINGS_PER_SPAN);
        store.add_mapped(count);
        if !self.protect_span(address, bytes) {
            // Whoever writes gets the kernel's copy, and we never learn of it: the slots stay in use
            // and the pages are left alone for good.
            for page in first..first + count {
                self.settle(page, Entry::new(Kind::Bound, store.id, slot.plus(page)));
            }
            return true;
        }
        // Present but not the file's: written between mapping and protection.
        let strays = find_pages(&self.core.pagemap, address, count, COPIED);
        for page in 0..count {
            let entry = Entry::new(Kind::Merged, store.id, slot.plus(first + page));
            if strays.contains(page) {
                let stray = address.plus_pages(page);
                // A stray may be written freely; if even this fails, the handler does it.
                let _ = self.core.store_faults.write_protect(stray, PAGE_BYTES, false);
                store.remove_mapped(1);
                self.region.set_entry(self.page(first + page), Entry((Kind::Stray as u32) << 29));
                self.outcomes[(first + page) as usize] = outcome::NEVER;
            } else {
                self.settle(first + page, entry);
            }
        }
        true
    }

    fn settle(&mut self, page: u32, entry: Entry) {
        self.region.set_entry(self.page(page), entry);
        self.outcomes[page as usize] = outcome::MERGED;
    }

    /// From here on a write to the range waits for the handler.
    fn protect_span(&self, address: HostAddress, bytes: usize) -> bool {
        // Populate before registering: a registered mapping has its pages mapped one by one, an
        // unregistered one sixteen at a time (the kernel's fault-around).
        // SAFETY: reading a mapping of ours changes no content; the range is held.
        let _ = unsafe { mapping::advise(address, bytes, libc::MADV_POPULATE_READ) };
        // SAFETY: the advice was the VMM's own, for this range.
        let advised = unsafe { self.region.advise_mapping(address, bytes) };
        // SAFETY: writes are served by the handler of the store's mappings.
        let registered = unsafe { self.core.store_faults.register(address, bytes, mode::WP) };
        advised.is_ok()
            && registered.is_ok()
            && self.core.store_faults.write_protect(address, bytes, true).is_ok()
    }
}
