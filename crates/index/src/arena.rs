//! Rows that never move: chunks of them, allocated as they are first needed.
//!
//! A row is what a cache line is to its users: four leaves share one, six nodes are one. Rows are
//! reached by number, through one array of chunk pointers whose length is fixed when the arena is
//! made. Chunks come zeroed from the allocator, which for blocks of this size means untouched
//! memory from the kernel: a chunk costs what is used of it. They go back when the arena is
//! dropped.
//!
//! Concurrency: any thread may [`ensure`](Arena::ensure) a chunk and read rows of chunks that have
//! been ensured. Rows are atomics inside; the arena itself never writes them again.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::primitive::{AtomicPtr, Ordering};

/// A row of atomics.
///
/// # Safety
/// All zero bytes must be a valid value, and the type must have no drop glue.
pub(crate) unsafe trait Row: Sized + Send + Sync {
    /// A row as it comes from the allocator; loom's atomics cannot be made of zero bytes.
    #[cfg(loom)]
    fn zeroed() -> Self;
}

pub(crate) struct Arena<R: Row> {
    chunks: Box<[AtomicPtr<R>]>,
    rows: PhantomData<R>,
}

impl<R: Row> Arena<R> {
    /// Rows of a chunk: 256 KiB of them. Smaller would cost a longer array, larger would charge
    /// small indexes for room that they do not use.
    #[cfg(not(any(loom, miri)))]
    pub(crate) const CHUNK_ROWS: u32 = (256 << 10) / size_of::<R>() as u32;
    #[cfg(any(loom, miri))]
    pub(crate) const CHUNK_ROWS: u32 = 4;

    /// An arena of at most `rows` rows, rounded up to whole chunks.
    pub(crate) fn new(rows: u32) -> Self {
        let chunks = rows.div_ceil(Self::CHUNK_ROWS);
        let chunks = (0..chunks).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect();
        Self { chunks, rows: PhantomData }
    }

    /// Makes the chunk that holds `row` exist. False if there is no memory for it.
    pub(crate) fn ensure(&self, row: u32) -> bool {
        let chunk = &self.chunks[(row / Self::CHUNK_ROWS) as usize];
        // Acquire: pairs with the Release below, so that zeroes are seen.
        if !chunk.load(Ordering::Acquire).is_null() {
            return true;
        }
        let Some(fresh) = chunk::allocate::<R>(Self::CHUNK_ROWS as usize) else { return false };
        // Release: publishes the zeroes to every Acquire of this pointer. Acquire on failure: the
        // chunk of whoever came first is used next.
        let raced = chunk.compare_exchange(
            std::ptr::null_mut(),
            fresh.as_ptr(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if raced.is_err() {
            // SAFETY: `allocate` gave this block with this length, and nobody else has seen it.
            unsafe { chunk::release(fresh, Self::CHUNK_ROWS as usize) };
        }
        true
    }

    /// The row, which must lie in a chunk that has been ensured; see [`Self::get_checked`] for
    /// numbers from outside.
    #[inline]
    pub(crate) fn get(&self, row: u32) -> &R {
        self.get_checked(row).expect("an id that a link holds lies in an allocated chunk")
    }

    /// The row, or `None` if its chunk does not exist (yet).
    #[inline]
    pub(crate) fn get_checked(&self, row: u32) -> Option<&R> {
        let chunk = self.chunks.get((row / Self::CHUNK_ROWS) as usize)?;
        // Acquire: pairs with the Release of `ensure`.
        let rows = NonNull::new(chunk.load(Ordering::Acquire))?;
        // SAFETY: the pointer came from `allocate`, which made `CHUNK_ROWS` valid rows there; the
        // offset is below that; chunks are released only by `drop`, which has the arena alone.
        Some(unsafe { rows.add((row % Self::CHUNK_ROWS) as usize).as_ref() })
    }

    /// Bytes of the chunks that exist and of the array that leads to them.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let chunk_bytes = Self::CHUNK_ROWS as usize * size_of::<R>();
        // Relaxed: only whether a chunk is there matters, nothing in it is read.
        let chunks = self.chunks.iter().filter(|chunk| !chunk.load(Ordering::Relaxed).is_null());
        (chunks.count() * chunk_bytes + size_of_val(&*self.chunks)) as u64
    }
}

impl<R: Row> Drop for Arena<R> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            // Relaxed: `&mut self` already orders every `ensure` before this.
            if let Some(rows) = NonNull::new(chunk.load(Ordering::Relaxed)) {
                // SAFETY: `allocate` gave this block with this length; `&mut self` means that no
                // reference to a row is left.
                unsafe { chunk::release(rows, Self::CHUNK_ROWS as usize) };
            }
        }
    }
}

#[cfg(not(loom))]
mod chunk {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use super::Row;

    fn layout<R>(rows: usize) -> Layout {
        Layout::array::<R>(rows).expect("a chunk is far smaller than the address space")
    }

    /// `None` if the allocator has no memory.
    pub(super) fn allocate<R: Row>(rows: usize) -> Option<NonNull<R>> {
        const { assert!(size_of::<R>() != 0 && !std::mem::needs_drop::<R>()) };
        // SAFETY: the layout is not of size zero, asserted above. `Row` promises that zeroes are
        // valid rows.
        NonNull::new(unsafe { alloc_zeroed(layout::<R>(rows)) }.cast())
    }

    /// # Safety
    /// `chunk` came from `allocate` with the same `rows`, and is not used any more.
    pub(super) unsafe fn release<R: Row>(chunk: NonNull<R>, rows: usize) {
        // SAFETY: the caller's promise; the layout is the one `allocate` used.
        unsafe { dealloc(chunk.as_ptr().cast(), layout::<R>(rows)) };
    }
}

#[cfg(loom)]
mod chunk {
    use std::ptr::NonNull;

    use super::Row;

    pub(super) fn allocate<R: Row>(rows: usize) -> Option<NonNull<R>> {
        let chunk: Box<[R]> = (0..rows).map(|_| R::zeroed()).collect();
        NonNull::new(Box::into_raw(chunk).cast())
    }

    /// # Safety
    /// `chunk` came from `allocate` with the same `rows`, and is not used any more.
    pub(super) unsafe fn release<R: Row>(chunk: NonNull<R>, rows: usize) {
        // SAFETY: `allocate` made a box of a slice of this length of this block.
        drop(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(chunk, rows).as_ptr()) });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    // SAFETY: zero is a valid integer; an atomic has no drop glue.
    unsafe impl Row for AtomicU64 {}

    #[test]
    fn rows_exist_once_ensured_and_start_at_zero() {
        let arena = Arena::<AtomicU64>::new(3 * Arena::<AtomicU64>::CHUNK_ROWS);
        let row = Arena::<AtomicU64>::CHUNK_ROWS + 1;
        assert!(arena.get_checked(row).is_none());
        assert!(arena.ensure(row));
        assert_eq!(arena.get(row).load(Ordering::Relaxed), 0);
        assert!(arena.get_checked(0).is_none());
        assert!(arena.get_checked(3 * Arena::<AtomicU64>::CHUNK_ROWS).is_none());
    }

    #[test]
    fn a_chunk_is_allocated_once_however_many_want_it() {
        let arena = Arena::<AtomicU64>::new(Arena::<AtomicU64>::CHUNK_ROWS);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert!(arena.ensure(0));
                    arena.get(0).fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(arena.get(0).load(Ordering::Relaxed), 4);
    }
}
