//! Harvests that list pages.

use bindery_units::PageIndex;

use super::output::Output;
use super::takes::Takes;
use crate::decode::Decoder;
use crate::geometry::WORD_BITS;
use crate::take::Take;

/// The pages below one word of the first summary.
const NODE_PAGES: usize = (WORD_BITS * WORD_BITS) as usize;

/// A list that grows, or does not.
pub(super) trait List {
    /// Whether it grows.
    const GROWS: bool;

    /// How many more pages there is room for: at least [`NODE_PAGES`] if the list grows.
    fn prepare(&mut self) -> usize;

    /// Where the next page goes. As many as `prepare` said may be written from there on.
    fn end(&mut self) -> *mut u32;

    /// Adds the `count` pages that were written at the end.
    ///
    /// # Safety
    /// They were, and there was room.
    unsafe fn advance(&mut self, count: usize);
}

/// Pages, to the end of a list.
pub(super) struct Pages<'l, L>(pub(super) &'l mut L);

impl<L: List> Output for Pages<'_, L> {
    const GROWS: bool = L::GROWS;

    #[inline]
    fn room_words(&mut self) -> usize {
        self.0.prepare() / WORD_BITS as usize
    }

    #[inline]
    fn list<T: Take, const WHOLE: bool>(&mut self, takes: Takes<'_, T, WHOLE>, decoder: Decoder) {
        let end = self.0.end();
        // SAFETY: there is room for all pages of all words, and nothing is listed but what was decoded.
        unsafe {
            let count = match takes.full() {
                Some(words) => takes.list_run(words, decoder, end),
                None => decoder.list_pages(takes, end),
            };
            self.0.advance(count);
        }
    }

    fn list_part(&mut self, first: u32, bits: u64) -> u64 {
        let room = self.0.prepare();
        let end = self.0.end();
        let (mut rest, mut count) = (bits, 0);
        while rest != 0 && count < room {
            // SAFETY: there is room for one more.
            unsafe { end.add(count).write(first.wrapping_add(rest.trailing_zeros())) };
            count += 1;
            rest &= rest - 1;
        }
        // SAFETY: written above.
        unsafe { self.0.advance(count) };
        rest
    }
}

impl List for Vec<PageIndex> {
    const GROWS: bool = true;

    #[inline]
    fn prepare(&mut self) -> usize {
        if self.capacity() - self.len() < NODE_PAGES {
            self.reserve(NODE_PAGES);
        }
        self.capacity() - self.len()
    }

    #[inline]
    fn end(&mut self) -> *mut u32 {
        // A page index is transparent.
        self.spare_capacity_mut().as_mut_ptr().cast()
    }

    #[inline]
    unsafe fn advance(&mut self, count: usize) {
        // SAFETY: the caller says that so many were written within the capacity.
        unsafe { self.set_len(self.len() + count) };
    }
}

/// A caller's buffer, filled from its start.
pub(super) struct Buffer<'b> {
    pages: &'b mut [PageIndex],
    len: usize,
}

impl<'b> Buffer<'b> {
    pub(super) fn new(pages: &'b mut [PageIndex]) -> Self {
        Self { pages, len: 0 }
    }

    /// How many pages there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl List for Buffer<'_> {
    const GROWS: bool = false;

    #[inline]
    fn prepare(&mut self) -> usize {
        self.pages.len() - self.len
    }

    #[inline]
    fn end(&mut self) -> *mut u32 {
        self.pages[self.len..].as_mut_ptr().cast()
    }

    #[inline]
    unsafe fn advance(&mut self, count: usize) {
        self.len += count;
        debug_assert!(self.len <= self.pages.len());
    }
}
