//! Moving pages between a guest and a staging area, and being sure of where each one is.
//!
//! `UFFDIO_MOVE` may stop at any page for many reasons, and on Linux 6.18 it reports `EEXIST` for a
//! page that it did move (a retry inside the kernel that succeeds is not counted). So what really
//! happened is asked of the staging area, which nobody else touches.

use std::{io, thread, time::Duration};

use bindery_sys::{
    mapping::{self, Mapping},
    pagemap::{Extent, Pagemap, Query, category},
    userfault::{Stopped, Userfault, mode},
};
use bindery_units::{HostAddress, PAGE_BYTES};

/// The most pages in staging at once: one bit each in a [`PageSet`].
pub(crate) const STAGING_PAGES: u32 = u64::BITS;

/// Pages of a run, bit `n` for the run's page `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageSet(pub(crate) u64);

impl PageSet {
    pub(crate) const fn first(count: u32) -> Self {
        Self(if count >= STAGING_PAGES { u64::MAX } else { (1 << count) - 1 })
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

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The pages, ascending.
    pub(crate) fn pages(self) -> impl Iterator<Item = u32> {
        (0..STAGING_PAGES).filter(move |&page| self.contains(page))
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
#[derive(Debug)]
pub(crate) struct Staging {
    mapping: Mapping,
}

impl Staging {
    /// # Errors
    /// As mmap(2) and `UFFDIO_REGISTER`.
    pub(crate) fn new(guest_faults: &Userfault) -> io::Result<Self> {
        let mapping = Mapping::anonymous(STAGING_PAGES as usize * PAGE_BYTES)?;
        let (start, bytes) = (mapping.address(), mapping.bytes());
        // SAFETY: the memory is ours. A child of fork must not share pages in transit, or they
        // could not be moved back; the target of a move must be registered, for writes only, since
        // nobody but us touches it.
        unsafe {
            mapping::advise(start, bytes, libc::MADV_NOHUGEPAGE)?;
            mapping::advise(start, bytes, libc::MADV_DONTFORK)?;
            guest_faults.register(start, bytes, mode::WP)?;
        }
        Ok(Self { mapping })
    }

    pub(crate) fn address(&self, page: u32) -> HostAddress {
        assert!(page < STAGING_PAGES, "staging is as long as its longest run");
        self.mapping.address().plus_pages(page)
    }

    pub(crate) fn page(&self, page: u32) -> *const u8 {
        self.address(page).0 as *const u8
    }

    /// Throws away what is staged.
    pub(crate) fn clear(&self, count: u32) {
        let bytes = count as usize * PAGE_BYTES;
        // SAFETY: staging is ours, and what is left in it is wanted no more.
        let result = unsafe { mapping::advise(self.mapping.address(), bytes, libc::MADV_DONTNEED) };
        assert!(result.is_ok(), "staging can be emptied");
    }

    /// Which pages of staging are there.
    fn present(&self, pagemap: &Pagemap, count: u32) -> PageSet {
        find_pages(pagemap, self.mapping.address(), count, PRESENT)
    }

    /// Moves the `wanted` pages from `guest` into staging, and says which came. Those that did not
    /// are where they were: pinned, shared, locked or absent.
    ///
    /// # Safety
    /// The caller holds the guest's range, and staging is empty.
    pub(crate) unsafe fn take(
        &self,
        faults: &Userfault,
        pagemap: &Pagemap,
        guest: HostAddress,
        wanted: PageSet,
    ) -> PageSet {
        let mut smooth = true;
        for (first, count) in wanted.spans() {
            let (source, target) = (guest.plus_pages(first), self.address(first));
            // SAFETY: the caller's contract; staging is ours.
            smooth &= unsafe { move_span(faults, target, source, count) };
        }
        if smooth { wanted } else { self.present(pagemap, wanted.end()) }
    }

    /// Moves the `wanted` pages back. Does not return before every one of them is where it was, or
    /// the guest has unmapped the place.
    ///
    /// # Safety
    /// The caller holds the guest's range, the pages are staged and their places in the guest are
    /// absent and registered.
    pub(crate) unsafe fn give_back(
        &self,
        faults: &Userfault,
        pagemap: &Pagemap,
        guest: HostAddress,
        wanted: PageSet,
    ) {
        let mut left = wanted;
        for attempt in 0u32.. {
            let mut smooth = true;
            for (first, count) in left.spans() {
                let (source, target) = (self.address(first), guest.plus_pages(first));
                // SAFETY: the caller's contract; staging is ours.
                smooth &= unsafe { move_span(faults, target, source, count) };
            }
            if smooth {
                return;
            }
            left = PageSet(left.0 & self.present(pagemap, wanted.end()).0);
            for page in left.pages() {
                // SAFETY: as above; what is copied is the page itself.
                if unsafe { copy_back(faults, self.address(page), guest.plus_pages(page)) } {
                    left.remove(page);
                }
            }
            if left.is_empty() {
                return;
            }
            // Only memory pressure or changing mappings bring us here. The content exists nowhere
            // else, so there is nothing to do but to try again.
            thread::sleep(Duration::from_micros(u64::from(attempt.min(1000))));
        }
    }
}

impl PageSet {
    /// One more than the highest page.
    const fn end(self) -> u32 {
        u64::BITS - self.0.leading_zeros()
    }
}

/// Pages that are there.
pub(crate) const PRESENT: Query =
    Query { require: category::PRESENT, report: category::PRESENT, invert: 0, protect: false };

/// Pages that are there and not a file's: in a mapping of the store, those the kernel copied.
pub(crate) const COPIED: Query = Query {
    require: category::PRESENT | category::FILE,
    invert: category::FILE,
    report: category::PRESENT,
    protect: false,
};

/// Which of `count` pages from `start` on the query finds.
pub(crate) fn find_pages(
    pagemap: &Pagemap,
    start: HostAddress,
    count: u32,
    query: Query,
) -> PageSet {
    let mut extents = [Extent::default(); STAGING_PAGES as usize];
    let scanned = pagemap.scan(start, count as usize * PAGE_BYTES, query, &mut extents);
    let scanned = scanned.expect("a process's own memory can be looked at");
    let mut found = PageSet::default();
    for extent in &extents[..scanned.extents] {
        let first = ((extent.start as usize - start.0) / PAGE_BYTES) as u32;
        for page in first..first + extent.pages() as u32 {
            found.insert(page);
        }
    }
    found
}

/// Tries of one page that the kernel asks to be tried again.
const RETRIES_MAX: u32 = 64;

/// Moves a span, page by page past whatever stops it. Whether all of it moved without a question.
///
/// # Safety
/// As for [`Userfault::move_pages`].
unsafe fn move_span(
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

/// Puts a page back by copying it, where it cannot be moved. Whether it is done with.
///
/// # Safety
/// As for [`Userfault::copy`].
unsafe fn copy_back(faults: &Userfault, source: HostAddress, target: HostAddress) -> bool {
    // SAFETY: the caller's contract.
    match unsafe { faults.copy(target, source, PAGE_BYTES) } {
        Ok(()) => true,
        // The guest's owner unmapped the place (or put something else there) by a call of its own
        // while the page was held: then the page was given up by its owner.
        Err(Stopped { errno, .. }) => matches!(errno, libc::ENOENT | libc::EEXIST | libc::EINVAL),
    }
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
