//! Blocks of zeroed memory, on huge pages where they are long enough.
//!
//! A search goes to two or three places that no cache and, on pages of 4 KiB, no TLB expects. Where
//! the kernel gives huge pages to those who ask (`transparent_hugepage/enabled` is `madvise` or
//! `always`), a large index has its roots and most of its leaves on them: that takes a sixth off a
//! search. Elsewhere asking costs nothing.

use std::ops::Deref;
use std::ptr::NonNull;

/// Types that blocks are made of.
///
/// # Safety
/// All zero bytes must be a valid value, and the type must have no drop glue.
pub(crate) unsafe trait Zeroable: Sized + Send + Sync {
    /// A value as it comes from the allocator; loom's atomics cannot be made of zero bytes.
    #[cfg(loom)]
    fn zeroed() -> Self;
}

/// A slice that is zero at first, and never moves.
pub(crate) struct Block<T: Zeroable> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: a block owns its values, as a boxed slice does; `Zeroable` values are `Send` and `Sync`.
unsafe impl<T: Zeroable> Send for Block<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable> Sync for Block<T> {}

impl<T: Zeroable> Block<T> {
    /// A block of `len` zeroed values; `None` if there is no memory for it.
    pub(crate) fn new(len: usize) -> Option<Self> {
        assert!(len != 0, "a block holds something");
        Some(Self { start: allocation::zeroed(len)?, len })
    }

    /// Where its values are, for [`Self::from_start`] to own later.
    pub(crate) fn into_start(self) -> NonNull<T> {
        let start = self.start;
        std::mem::forget(self);
        start
    }

    /// Owns a block again.
    ///
    /// # Safety
    /// `start` came from [`Self::into_start`] of a block of this length, which nobody else owns.
    pub(crate) unsafe fn from_start(start: NonNull<T>, len: usize) -> Self {
        Self { start, len }
    }
}

impl<T: Zeroable> Deref for Block<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `zeroed` made `len` valid values there, which the block owns.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.len).as_ref() }
    }
}

impl<T: Zeroable> Drop for Block<T> {
    fn drop(&mut self) {
        // SAFETY: `zeroed` gave this memory for this length; the block owns it and is not used any
        // more.
        unsafe { allocation::release(self.start, self.len) };
    }
}

#[cfg(not(loom))]
mod allocation {
    use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use bindery_sys::mapping::HUGE_PAGE_BYTES;

    use super::Zeroable;

    fn layout<T>(len: usize) -> Layout {
        let layout = Layout::array::<T>(len).expect("a block is smaller than the address space");
        let aligned = if layout.size() < HUGE_PAGE_BYTES {
            Ok(layout)
        } else {
            layout.align_to(HUGE_PAGE_BYTES)
        };
        aligned.expect("a block is smaller than the address space")
    }

    pub(super) fn zeroed<T: Zeroable>(len: usize) -> Option<NonNull<T>> {
        const { assert!(size_of::<T>() != 0 && !std::mem::needs_drop::<T>()) };
        let layout = layout::<T>(len);
        // SAFETY: the layout is not of size zero: the type is not, asserted above, nor the length.
        let start = unsafe {
            if layout.align() < HUGE_PAGE_BYTES { alloc_zeroed(layout) } else { alloc_huge(layout) }
        };
        // `Zeroable` promises that zeroes are valid.
        NonNull::new(start).map(NonNull::cast)
    }

    /// Zeroed memory on huge pages, if there are any. Advised before it is zeroed: what an allocator
    /// is to align it zeroes by writing, and what was written to once has its pages.
    ///
    /// # Safety
    /// As for [`alloc`].
    unsafe fn alloc_huge(layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return start;
        }
        #[cfg(all(target_os = "linux", not(miri)))]
        {
            let address = bindery_units::HostAddress(start as usize);
            // SAFETY: this advice changes how memory is backed, not what is in it; the range is
            // the memory just allocated.
            // That it fails means that the kernel has no huge pages: then there are none.
            drop(unsafe {
                bindery_sys::mapping::advise(address, layout.size(), libc::MADV_HUGEPAGE)
            });
        }
        // SAFETY: the memory just allocated is as long.
        unsafe { start.write_bytes(0, layout.size()) };
        start
    }

    /// # Safety
    /// `start` came from `zeroed` with the same `len`, and is not used any more.
    pub(super) unsafe fn release<T: Zeroable>(start: NonNull<T>, len: usize) {
        // SAFETY: the caller's promise; the layout is the one `zeroed` used.
        unsafe { dealloc(start.as_ptr().cast(), layout::<T>(len)) };
    }
}

#[cfg(loom)]
mod allocation {
    use std::ptr::NonNull;

    use super::Zeroable;

    pub(super) fn zeroed<T: Zeroable>(len: usize) -> Option<NonNull<T>> {
        let block: Box<[T]> = (0..len).map(|_| T::zeroed()).collect();
        NonNull::new(Box::into_raw(block).cast())
    }

    /// # Safety
    /// `start` came from `zeroed` with the same `len`, and is not used any more.
    pub(super) unsafe fn release<T: Zeroable>(start: NonNull<T>, len: usize) {
        // SAFETY: `zeroed` made a box of a slice of this length of this memory.
        drop(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(start, len).as_ptr()) });
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, miri))))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bindery_sys::mapping::{HUGE_PAGE_BYTES, Mapping};
    use bindery_sys::pagemap::{Extent, Pagemap, Query, category};
    use bindery_units::HostAddress;

    use super::*;

    /// Sixteen huge pages: that none at all is to be had of so many is unlikely, where there are any.
    const BYTES: usize = 16 * HUGE_PAGE_BYTES;

    fn has_huge_pages(start: *const u8) -> bool {
        let query = Query { require: category::HUGE, report: category::HUGE, ..Query::default() };
        let mut extents = [Extent::default(); 16];
        let pagemap = Pagemap::of_self().expect("pagemap");
        let start = HostAddress(start as usize);
        pagemap.scan(start, BYTES, query, &mut extents).is_ok_and(|scanned| scanned.extents > 0)
    }

    #[test]
    fn a_long_block_is_zero_and_on_huge_pages_where_there_are_any() {
        let block = Block::<AtomicU64>::new(BYTES / size_of::<AtomicU64>()).unwrap();
        assert!(block.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        let asked_for = Mapping::huge(BYTES).unwrap();
        for at in (0..BYTES).step_by(HUGE_PAGE_BYTES) {
            // SAFETY: the mapping is this test's own, writable and as long.
            unsafe { asked_for.as_ptr().add(at).write(1) };
        }
        if !has_huge_pages(asked_for.as_ptr()) {
            bindery_testkit::skipped!("no huge pages are given to those who ask for them here");
            return;
        }
        assert!(has_huge_pages(block.start.as_ptr().cast()), "asked for too late");
    }
}
