//! Memory of a process that is a guest: filled, offered for merging and compared page by page.

use std::io;

use bindery_sys::mapping::Mapping;
use bindery_units::PAGE_BYTES;

/// Contents of a page.
pub type PageBytes = [u8; PAGE_BYTES];

/// Whole pages of a mapping.
#[derive(Debug)]
pub struct GuestMemory(Mapping);

impl GuestMemory {
    /// Takes a mapping that is readable and writable.
    #[must_use]
    pub const fn over(mapping: Mapping) -> Self {
        Self(mapping)
    }

    /// Number of pages.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.0.bytes() / PAGE_BYTES
    }

    /// Address of page `at`.
    ///
    /// # Panics
    /// If there is no such page.
    #[must_use]
    pub fn page(&self, at: usize) -> *mut PageBytes {
        assert!(at < self.pages(), "page {at} of {}", self.pages());
        self.0.as_ptr().cast::<PageBytes>().wrapping_add(at)
    }

    /// Contents of page `at`, to be changed.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page_mut(&mut self, at: usize) -> &mut PageBytes {
        // SAFETY: the page is in the mapping, which is borrowed by this alone.
        unsafe { &mut *self.page(at) }
    }

    /// Contents of consecutive pages, to be changed.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn pages_mut(&mut self, pages: std::ops::Range<usize>) -> &mut [u8] {
        assert!(pages.start <= pages.end && pages.end <= self.pages(), "pages {pages:?}");
        let first = self.0.as_ptr().wrapping_add(pages.start * PAGE_BYTES);
        // SAFETY: the pages are in the mapping, which is borrowed by this alone.
        unsafe { std::slice::from_raw_parts_mut(first, pages.len() * PAGE_BYTES) }
    }

    /// Offers all pages for merging (`MADV_MERGEABLE`) as a VMM does: by the C library's function, which
    /// a preload library can take.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn offer(&self) -> io::Result<()> {
        // SAFETY: the advice changes no content of this mapping.
        unsafe { self.advise(libc::MADV_MERGEABLE) }
    }

    /// Discards all pages (`MADV_DONTNEED`): they read as zeros, and the next to write them is the first.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn discard(&mut self) -> io::Result<()> {
        // SAFETY: the mapping is borrowed by this alone: nobody expects any content of it.
        unsafe { self.advise(libc::MADV_DONTNEED) }
    }

    /// # Safety
    /// Nobody may need content that the advice changes.
    unsafe fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is this mapping; the caller answers for its content.
        let result = unsafe { libc::madvise(self.0.as_ptr().cast(), self.0.bytes(), advice) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Compares page `at` with what it must hold. Returns the first byte that differs.
    ///
    /// # Panics
    /// If there is no such page.
    #[must_use]
    pub fn first_difference(&self, at: usize, expected: &PageBytes) -> Option<usize> {
        // SAFETY: the page is in the mapping. Whoever writes to it meanwhile by its address has to
        // answer for that. Read anew: it may have been merged since it was written.
        let found = unsafe { &*std::hint::black_box(self.page(at)) };
        found.iter().zip(expected).position(|(found, expected)| found != expected)
    }
}
