//! Where each level of a tree lies: arithmetic, no memory.
//!
//! Level 0 is the bitmap, a bit a page. A bit of level `k + 1` stands for a word of level `k`. The
//! last level is one word. Levels follow each other in one array of words, the bitmap first.

use crate::error::SizeError;

/// log2 of the bits in a word, and so of a node's children.
pub(crate) const WORD_SHIFT: u32 = 6;

/// Bits in a word: children of a node, and pages of a leaf.
pub(crate) const WORD_BITS: u64 = 1 << WORD_SHIFT;

/// log2 of the most pages that a tree can have.
pub(crate) const MAX_PAGES_SHIFT: u32 = 40;

/// Levels of the largest tree.
pub(crate) const MAX_LEVELS: usize = MAX_PAGES_SHIFT.div_ceil(WORD_SHIFT) as usize;

/// Words of a cache line. The summaries begin a new one: words of the bitmap are written all the
/// time, and those of the summaries hardly ever.
pub(crate) const LINE_WORDS: usize = if cfg!(loom) { 1 } else { 8 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) pages: u64,
    pub(crate) levels: usize,
    /// Where each level begins, in words.
    pub(crate) starts: [usize; MAX_LEVELS],
    /// Words of all levels and of the gap below the summaries.
    pub(crate) words: usize,
}

impl Geometry {
    pub(crate) fn new(pages: u64) -> Result<Self, SizeError> {
        if pages == 0 || pages > 1 << MAX_PAGES_SHIFT {
            return Err(SizeError::Unsupported { pages });
        }
        let mut geometry = Self { pages, levels: 0, starts: [0; MAX_LEVELS], words: 0 };
        let mut bits = pages;
        loop {
            let words = bits.div_ceil(WORD_BITS);
            geometry.starts[geometry.levels] = geometry.words;
            geometry.levels += 1;
            geometry.words += words as usize;
            if words == 1 {
                return Ok(geometry);
            }
            if geometry.levels == 1 {
                geometry.words = geometry.words.next_multiple_of(LINE_WORDS);
            }
            bits = words;
        }
    }

    /// Words of the bitmap.
    pub(crate) const fn leaves(&self) -> usize {
        self.pages.div_ceil(WORD_BITS) as usize
    }

    /// The level whose one word stands for everything.
    pub(crate) const fn top(&self) -> usize {
        self.levels - 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn levels(pages: u64) -> usize {
        Geometry::new(pages).expect("the size is supported").levels
    }

    #[test]
    fn a_level_is_added_where_the_one_below_has_two_words() {
        assert_eq!([1, 64, 65, 4096, 4097].map(levels), [1, 1, 2, 2, 3]);
        assert_eq!([1 << 18, (1 << 18) + 1, 1 << 36, 1 << 40].map(levels), [3, 4, 6, 7]);
        assert_eq!(MAX_LEVELS, 7);
    }

    #[test]
    fn summaries_take_little() {
        // From a guest of 4 GiB on; in smaller ones the last words of levels are mostly empty.
        for pages in [1 << 20, (1 << 20) + 1, 10_000_000, 1 << 32, (1 << 40) - 1] {
            let geometry = Geometry::new(pages).unwrap();
            let more = geometry.words as f64 / geometry.leaves() as f64 - 1.0;
            assert!(more <= 0.017, "{pages} pages: {more}");
        }
    }

    #[test]
    fn sizes_beyond_the_limits_are_refused() {
        for pages in [0, (1 << 40) + 1, u64::MAX] {
            assert_eq!(Geometry::new(pages), Err(SizeError::Unsupported { pages }));
        }
    }
}
