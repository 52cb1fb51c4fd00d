//! Rows that never move: memory for them, allocated as they are first needed.
//!
//! A row is what a cache line is to its users: four leaves share one, six nodes are one. Rows are
//! reached by number, through one array of chunk pointers whose length is fixed when the arena is
//! made. A chunk is 256 KiB. The first ones are allocated one by one, so that a small index is
//! small; from then on, eight at a time come as one block of the size of a huge page, by when that
//! is little more than a quarter of what is in use. Memory goes back when the arena is dropped.
//!
//! Concurrency: any thread may [`ensure`](Arena::ensure) a chunk and read rows of chunks that have
//! been ensured. Rows are atomics inside; the arena itself never writes them.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use crate::block::{Block, Zeroable};
use crate::primitive::{AtomicPtr, Ordering};

/// The chunks that are allocated one by one, and how many come in a block after that.
#[cfg(not(any(loom, miri)))]
mod shape {
    pub(super) const CHUNK_BYTES: u32 = 256 << 10;
    pub(super) const SINGLE_CHUNKS: u32 = 32;
    pub(super) const BLOCK_CHUNKS: u32 = 8;
}
#[cfg(any(loom, miri))]
mod shape {
    pub(super) const CHUNK_BYTES: u32 = 256;
    pub(super) const SINGLE_CHUNKS: u32 = 2;
    pub(super) const BLOCK_CHUNKS: u32 = 2;
}

use shape::{BLOCK_CHUNKS, CHUNK_BYTES, SINGLE_CHUNKS};

const _: () = assert!(SINGLE_CHUNKS.is_multiple_of(BLOCK_CHUNKS));

pub(crate) struct Arena<R: Zeroable> {
    chunks: Box<[AtomicPtr<R>]>,
    rows: PhantomData<R>,
}

impl<R: Zeroable> Arena<R> {
    /// Rows of a chunk.
    pub(crate) const CHUNK_ROWS: u32 =
        if cfg!(loom) { 4 } else { CHUNK_BYTES / size_of::<R>() as u32 };

    /// An arena of at most `rows` rows, rounded up to whole blocks.
    pub(crate) fn new(rows: u32) -> Self {
        let chunks = rows.div_ceil(Self::CHUNK_ROWS);
        let chunks =
            if chunks <= SINGLE_CHUNKS { chunks } else { chunks.next_multiple_of(BLOCK_CHUNKS) };
        let chunks = (0..chunks).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect();
        Self { chunks, rows: PhantomData }
    }

    /// Makes the chunk that holds `row` exist. False if there is no memory for it.
    pub(crate) fn ensure(&self, row: u32) -> bool {
        let chunk = row / Self::CHUNK_ROWS;
        // Acquire: pairs with the Release in `publish`.
        if !self.chunks[chunk as usize].load(Ordering::Acquire).is_null() {
            return true;
        }
        let block = block_of(chunk);
        let Some(start) = self.ensure_block(&block) else { return false };
        // Whoever comes here for a chunk of the block finds the same addresses.
        for (number, chunk) in block.enumerate().skip(1) {
            // SAFETY: the block holds the rows of all its chunks.
            let rows = unsafe { start.add(number * Self::CHUNK_ROWS as usize) };
            self.publish(chunk, rows);
        }
        true
    }

    /// Makes the next block exist if `rows`, which are being given out now, begin the last chunk
    /// before it. Each row is given out once: so one thread zeroes the block, and those that come to
    /// it later do not each make one, of which all but one are thrown away.
    pub(crate) fn ensure_ahead(&self, rows: Range<u32>) {
        let Some(last) = rows.end.checked_sub(1) else { return };
        let chunk = last / Self::CHUNK_ROWS;
        let begins_chunk = rows.contains(&(chunk * Self::CHUNK_ROWS));
        let next = chunk + 1;
        let begins_block = next >= SINGLE_CHUNKS && block_of(next).start == next;
        if begins_chunk && begins_block && (next as usize) < self.chunks.len() {
            // Where there is no memory, whoever needs it is told.
            self.ensure(next * Self::CHUNK_ROWS);
        }
    }

    /// Where the block that holds these chunks starts: its first chunk says.
    fn ensure_block(&self, block: &Range<u32>) -> Option<NonNull<R>> {
        // Acquire: pairs with the Release in `publish`.
        let start = self.chunks[block.start as usize].load(Ordering::Acquire);
        if let Some(start) = NonNull::new(start) {
            return Some(start);
        }
        let len = Self::block_rows(block);
        let fresh = Block::new(len)?.into_start();
        let Some(first) = self.publish(block.start, fresh) else { return Some(fresh) };
        // SAFETY: the block was made above with this length, and nobody else has seen it.
        drop(unsafe { Block::from_start(fresh, len) });
        Some(first)
    }

    /// Sets the chunk's address, unless it is set: then that is returned.
    fn publish(&self, chunk: u32, rows: NonNull<R>) -> Option<NonNull<R>> {
        // Release: publishes the zeroes to every Acquire of this pointer. Acquire on failure: the
        // rows of whoever came first are used next.
        self.chunks[chunk as usize]
            .compare_exchange(
                std::ptr::null_mut(),
                rows.as_ptr(),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .err()
            .and_then(NonNull::new)
    }

    fn block_rows(block: &Range<u32>) -> usize {
        block.len() * Self::CHUNK_ROWS as usize
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
        // Acquire: pairs with the Release in `publish`.
        let rows = NonNull::new(chunk.load(Ordering::Acquire))?;
        // SAFETY: the pointer is to a chunk, `CHUNK_ROWS` valid rows of a `Block`; the offset is
        // below that; blocks are released only by `drop`, which has the arena alone.
        Some(unsafe { rows.add((row % Self::CHUNK_ROWS) as usize).as_ref() })
    }

    /// The first chunks of the blocks that exist, and the blocks.
    fn blocks(&self) -> impl Iterator<Item = (NonNull<R>, Range<u32>)> {
        let firsts = (0..self.chunks.len() as u32).filter(|chunk| block_of(*chunk).start == *chunk);
        firsts.filter_map(|first| {
            // Relaxed: nothing behind the pointer is read by those who ask for blocks.
            let start = self.chunks[first as usize].load(Ordering::Relaxed);
            Some((NonNull::new(start)?, block_of(first)))
        })
    }

    /// Bytes of the blocks that exist and of the array that leads to them.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let rows: usize = self.blocks().map(|(_, block)| Self::block_rows(&block)).sum();
        (rows * size_of::<R>() + size_of_val(&*self.chunks)) as u64
    }
}

/// The chunks that are allocated together with this one.
fn block_of(chunk: u32) -> Range<u32> {
    if chunk < SINGLE_CHUNKS {
        return chunk..chunk + 1;
    }
    let first = chunk - chunk % BLOCK_CHUNKS;
    first..first + BLOCK_CHUNKS
}

impl<R: Zeroable> Drop for Arena<R> {
    fn drop(&mut self) {
        for (start, block) in self.blocks() {
            // SAFETY: `ensure_block` made a block of this length of it; `&mut self` means that no
            // reference to a row is left, and orders every `ensure` before this.
            drop(unsafe { Block::from_start(start, Self::block_rows(&block)) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    // SAFETY: zero is a valid integer; an atomic has no drop glue.
    unsafe impl Zeroable for AtomicU64 {}

    const CHUNK: u32 = Arena::<AtomicU64>::CHUNK_ROWS;

    #[test]
    fn rows_exist_once_ensured_and_start_at_zero() {
        let arena = Arena::<AtomicU64>::new(3 * CHUNK);
        assert!(arena.get_checked(CHUNK + 1).is_none());
        assert!(arena.ensure(CHUNK + 1));
        assert_eq!(arena.get(CHUNK + 1).load(Ordering::Relaxed), 0);
        assert!(arena.get_checked(0).is_none());
        assert!(arena.get_checked(u32::MAX).is_none());
    }

    #[test]
    fn every_row_has_a_place_of_its_own() {
        let chunks = SINGLE_CHUNKS + 2 * BLOCK_CHUNKS - 1;
        let arena = Arena::<AtomicU64>::new(chunks * CHUNK);
        // From the end, so that blocks are entered in the middle.
        let rows =
            || (0..chunks).rev().flat_map(|chunk| [chunk * CHUNK + CHUNK - 1, chunk * CHUNK]);
        for row in rows() {
            assert!(arena.ensure(row));
            arena.get(row).fetch_add(u64::from(row) + 1, Ordering::Relaxed);
        }
        for row in rows() {
            assert_eq!(arena.get(row).load(Ordering::Relaxed), u64::from(row) + 1);
        }
        assert!(arena.allocated_bytes() >= u64::from(chunks * CHUNK * 8));
    }

    #[test]
    fn a_block_is_there_before_the_last_chunk_ahead_of_it_is_used_up() {
        let (block, next) = (SINGLE_CHUNKS, SINGLE_CHUNKS + BLOCK_CHUNKS);
        let end = next + BLOCK_CHUNKS;
        let arena = Arena::<AtomicU64>::new(end * CHUNK);
        let leads_on = |chunk: u32| {
            arena.ensure_ahead(chunk * CHUNK..chunk * CHUNK + 1);
            arena.get_checked((chunk + 1) * CHUNK).is_some()
        };
        // One that is allocated alone is not worth it, nor is one in the midst of a block.
        assert!(!leads_on(block - 2) && !leads_on(next));
        assert!(leads_on(block - 1));
        // Not for who has the chunk's second row, but for who has its first.
        arena.ensure_ahead((next - 1) * CHUNK + 1..next * CHUNK);
        assert!(arena.get_checked(next * CHUNK).is_none());
        arena.ensure_ahead((next - 1) * CHUNK - 1..(next - 1) * CHUNK + 1);
        assert!(arena.get_checked(next * CHUNK).is_some());
        // Nothing comes after the last.
        arena.ensure_ahead((end - 1) * CHUNK..end * CHUNK);
        arena.ensure_ahead(0..0);
    }

    #[test]
    fn a_chunk_is_allocated_once_however_many_want_it() {
        let arena = Arena::<AtomicU64>::new((SINGLE_CHUNKS + BLOCK_CHUNKS) * CHUNK);
        let rows = [0, SINGLE_CHUNKS * CHUNK, (SINGLE_CHUNKS + 1) * CHUNK];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for row in rows {
                        assert!(arena.ensure(row));
                        arena.get(row).fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(rows.iter().all(|row| arena.get(*row).load(Ordering::Relaxed) == 4));
    }
}
