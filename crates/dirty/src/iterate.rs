//! Looking at the dirty pages one after the other, without clearing them.

use std::ops::Range;

use crate::geometry::{WORD_BITS, WORD_SHIFT};
use crate::primitive::Ordering;
use crate::tree::Tree;

impl Tree {
    /// The dirty pages, in order. Pages that are marked or harvested meanwhile may be among them or
    /// not. [`list_into`](Self::list_into) is several times faster where they are many.
    #[must_use]
    pub fn iter(&self) -> Pages<'_> {
        Pages { leaves: Leaves { tree: self, next: 0 }, leaf: 0, bits: 0 }
    }

    /// The dirty pages as runs of consecutive ones, in order, none of them next to another.
    #[must_use]
    pub fn runs(&self) -> Runs<'_> {
        Runs { leaves: Leaves { tree: self, next: 0 }, leaf: 0, bits: 0 }
    }

    /// How many pages are dirty. While others mark or harvest, some number that was true of each
    /// word of the bitmap at some time.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.dirty_leaves().map(|(_, bits)| u64::from(bits.count_ones())).sum()
    }

    /// Whether no page is dirty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dirty_leaves().next().is_none()
    }

    /// The words of the bitmap that have a bit set, and their numbers.
    pub(crate) fn dirty_leaves(&self) -> impl Iterator<Item = (usize, u64)> {
        Leaves { tree: self, next: 0 }
    }
}

impl<'t> IntoIterator for &'t Tree {
    type Item = u64;
    type IntoIter = Pages<'t>;

    fn into_iter(self) -> Pages<'t> {
        self.iter()
    }
}

/// The words of the bitmap that are not zero. Neighbours are found without the summaries, so that
/// dense parts are scanned flat.
struct Leaves<'t> {
    tree: &'t Tree,
    /// The word to look at next.
    next: usize,
}

impl Iterator for Leaves<'_> {
    type Item = (usize, u64);

    fn next(&mut self) -> Option<(usize, u64)> {
        loop {
            // Acquire, here and below: pairs with the Release of a mark.
            let bits = self.tree.leaves().get(self.next)?.load(Ordering::Acquire);
            let leaf = self.next;
            self.next += 1;
            if bits != 0 {
                return Some((leaf, bits));
            }
            self.next = self.named_from(self.next)?;
        }
    }
}

impl Leaves<'_> {
    /// The first word from `leaf` on that the summaries lead to: up until a level has something
    /// further on, then down to it. A summary may lead nowhere, at any level: then up again.
    fn named_from(&self, leaf: usize) -> Option<usize> {
        let (mut level, mut at) = (1, leaf);
        while level < self.tree.geometry.levels {
            match self.named_at(level, at) {
                Some(found) if level == 1 => return Some(found),
                Some(found) => (level, at) = (level - 1, found << WORD_SHIFT),
                None => (level, at) = (level + 1, (at >> WORD_SHIFT) + 1),
            }
        }
        None
    }

    /// The first bit that is set from `bit` of a level on, within its word.
    fn named_at(&self, level: usize, bit: usize) -> Option<usize> {
        let word = bit >> WORD_SHIFT;
        if word >= words_of(self.tree, level) {
            return None;
        }
        let bits = self.tree.word(level, word).load(Ordering::Acquire);
        let rest = bits & !0 << (bit as u64 % WORD_BITS);
        (rest != 0).then(|| word << WORD_SHIFT | rest.trailing_zeros() as usize)
    }
}

/// How many words a level has.
fn words_of(tree: &Tree, level: usize) -> usize {
    tree.pages().div_ceil(1 << ((level as u32 + 1) * WORD_SHIFT)) as usize
}

/// See [`Tree::iter`].
pub struct Pages<'t> {
    leaves: Leaves<'t>,
    leaf: usize,
    /// Pages of the word that have not been returned.
    bits: u64,
}

impl Iterator for Pages<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.bits == 0 {
            (self.leaf, self.bits) = self.leaves.next()?;
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some((self.leaf as u64) << WORD_SHIFT | u64::from(bit))
    }
}

/// See [`Tree::runs`].
pub struct Runs<'t> {
    leaves: Leaves<'t>,
    leaf: usize,
    /// Pages of the word that have not been returned.
    bits: u64,
}

impl Iterator for Runs<'_> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        if self.bits == 0 {
            (self.leaf, self.bits) = self.leaves.next()?;
        }
        let first = self.bits.trailing_zeros();
        let start = (self.leaf as u64) << WORD_SHIFT | u64::from(first);
        loop {
            let first = self.bits.trailing_zeros();
            let end = first + (self.bits >> first).trailing_ones();
            if end < WORD_BITS as u32 {
                self.bits &= !0 << end;
                return Some(start..(self.leaf as u64) << WORD_SHIFT | u64::from(end));
            }
            // The run reaches the word's end: it goes on where the next word begins with it.
            let end = (self.leaf as u64 + 1) << WORD_SHIFT;
            let Some((leaf, bits)) = self.leaves.next() else {
                self.bits = 0;
                return Some(start..end);
            };
            let goes_on = leaf == self.leaf + 1 && bits & 1 == 1;
            (self.leaf, self.bits) = (leaf, bits);
            if !goes_on {
                return Some(start..end);
            }
        }
    }
}
