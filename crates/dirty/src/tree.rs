//! The tree itself: its memory, its size, and looking at it.

use std::fmt;

use bindery_units::{ByteCount, PageIndex, PageRange};

use crate::error::{OutOfRange, SizeError};
use crate::geometry::{Geometry, WORD_BITS, WORD_SHIFT};
use crate::primitive::{AtomicU64, Ordering};
use crate::storage::Words;
use crate::window::Window;

/// A set of dirty pages: a bitmap, and summaries of it above.
///
/// Any number of threads mark, by shared reference. The crate's documentation says what a harvest
/// returns while they do.
pub struct Tree {
    words: Words,
    pub(crate) geometry: Geometry,
}

impl Tree {
    /// A tree of `pages` pages, none of them dirty.
    ///
    /// It is one allocation of a bit a page and 1/63 more (at most 1.7% from 2^20 pages on), rounded
    /// up to whole pages of memory and backed where it is touched.
    ///
    /// # Errors
    /// If there is no tree of that size (none at all, or more than 2^40), or no room for it.
    pub fn new(pages: u64) -> Result<Self, SizeError> {
        let geometry = Geometry::new(pages)?;
        let words = Words::new(geometry.words).map_err(|source| SizeError::NoRoom {
            pages,
            bytes: (geometry.words as u64).saturating_mul(WORD_BITS / 8),
            source,
        })?;
        Ok(Self { words, geometry })
    }

    /// How many pages the tree has, dirty or not.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.geometry.pages
    }

    /// The address space that the tree takes: an upper bound of its memory.
    #[must_use]
    pub const fn reserved_bytes(&self) -> ByteCount {
        ByteCount((self.geometry.words * size_of::<u64>()) as u64)
    }

    /// Whether the page is dirty. A page that the tree does not have is not.
    #[must_use]
    pub fn is_marked(&self, page: impl Into<u64>) -> bool {
        let page = page.into();
        // Acquire: pairs with the Release of the mark.
        page < self.pages()
            && self.leaves()[(page >> WORD_SHIFT) as usize].load(Ordering::Acquire)
                >> (page % WORD_BITS)
                & 1
                == 1
    }

    /// The windows that together are the whole tree: one, unless it has more pages than 2^31.
    pub fn windows(&self) -> impl Iterator<Item = Window> + use<> {
        const LONGEST: u64 = 1 << 31;
        let pages = self.pages();
        (0..pages.div_ceil(LONGEST)).map(move |window| {
            let base = window * LONGEST;
            let count = (pages - base).min(LONGEST) as u32;
            Window { base, range: PageRange::new(PageIndex(0), count) }
        })
    }

    /// All levels.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Word `word` of a level.
    #[inline]
    pub(crate) fn word(&self, level: usize, word: usize) -> &AtomicU64 {
        &self.words[self.geometry.starts[level] + word]
    }

    /// The bitmap.
    #[inline]
    pub(crate) fn leaves(&self) -> &[AtomicU64] {
        &self.words[..self.geometry.leaves()]
    }

    /// The error if `count` pages from `first` on are not all the tree's.
    #[inline]
    pub(crate) fn check(&self, first: u64, count: u64) -> Result<(), OutOfRange> {
        OutOfRange::check(first, count, self.pages())
    }

    #[cold]
    pub(crate) fn out_of_range(&self, page: u64) -> OutOfRange {
        OutOfRange { page, pages: self.pages() }
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("pages", &self.pages()).finish_non_exhaustive()
    }
}
