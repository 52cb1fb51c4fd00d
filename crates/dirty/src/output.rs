//! Where the pages of a harvest go.

use bindery_units::PageIndex;

use crate::geometry::WORD_BITS;

/// The pages below one word of the first summary.
pub(crate) const NODE_PAGES: usize = (WORD_BITS * WORD_BITS) as usize;

/// A list that grows, or does not.
pub(crate) trait Output {
    /// Whether it grows.
    const GROWS: bool;

    /// How many more pages there is room for: at least [`NODE_PAGES`] if the list grows.
    fn prepare(&mut self) -> usize;

    /// Where the next page goes. As many as `prepare` said may be written from there on.
    fn end(&mut self) -> *mut u32;

    /// How many pages there are.
    fn len(&self) -> usize;

    /// Adds the `count` pages that were written at the end.
    ///
    /// # Safety
    /// They were, and there was room.
    unsafe fn advance(&mut self, count: usize);
}

impl Output for Vec<PageIndex> {
    const GROWS: bool = true;

    #[inline]
    fn prepare(&mut self) -> usize {
        if self.capacity() - Vec::len(self) < NODE_PAGES {
            self.reserve(NODE_PAGES);
        }
        self.capacity() - Vec::len(self)
    }

    #[inline]
    fn end(&mut self) -> *mut u32 {
        // A page index is transparent.
        self.spare_capacity_mut().as_mut_ptr().cast()
    }

    #[inline]
    fn len(&self) -> usize {
        Vec::len(self)
    }

    #[inline]
    unsafe fn advance(&mut self, count: usize) {
        // SAFETY: the caller says that so many were written within the capacity.
        unsafe { self.set_len(Vec::len(self) + count) };
    }
}

/// A caller's buffer, filled from its start.
pub(crate) struct Buffer<'b> {
    pages: &'b mut [PageIndex],
    len: usize,
}

impl<'b> Buffer<'b> {
    pub(crate) fn new(pages: &'b mut [PageIndex]) -> Self {
        Self { pages, len: 0 }
    }
}

impl Output for Buffer<'_> {
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
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    unsafe fn advance(&mut self, count: usize) {
        self.len += count;
        debug_assert!(self.len <= self.pages.len());
    }
}
