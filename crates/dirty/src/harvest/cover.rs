//! What a window of pages is at each level of a tree.

use crate::geometry::{Geometry, MAX_LEVELS, WORD_BITS, WORD_SHIFT};

/// The bits of one level, numbered through, whose subtrees lie in a window.
#[derive(Clone, Copy, Default)]
pub(super) struct Cover {
    /// Those that lie in it as a whole.
    inner: (u64, u64),
    /// Those of which a part does, the inner ones included.
    touched: (u64, u64),
}

impl Cover {
    /// The bits of word `word` of the level: those that lie in the window as a whole, and those of
    /// which a part does as well.
    #[inline]
    pub(super) fn bits(self, word: usize) -> (u64, u64) {
        (bits_between(self.inner, word), bits_between(self.touched, word))
    }

    /// The first word of the level that has bits of the window.
    #[inline]
    pub(super) const fn first_word(self) -> usize {
        (self.touched.0 >> WORD_SHIFT) as usize
    }
}

#[inline]
fn bits_between((first, end): (u64, u64), word: usize) -> u64 {
    let start = word as u64 * WORD_BITS;
    let first = first.saturating_sub(start).min(WORD_BITS);
    let end = end.saturating_sub(start).min(WORD_BITS);
    if first >= end { 0 } else { !0 << first & !0 >> (WORD_BITS - end) }
}

/// What the window from page `start` to before page `end` is at each level.
pub(super) fn covers(geometry: &Geometry, start: u64, end: u64) -> [Cover; MAX_LEVELS] {
    let mut covers = [Cover::default(); MAX_LEVELS];
    // The last word of a level may have bits that stand for nothing: with the tree's end, they are
    // inside.
    let mut inner = (start, if end == geometry.pages { u64::MAX } else { end });
    let mut touched = (start, end);
    for cover in &mut covers[..geometry.levels] {
        *cover = Cover { inner, touched: (touched.0, touched.1.max(inner.1)) };
        inner = (inner.0.div_ceil(WORD_BITS), inner.1 / WORD_BITS);
        if inner.1 == u64::MAX / WORD_BITS {
            inner.1 = u64::MAX;
        }
        touched = (touched.0 / WORD_BITS, touched.1.div_ceil(WORD_BITS));
    }
    covers
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn covers_of(pages: u64, start: u64, end: u64) -> [Cover; MAX_LEVELS] {
        let geometry = Geometry::new(pages).expect("the size is supported");
        covers(&geometry, start, end)
    }

    #[test]
    fn covers_say_what_is_whole_and_what_is_in_part() {
        let covers = covers_of(100_000, 10, 9000);
        assert_eq!(covers[0].inner, (10, 9000));
        assert_eq!((covers[1].inner, covers[1].touched), ((1, 140), (0, 141)));
        assert_eq!((covers[2].inner, covers[2].touched), ((1, 2), (0, 3)));
    }

    #[test]
    fn words_are_counted_from_the_first_that_is_touched() {
        let covers =
            covers_of(100_000_000, 64 * 64 * 64 * 3 + 64 * 64 * 2 + 64 * 7 + 1, 99_000_000);
        let first_words: Vec<usize> = covers[..4].iter().map(|cover| cover.first_word()).collect();
        assert_eq!(first_words, [(3 * 64 + 2) * 64 + 7, 3 * 64 + 2, 3, 0]);
    }

    #[test]
    fn the_end_of_the_tree_leaves_nothing_in_part() {
        for cover in covers_of(100_001, 0, 100_001).iter().take(3) {
            assert_eq!(cover.bits(0), (!0, !0));
        }
    }
}
