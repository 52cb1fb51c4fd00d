//! The merge primitive: consecutive pages of a guest become slots of a store.
//!
//! ```text
//! hold the range                     nobody else changes its backing
//! split its blocks                   unless they are: from here on absent pages are waited for
//! which were written since a scan?   told of by the next, as scans pass over merged pages
//! move the pages to staging          the guest waits if it touches them; nobody can write them
//! compare each with its slot         byte for byte, exact
//! unequal: move back
//! zero: the kernel's zero page       in place, no mapping cut
//! equal: map the slots in place      one mapping for each run of slots; the guest reads what it wrote
//!        populate, register, protect all of them together; from here a write waits for the handler
//!        which were written before?  copied by the kernel: CoW copies, never touched again
//! let go, wake
//! ```
//!
//! Between mapping the slots and protecting them a guest may write, and the kernel then copies the
//! page inside the store's mapping. Such a copy may be pinned for direct I/O and can be neither
//! moved nor copied safely, so it is found ([`copies`](crate::copies)) and left alone. As the page
//! had been quiet for two periods this is rare, and it spares the handshake with another thread that
//! moving a registered mapping into place would cost every run.

use std::{
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use bindery_sys::{mapping, userfault::mode};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange, Slot};

use bindery_wire::lane::{PageOutcome, RUN_PAGES_MAX};

use crate::{
    Core,
    copies::{Copies, find_copies},
    refuge::Refuge,
    region::Region,
    space_entry::{Kind, SpaceEntry},
    store::{Segments, StoreView},
    transfer::{PageSet, Staging, WINDOW_PAGES, WRITTEN, find_pages},
};

/// Mappings that one run of slots can cost: itself, and a neighbour cut in two.
const MAPPINGS_PER_RUN: u32 = 2;

const _: () = assert!(RUN_PAGES_MAX <= WINDOW_PAGES);

/// What pages are to become.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    Zero,
    /// One slot for each page.
    Slots(&'a Segments, &'a [Slot]),
}

/// Pages at work: consecutive ones of one region, held, and what became of each.
struct Window<'a> {
    core: &'a Core,
    region: &'a Region,
    pages: PageRange,
    outcomes: &'a mut [PageOutcome],
}

impl Core {
    /// Merges `pages`, all of one region and at most [`RUN_PAGES_MAX`], with `target`, and writes
    /// one [`PageOutcome`] each. Returns how long the pages were in transit, in nanoseconds.
    pub(crate) fn merge(
        &self,
        region: &Region,
        pages: PageRange,
        target: Target<'_>,
        staging: &mut Staging,
        outcomes: &mut [PageOutcome],
    ) -> u64 {
        assert_eq!(outcomes.len(), pages.count as usize, "one outcome for each page");
        if !region.watched {
            // Given back: outcomes stay as they are.
            return 0;
        }
        outcomes.fill(PageOutcome::Busy);
        if let Target::Slots(segments, slots) = target {
            assert_eq!(slots.len(), outcomes.len(), "one slot for each page");
            let runs = segments.view.runs_of(slots, 0, pages.count).count() as u32;
            self.budget.settle(MAPPINGS_PER_RUN * runs);
        }
        let start = region.address(pages.first);
        let hold = self.hold(start, start.plus_pages(pages.count));
        if self.split(region, pages).is_err() {
            // No mapping is left, or another userfaultfd has the memory.
            return 0;
        }
        let transit = Instant::now();
        let mut window = Window { core: self, region, pages, outcomes };
        let (fresh, merged) = window.sort(target);
        window.merge_fresh(fresh, target, staging);
        if let Target::Slots(segments, slots) = target {
            window.rehome(merged, segments, slots);
        }
        drop(hold);
        self.pagemap.say_failure();
        transit.elapsed().as_nanos() as u64
    }
}

impl Window<'_> {
    const fn address(&self, page: u32) -> HostAddress {
        self.region
            .announced
            .address
            .plus_pages(self.pages.first.0 + page - self.region.announced.pages.first.0)
    }

    const fn page(&self, page: u32) -> PageIndex {
        self.pages.first.plus(page)
    }

    fn finish(&mut self, pages: PageSet, outcome: PageOutcome) {
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
                (Kind::Merged, Target::Slots(segments, slots)) => {
                    if entry
                        == SpaceEntry::new(Kind::Merged, segments.view.id, slots[page as usize])
                    {
                        self.outcomes[page as usize] = PageOutcome::Already;
                    } else {
                        merged.insert(page);
                    }
                }
                (Kind::CowCopy | Kind::CowCopyLost | Kind::Unprotected, _) => {
                    self.outcomes[page as usize] = PageOutcome::Never;
                }
                // Lost and not yet reported, or merged and now asked to be zero: later.
                _ => {}
            }
        }
        (fresh, merged)
    }

    /// Merges pages that are their guest's own.
    fn merge_fresh(&mut self, wanted: PageSet, target: Target<'_>, staging: &mut Staging) {
        if wanted.is_empty() {
            return;
        }
        let (core, region, guest) = (self.core, self.region, self.address(0));
        let Some(written) = find_pages(&core.pagemap, guest, wanted.end(), WRITTEN) else {
            // A page that is merged now could have a write that nobody would ever hear of.
            return;
        };
        // SAFETY: the window is held.
        let staged = unsafe { staging.take(core, region, guest, wanted) };
        if staged.is_empty() {
            return;
        }
        let equal = self.compare(staged, target, staging);
        self.finish(staged.without(equal), PageOutcome::Different);
        let placed = match target {
            Target::Zero => self.place_zero_pages(equal),
            Target::Slots(segments, slots) => self.place_slots(equal, segments, slots),
        };
        // Whoever watches the guest has not heard of it, and no scan will find it any more.
        for (first, count) in placed.and(written).spans() {
            self.region.add_pending(PageRange::new(self.page(first), count));
        }
        let back = staged.without(placed);
        // SAFETY: the window is held, these pages are staged and their places are absent.
        let copied = unsafe { staging.give_back(core, region, guest, back) };
        if copied || !placed.is_empty() {
            staging.retire(self.pages.count);
        }
    }

    fn compare(&self, staged: PageSet, target: Target<'_>, staging: &Staging) -> PageSet {
        let readable = match target {
            Target::Zero => staged,
            Target::Slots(segments, slots) => self.readable(staged, segments, slots),
        };
        let mut equal = PageSet::default();
        for page in readable.pages() {
            let bytes = staging.page(page);
            // SAFETY: staged pages and slots are 4096 readable bytes, aligned to a page; neither
            // changes meanwhile.
            let same = unsafe {
                match target {
                    Target::Zero => bindery_page::is_zero_at(bytes),
                    Target::Slots(segments, slots) => {
                        bindery_page::equal_at(bytes, segments.view.page(slots[page as usize]))
                    }
                }
            };
            if same {
                equal.insert(page);
            }
        }
        equal
    }

    /// Those of `pages` whose slots can be read.
    fn readable(&self, pages: PageSet, segments: &Segments, slots: &[Slot]) -> PageSet {
        let view = &segments.view;
        let mut readable = PageSet::default();
        for (first, count) in pages.spans().flat_map(|(at, count)| view.runs_of(slots, at, count)) {
            let found = self.core.readable_slots(view, slots[first as usize], count);
            readable = readable.or(PageSet(found.0 << first));
        }
        readable
    }

    /// Puts the kernel's zero page at each of `pages`, which are absent.
    fn place_zero_pages(&mut self, pages: PageSet) -> PageSet {
        let mut placed = PageSet::default();
        for (first, count) in pages.spans() {
            for page in self.place_zero_span(first, count) {
                placed.insert(page);
            }
        }
        self.finish(placed, PageOutcome::Merged);
        // No others: a page of zeros that was not placed here is still to be reported.
        for (first, count) in placed.spans() {
            self.core.protect_zeros(self.address(first), count);
        }
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
    fn place_slots(&mut self, pages: PageSet, segments: &Segments, slots: &[Slot]) -> PageSet {
        let view = &segments.view;
        let mut mapped = PageSet::default();
        for (first, count) in pages.spans().flat_map(|(at, count)| view.runs_of(slots, at, count)) {
            if self.map_run(first, count, segments, slots[first as usize]) {
                mapped = mapped.with_span(first, count);
            } else {
                self.core.close_gap(self.region, self.address(first), count);
                self.finish(PageSet::default().with_span(first, count), PageOutcome::NoMappings);
            }
        }
        self.protect(mapped, view, slots);
        mapped
    }

    /// Gives merged pages other slots with the same bytes: of a new store, or at a better place.
    fn rehome(&mut self, pages: PageSet, segments: &Segments, slots: &[Slot]) {
        let view = &segments.view;
        let mut equal = PageSet::default();
        // A slot that the guest has in its page table can be read elsewhere as well.
        let readable =
            self.core.readable(self.address(0), pages).and(self.readable(pages, segments, slots));
        for page in readable.pages() {
            let entry = self.region.entry(self.page(page));
            let old = self.core.store_of(entry);
            // SAFETY: both are slots: 4096 readable bytes that do not change while they are mapped.
            let same = unsafe {
                bindery_page::equal_at(old.page(entry.slot()), view.page(slots[page as usize]))
            };
            if same {
                equal.insert(page);
            }
        }
        self.finish(pages.without(equal), PageOutcome::Different);
        if !equal.is_empty() {
            self.map_elsewhere(equal, segments, slots);
        }
    }

    /// Maps other slots, with the same bytes, in place of those of merged pages.
    fn map_elsewhere(&mut self, equal: PageSet, segments: &Segments, slots: &[Slot]) {
        let view = &segments.view;
        // Had before there can be a hole in the guest's memory, in which it would be put.
        let Ok(mut refuge) = Refuge::new(equal.end()) else {
            return self.finish(equal, PageOutcome::NoMappings);
        };
        let mut mapped = PageSet::default();
        for (first, count) in equal.spans().flat_map(|(at, count)| view.runs_of(slots, at, count)) {
            if self.map_run(first, count, segments, slots[first as usize]) {
                mapped = mapped.with_span(first, count);
            } else {
                (first..first + count).for_each(|page| self.make_private(page, &mut refuge));
                self.finish(PageSet::default().with_span(first, count), PageOutcome::NoMappings);
            }
        }
        self.protect(mapped, view, slots);
    }

    /// Brings a merged page's content back as private memory, if a failed mapping of another slot left
    /// nothing there: of its own slot there is a view, and no file any more.
    fn make_private(&self, page: u32, refuge: &mut Refuge) {
        let address = self.address(page);
        if mapping::is_mapped(address, PAGE_BYTES) {
            return;
        }
        let entry = self.region.entry(self.page(page));
        let old = self.core.store_of(entry);
        // SAFETY: the window is held, nothing is mapped there, and a page is merged with the slot.
        unsafe { refuge.move_copy(page, old.page(entry.slot()), address) };
        self.core.budget.made(MAPPINGS_PER_RUN);
        // SAFETY: the advice was the VMM's own, for this range. Without it a child of fork gets a copy.
        let _ = unsafe { self.region.advise_anonymous(address, PAGE_BYTES) };
        // SAFETY: the page is present; who finds it absent later is served by the handler.
        let registered = unsafe {
            self.core.guest_faults.register(address, PAGE_BYTES, mode::MISSING | mode::WP)
        };
        // Private memory that cannot be watched is as good as a CoW copy.
        let kind = if registered.is_ok() { Kind::Unmerged } else { Kind::CowCopyLost };
        self.region.set_entry(self.page(page), entry.with_kind(kind));
        self.core.leave_store(entry);
    }

    /// Maps consecutive slots over pages of the window. Whether it could be done; if not, the pages
    /// are as they were, or nothing is mapped there.
    fn map_run(&self, first: u32, count: u32, segments: &Segments, slot: Slot) -> bool {
        let (address, bytes) = (self.address(first), count as usize * PAGE_BYTES);
        let (file, offset) = segments.place_of(slot);
        // SAFETY: the window is held, and the slots' bytes are what its pages held.
        let mapped = self.core.budget.allows(MAPPINGS_PER_RUN)
            && file
                .with(|file| unsafe {
                    mapping::replace_with_file(address, bytes, file.as_fd(), offset)
                })
                .is_ok();
        if mapped {
            self.core.budget.made(MAPPINGS_PER_RUN);
            // Populate before registering: a registered mapping has its pages mapped one by one, an
            // unregistered one sixteen at a time, or a whole folio, but none beyond its end.
            // SAFETY: these are mappings of the store's slots; the window is held.
            unsafe { mapping::read_around(address, bytes) };
        }
        mapped
    }

    /// Protects `pages`, whose slots are mapped, and notes what became of each.
    fn protect(&mut self, pages: PageSet, store: &StoreView, slots: &[Slot]) {
        for (first, count) in pages.spans() {
            self.protect_span(first, count, store, |page| slots[page as usize]);
        }
    }

    fn protect_span(
        &mut self,
        first: u32,
        count: u32,
        store: &StoreView,
        slot: impl Fn(u32) -> Slot,
    ) {
        let (address, bytes) = (self.address(first), count as usize * PAGE_BYTES);
        let protected = self.make_writes_wait(address, bytes);
        let copies = if protected {
            self.find_cow_copies(address, count)
        } else {
            self.copy_all(address, count)
        };
        for (offset, page) in (0..count).zip(first..) {
            if copies.copied.contains(offset) {
                self.settle_cow_copy(page);
                continue;
            }
            let waits = protected && !copies.unknown.contains(offset);
            let kind = if waits { Kind::Merged } else { Kind::Unprotected };
            self.settle(page, store, SpaceEntry::new(kind, store.id, slot(page)));
        }
    }

    /// Pages of a protected span that were written between mapping and protection. They may be written
    /// freely from now on.
    fn find_cow_copies(&self, start: HostAddress, count: u32) -> Copies {
        let cow_copies = find_copies(&self.core.pagemap, start, count);
        for (first, pages) in cow_copies.copied.spans() {
            let bytes = pages as usize * PAGE_BYTES;
            // If this fails, the handler does it for whoever writes.
            let _ = self.core.store_faults.write_protect(start.plus_pages(first), bytes, false);
        }
        cow_copies
    }

    /// For a span that could not be protected: the kernel makes a copy of every page now, as it would
    /// when they are written, so that we know of each. Those that it has no memory for depend on
    /// their slots for good.
    fn copy_all(&self, start: HostAddress, count: u32) -> Copies {
        let bytes = count as usize * PAGE_BYTES;
        // Part of it may be protected, and whoever wrote there would wait for us.
        let _ = self.core.store_faults.write_protect(start, bytes, false);
        // SAFETY: making private copies of pages changes no content.
        let _ = unsafe { mapping::advise(start, bytes, libc::MADV_POPULATE_WRITE) };
        find_copies(&self.core.pagemap, start, count)
    }

    fn settle(&mut self, page: u32, store: &StoreView, entry: SpaceEntry) {
        let before = self.region.entry(self.page(page));
        store.add_mapped(entry.slot());
        self.region.set_entry(self.page(page), entry);
        self.core.leave_store(before);
        self.outcomes[page as usize] = PageOutcome::Merged;
    }

    fn settle_cow_copy(&mut self, page: u32) {
        let before = self.region.entry(self.page(page));
        // A page that had another slot has left that one.
        let entry = match before.kind() {
            Kind::Merged => before.with_kind(Kind::CowCopyLost),
            _ => SpaceEntry::COW_COPY,
        };
        self.region.set_entry(self.page(page), entry);
        self.core.leave_store(before);
        self.outcomes[page as usize] = PageOutcome::Never;
    }

    /// From here on a write to the range waits for the handler.
    fn make_writes_wait(&self, address: HostAddress, bytes: usize) -> bool {
        // SAFETY: the advice was the VMM's own, for this range.
        let advised = unsafe { self.region.advise_mapping(address, bytes) };
        // SAFETY: writes are served by the handler of the store's mappings.
        let registered = unsafe { self.core.store_faults.register(address, bytes, mode::WP) };
        advised.is_ok()
            && registered.is_ok()
            && self.core.store_faults.write_protect(address, bytes, true).is_ok()
    }
}

impl Core {
    /// Sees to it that pages that were absent before a failed mmap(2) are still mapped, and absent.
    pub(crate) fn close_gap(&self, region: &Region, start: HostAddress, pages: u32) {
        for address in (0..pages).map(|page| start.plus_pages(page)) {
            // The pages' content waits to come back here, so there is nothing to do but to try again.
            while !mapping::is_mapped(address, PAGE_BYTES) {
                if mapping::fill_gap(address, PAGE_BYTES).is_err() {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                // SAFETY: the caller holds the pages. Without the advice a child of fork gets a copy.
                let _ = unsafe { region.advise_anonymous(address, PAGE_BYTES) };
            }
        }
    }
}
