//! Moving pages between a guest and a staging area, and being sure of where each one is.
//!
//! `UFFDIO_MOVE` may stop at any page for many reasons, and on Linux 6.18 it reports `EEXIST` for a
//! page that it did move (a retry inside the kernel that succeeds is not counted). So what really
//! happened is asked of the staging area, which nobody else touches. Where the kernel does not say, all
//! pages are [given back](crate::return_pages), which needs no answer.

use std::{io, thread, time::Duration};

use bindery_sys::{
    mapping::{self, Mapping},
    pagemap::{Extent, Query, category},
    userfault::{Stopped, mode},
};
use bindery_units::{HostAddress, PAGE_BYTES};

use crate::{
    Core,
    descriptors::{Pagemap, Userfault},
    region::Region,
    return_pages::give_back,
};

/// The most pages in transit at once: one bit each in a [`PageSet`].
pub(crate) const WINDOW_PAGES: u32 = u64::BITS;

/// Pages of a staging area: so many may wait to be freed.
const STAGING_PAGES: u32 = 8 * WINDOW_PAGES;

/// `MADV_DONTNEED` for memory that may be locked (Linux 5.18), which libc does not name yet.
pub(crate) const MADV_DONTNEED_LOCKED: i32 = 24;

/// Pages of a run, bit `n` for the run's page `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageSet(pub(crate) u64);

impl PageSet {
    pub(crate) const fn first(count: u32) -> Self {
        Self(if count >= WINDOW_PAGES { u64::MAX } else { (1 << count) - 1 })
    }

    pub(crate) const fn contains(self, page: u32) -> bool {
        self.0 >> page & 1 == 1
    }

    pub(crate) const fn insert(&mut self, page: u32) {
        self.0 |= 1 << page;
    }

    pub(crate) const fn remove(&mut self, page: u32) {
        self.0 &= !(1 << page);
    }

    /// The set with `count` pages from `first` on.
    pub(crate) const fn with_span(self, first: u32, count: u32) -> Self {
        Self(self.0 | Self::first(count).0 << first)
    }

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The pages, ascending.
    pub(crate) fn pages(self) -> impl Iterator<Item = u32> {
        (0..WINDOW_PAGES).filter(move |&page| self.contains(page))
    }

    /// The maximal runs of consecutive pages, as (first, count).
    pub(crate) fn spans(self) -> impl Iterator<Item = (u32, u32)> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let first = rest.trailing_zeros();
            let count = (rest >> first).trailing_ones();
            rest &= !(Self::first(count).0 << first);
            Some((first, count))
        })
    }
}

/// Memory of our own that a guest's pages are moved to, out of everybody's reach.
///
/// Runs use it window after window, and it is emptied when none is left: emptying costs a flush of
/// the TLB of every CPU that runs the guest. What waits for that is at most [`STAGING_PAGES`].
///
/// Nobody else uses this memory, but others may look at it: mlockall(2) populates it, and so does a
/// debugger that reads all of it. So that a page is here does not say that it was moved
/// here; that it is gone from the guest as well does.
#[derive(Debug)]
pub(crate) struct Staging {
    mapping: Mapping,
    /// The first page of the window; those before it were used.
    window: u32,
}

impl Staging {
    /// # Errors
    /// As mmap(2) and `UFFDIO_REGISTER`.
    pub(crate) fn new(guest_faults: &Userfault) -> io::Result<Self> {
        let mapping = Mapping::anonymous(STAGING_PAGES as usize * PAGE_BYTES)?;
        let (start, bytes) = (mapping.address(), mapping.bytes());
        // A child of fork must not share pages in transit, or they could not be moved back, and a core
        // dump must not have what the VMM keeps out of it.
        mapping.keep_from_children()?;
        mapping.keep_from_dumps()?;
        // SAFETY: the memory is ours. The target of a move must be registered, for writes only, since
        // nobody but us touches it.
        unsafe {
            mapping::advise(start, bytes, libc::MADV_NOHUGEPAGE)?;
            guest_faults.register(start, bytes, mode::WP)?;
        }
        Ok(Self { mapping, window: 0 })
    }

    fn address(&self, page: u32) -> HostAddress {
        assert!(page < WINDOW_PAGES, "a window is as long as the longest run");
        self.mapping.address().plus_pages(self.window + page)
    }

    /// Where the run's page is that was moved here.
    pub(crate) fn page(&self, page: u32) -> *const u8 {
        self.address(page).0 as *const u8
    }

    /// What is left in the window's first `count` pages is wanted no more.
    pub(crate) fn retire(&mut self, count: u32) {
        self.window += count;
        if self.window + WINDOW_PAGES > STAGING_PAGES {
            self.empty();
        }
    }

    /// Frees the pages that were retired.
    pub(crate) fn empty(&mut self) {
        if self.window == 0 {
            return;
        }
        let (start, bytes) = (self.mapping.address(), self.mapping.bytes());
        // SAFETY: staging is ours, and what is left in it is wanted no more.
        let result = unsafe { mapping::advise(start, bytes, MADV_DONTNEED_LOCKED) };
        assert!(result.is_ok(), "private memory can be emptied, locked or not");
        self.window = 0;
    }

    /// Moves the `wanted` pages, `guest` being page 0, into staging. Returns those that came. The others
    /// are where they were: pinned, shared, locked or absent.
    ///
    /// # Safety
    /// The caller holds the pages, which are the region's.
    pub(crate) unsafe fn take(
        &mut self,
        core: &Core,
        region: &Region,
        guest: HostAddress,
        wanted: PageSet,
    ) -> PageSet {
        // SAFETY: the caller's contract; staging is ours.
        let came = unsafe { take(core, region, self.address(0), guest, wanted) };
        let Some(came) = came else {
            // Copies may have stayed behind.
            self.retire(wanted.end());
            return PageSet::default();
        };
        let here = || find_pages(&core.pagemap, self.address(0), wanted.end(), HERE);
        if came.is_empty() && here().is_none_or(|here| !here.is_empty()) {
            // Somebody populated the window: no page will ever come to these.
            self.retire(wanted.end());
        }
        came
    }

    /// Moves the `wanted` pages back: see [`give_back`].
    ///
    /// # Safety
    /// As there.
    #[must_use = "copies that stay behind would be taken for the next run's pages"]
    pub(crate) unsafe fn give_back(
        &self,
        core: &Core,
        region: &Region,
        guest: HostAddress,
        wanted: PageSet,
    ) -> bool {
        // SAFETY: the caller's contract; staging is ours.
        unsafe { give_back(core, region, self.address(0), guest, wanted) }
    }
}

/// Moves the `wanted` pages from `guest` into `area`. Returns those that came; the others are where they
/// were: pinned, shared, locked or absent. `None` if that cannot be told: then all are where they were,
/// and copies of some may be in the area.
///
/// # Safety
/// The caller holds the guest's pages, which are the region's, and owns the area, which is registered
/// for writes. What is in the area already is zero.
pub(crate) unsafe fn take(
    core: &Core,
    region: &Region,
    area: HostAddress,
    guest: HostAddress,
    wanted: PageSet,
) -> Option<PageSet> {
    let mut smooth = true;
    for (first, count) in wanted.spans() {
        let (source, target) = (guest.plus_pages(first), area.plus_pages(first));
        // SAFETY: the caller's contract.
        smooth &= unsafe { move_span(&core.guest_faults, target, source, count) };
    }
    if smooth {
        return Some(wanted);
    }
    let here = find_pages(&core.pagemap, area, wanted.end(), HERE);
    let stayed = find_pages(&core.pagemap, guest, wanted.end(), HERE);
    if let (Some(here), Some(stayed)) = (here, stayed) {
        return Some(wanted.and(here).without(stayed));
    }
    // SAFETY: the caller's contract. A page that did not come is where it was, and its place in the area
    // is absent or zero.
    unsafe { give_back(core, region, area, guest, wanted) };
    None
}

impl PageSet {
    /// One more than the highest page.
    pub(crate) const fn end(self) -> u32 {
        u64::BITS - self.0.leading_zeros()
    }
}

/// Pages that are there, swapped out or not.
pub(crate) const HERE: Query = Query {
    require: 0,
    any_of: category::PRESENT | category::SWAPPED,
    invert: 0,
    report: category::PRESENT,
    protect: false,
    refuse_unprotectable: false,
};

/// Pages that are in memory, and in the page table.
pub(crate) const PRESENT: Query = Query {
    require: category::PRESENT,
    any_of: 0,
    invert: 0,
    report: category::PRESENT,
    protect: false,
    refuse_unprotectable: false,
};

/// Pages of a guest that were written since they were protected.
pub(crate) const WRITTEN: Query = Query {
    require: category::WRITTEN,
    any_of: 0,
    invert: 0,
    // Not `WRITTEN` alone: the kernel's short cut for that took pages in swap for protected ones
    // (see `pagemap_scan_pmd_entry`).
    report: category::WRITTEN | category::PRESENT,
    protect: false,
    refuse_unprotectable: false,
};

/// Zero pages that are not protected; they are from then on.
const UNPROTECTED_ZEROS: Query = Query {
    require: category::WP_ALLOWED | category::WRITTEN | category::PRESENT | category::ZERO,
    any_of: category::HUGE,
    invert: category::HUGE,
    report: category::ZERO,
    protect: true,
    refuse_unprotectable: false,
};

impl Core {
    /// Protects zero pages that the caller has just placed among at most [`WINDOW_PAGES`], so that no scan reports
    /// them until they are written. One that was written by now is left as it is. Where the kernel does not do it,
    /// the next scan reports them for nothing.
    pub(crate) fn protect_zeros(&self, start: HostAddress, count: u32) {
        let mut extents = [Extent::default(); WINDOW_PAGES as usize];
        let bytes = count as usize * PAGE_BYTES;
        // One try: a guest may be waiting for what the caller holds.
        let _ = self.pagemap.scan(start, bytes, UNPROTECTED_ZEROS, &mut extents);
    }
}

/// Returns which of `count` pages from `start` on the query finds, unless the kernel does not say.
pub(crate) fn find_pages(
    pagemap: &Pagemap,
    start: HostAddress,
    count: u32,
    query: Query,
) -> Option<PageSet> {
    let mut found = PageSet::default();
    scan_window(pagemap, start, count, query, |pages, _| found = found.or(pages)).then_some(found)
}

/// Tries of one scan while the kernel has no memory for its answer. Pages may be in transit meanwhile.
const SCANS_MAX: u32 = 100;

/// Between two tries.
const SCAN_PAUSE: Duration = Duration::from_micros(100);

/// Calls `each` with those of `count` pages from `start` on that the query finds, by the categories that
/// they are of. Returns false if the kernel does not say, which [`Pagemap::note`] has then: the caller
/// goes on as if each page could be anything.
#[must_use = "no page was found, and any may be there"]
pub(crate) fn scan_window(
    pagemap: &Pagemap,
    start: HostAddress,
    count: u32,
    query: Query,
    mut each: impl FnMut(PageSet, u64),
) -> bool {
    let mut extents = [Extent::default(); WINDOW_PAGES as usize];
    let bytes = count as usize * PAGE_BYTES;
    let mut tries = 0;
    let found = loop {
        tries += 1;
        match pagemap.scan(start, bytes, query, &mut extents) {
            Ok(scanned) => break scanned.extents,
            Err(error) if may_pass(errno_of(&error)) && tries < SCANS_MAX => {
                thread::sleep(SCAN_PAUSE);
            }
            Err(error) => {
                pagemap.note(errno_of(&error));
                return false;
            }
        }
    };
    for extent in &extents[..found] {
        let first = ((extent.start as usize - start.0) / PAGE_BYTES) as u32;
        each(PageSet::default().with_span(first, extent.pages() as u32), extent.categories);
    }
    true
}

/// Returns true for what the kernel says where the same call may succeed a moment later.
pub(crate) const fn may_pass(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::EINTR | libc::ENOMEM)
}

/// Returns the kernel's number of an error.
pub(crate) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Tries of one page that the kernel asks to be tried again.
const RETRIES_MAX: u32 = 64;

/// Moves a span, page by page past whatever stops it. Returns true if the kernel reported every page
/// moved, so that no rescan is needed.
///
/// # Safety
/// As for [`Userfault::move_pages`].
pub(crate) unsafe fn move_span(
    faults: &Userfault,
    target: HostAddress,
    source: HostAddress,
    count: u32,
) -> bool {
    let (mut at, mut smooth, mut retries) = (0, true, 0);
    // A range may lie in several mappings after pages came back from the store: then all at once
    // is EINVAL (or ENOENT) and the span is halved until it fits.
    let mut step = count;
    while at < count {
        let pages = step.min(count - at);
        let bytes = pages as usize * PAGE_BYTES;
        // SAFETY: a part of the caller's span.
        let moved =
            unsafe { faults.move_pages(target.plus_pages(at), source.plus_pages(at), bytes) };
        let Err(Stopped { done, errno }) = moved else {
            at += pages;
            step = (step * 2).min(count);
            continue;
        };
        let done_pages = (done / PAGE_BYTES) as u32;
        at += done_pages;
        if done_pages > 0 {
            retries = 0;
            smooth &= errno == libc::EAGAIN;
            continue;
        }
        match errno {
            libc::EAGAIN if retries < RETRIES_MAX => retries += 1,
            libc::EINVAL | libc::ENOENT if pages > 1 => step = pages / 2,
            // This page stays, or moved without being counted; go on behind it.
            _ => {
                smooth = false;
                retries = 0;
                at += 1;
            }
        }
    }
    smooth
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spans_are_the_set_in_maximal_runs(bits: u64) {
            let mut rebuilt = PageSet::default();
            let mut last_end = None;
            for (first, count) in PageSet(bits).spans() {
                prop_assert!(count > 0 && last_end.is_none_or(|end| first > end));
                (first..first + count).for_each(|page| rebuilt.insert(page));
                last_end = Some(first + count);
            }
            prop_assert_eq!(rebuilt, PageSet(bits));
        }
    }

    #[test]
    fn the_full_set_has_one_span() {
        assert_eq!(PageSet::first(64).spans().collect::<Vec<_>>(), [(0, 64)]);
        assert_eq!(PageSet::first(0).spans().count(), 0);
        assert_eq!(PageSet::first(64).end(), 64);
    }
}
