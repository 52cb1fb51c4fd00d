//! Lists that grow and buffers that do not, of pages or of runs, written to where they end.

use bindery_units::{PageIndex, PageRange};

use crate::geometry::WORD_BITS;

/// Most runs that begin in a word: every other page.
pub(super) const WORD_RUNS: usize = WORD_BITS as usize / 2;

/// Room that no word has: for the run before it, and for what decoders write beyond the last number.
pub(super) const SPARE_RUNS: usize = 1 + WORD_RUNS;

/// What is listed: 32-bit numbers, one or two of them.
pub(super) trait Entry {
    /// How many a list that grows has room for at least whenever it is asked.
    const ROOM_LEAST: usize;
}

impl Entry for PageIndex {
    /// The pages below one word of the first summary.
    const ROOM_LEAST: usize = (WORD_BITS * WORD_BITS) as usize;
}

const _: () = assert!(
    size_of::<PageRange>() == 8
        && std::mem::offset_of!(PageRange, first) == 0
        && std::mem::offset_of!(PageRange, count) == 4
);

impl Entry for PageRange {
    /// Every other one of those pages, and what no word has room for.
    const ROOM_LEAST: usize = PageIndex::ROOM_LEAST / 2 + SPARE_RUNS;
}

pub(super) trait List {
    type Entry: Entry;

    /// Whether it grows.
    const GROWS: bool;

    /// How many more entries there is room for: at least [`Entry::ROOM_LEAST`] if the list grows.
    fn prepare(&mut self) -> usize;

    /// Where the next entry goes. As many as `prepare` said may be written from there on.
    fn end(&mut self) -> *mut u32;

    /// Adds the `count` entries that were written at the end.
    ///
    /// # Safety
    /// They were, and there was room.
    unsafe fn advance(&mut self, count: usize);
}

impl<E: Entry> List for Vec<E> {
    type Entry = E;

    const GROWS: bool = true;

    #[inline]
    fn prepare(&mut self) -> usize {
        if self.capacity() - self.len() < E::ROOM_LEAST {
            self.reserve(E::ROOM_LEAST);
        }
        self.capacity() - self.len()
    }

    #[inline]
    fn end(&mut self) -> *mut u32 {
        self.spare_capacity_mut().as_mut_ptr().cast()
    }

    #[inline]
    unsafe fn advance(&mut self, count: usize) {
        // SAFETY: the caller says that so many were written within the capacity.
        unsafe { self.set_len(self.len() + count) };
    }
}

/// A caller's buffer, filled from its start.
pub(super) struct Buffer<'b, E> {
    entries: &'b mut [E],
    len: usize,
}

impl<'b, E> Buffer<'b, E> {
    pub(super) fn new(entries: &'b mut [E]) -> Self {
        Self { entries, len: 0 }
    }

    /// What was listed.
    pub(super) fn listed(&self) -> &[E] {
        &self.entries[..self.len]
    }
}

impl<E: Entry> List for Buffer<'_, E> {
    type Entry = E;

    const GROWS: bool = false;

    #[inline]
    fn prepare(&mut self) -> usize {
        self.entries.len() - self.len
    }

    #[inline]
    fn end(&mut self) -> *mut u32 {
        self.entries[self.len..].as_mut_ptr().cast()
    }

    #[inline]
    unsafe fn advance(&mut self, count: usize) {
        self.len += count;
        assert!(self.len <= self.entries.len(), "more was listed than there was room for");
    }
}
