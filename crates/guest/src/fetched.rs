//! Pages that were copied out of a guest.

use bindery_units::PAGE_BYTES;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A page's bytes, where a page begins: some processors (AMD's from Zen 3 on) copy a page eight times
/// as slowly to an address a few bytes beyond a multiple of 4096, which is what malloc(3) gives.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
pub(crate) struct PageBytes([u8; PAGE_BYTES]);

const _: () = assert!(size_of::<PageBytes>() == PAGE_BYTES);

impl Default for PageBytes {
    fn default() -> Self {
        Self([0; PAGE_BYTES])
    }
}

/// Pages that were copied out of a guest.
#[derive(Debug, Default)]
pub struct Fetched {
    pub(crate) given: Vec<u8>,
    pub(crate) pages: Vec<PageBytes>,
}

impl Fetched {
    /// Starts anew with room for `pages` pages, all absent.
    pub fn reset(&mut self, pages: usize) {
        self.given.clear();
        self.given.resize(pages, 0);
        self.pages.resize(pages, PageBytes::default());
    }

    /// The bytes of the `at`-th page that was asked for; `None` if it was absent.
    ///
    /// # Panics
    /// If fewer pages were asked for.
    #[must_use]
    pub fn page(&self, at: usize) -> Option<&[u8; PAGE_BYTES]> {
        (self.given[at] != 0).then(|| &self.pages[at].0)
    }

    /// The bytes of the pages `first..first + count` of those asked for, one after the other,
    /// zeros or older bytes where one was absent.
    ///
    /// # Panics
    /// If fewer pages were asked for.
    #[must_use]
    pub fn bytes(&self, first: usize, count: usize) -> &[u8] {
        self.pages[first..first + count].as_bytes()
    }

    /// Puts the bytes of the `at`-th page in place.
    ///
    /// # Panics
    /// If fewer pages were asked for.
    pub fn put(&mut self, at: usize, page: &[u8; PAGE_BYTES]) {
        self.given[at] = 1;
        self.pages[at] = PageBytes(*page);
    }
}
