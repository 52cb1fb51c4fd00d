//! Sources of content.

use std::ops::Range;

/// Number of pages that are fetched at once, at most.
pub const FETCH_PAGES_MAX: usize = 32;

/// Source of the content of [`DemandMemory`](crate::DemandMemory).
///
/// All methods are called in a signal handler, in the thread that touched the memory, with what
/// [`Serve::serve`](crate::sigbus::Serve::serve) demands. They may take as long as reading takes: that
/// thread waits, and besides it only threads that make or drop such memory. A method that does so itself
/// waits for ever.
pub trait PageSource: Send + Sync {
    /// Returns the pages to fetch when `page` is touched: `page`, and neighbours that are probably needed
    /// too. What is more than [`FETCH_PAGES_MAX`] of them, or outside the memory, is cut off.
    ///
    /// Called once a fault, before a buffer is taken for it: a source that slows faults down waits here.
    fn window(&self, page: usize) -> Range<usize> {
        page..page + 1
    }

    /// Fills `into`, whole pages, with the content from `first_page` on. Returns true if all of it was
    /// filled; what is there after false is not used. After a window that failed, the page that was touched
    /// is asked for alone.
    fn fetch(&self, first_page: usize, into: &mut [u8]) -> bool;

    /// Hears of a page that was touched and could not be fetched. After it the thread has a bus error as if
    /// nobody served the memory.
    fn lost(&self, page: usize);
}
