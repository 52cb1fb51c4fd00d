//! Going through the levels: from the top downwards, many words of a level at a time.
//!
//! A walk takes some words of a summary, one after the other, and lists what their bits stand for, then
//! takes those words, down to the pages: a list of words and one of pages are made in the same way
//! (`decode`). What is to come is known long before it is taken, so that cache lines are fetched side
//! by side; and an atomic operation takes longer than it takes to list the word before, which goes on
//! meanwhile. So a sparse harvest costs what its atomic operations do, and few wrong guesses.
//!
//! Where a harvest clears, it clears a bit before it goes below it, so that a marker that comes later
//! sets the bit again (`mark` has the argument). Bits that lead both into the window and out of it are
//! only looked at: they stay, and may lead nowhere afterwards.
//!
//! Where the output is full, pages that were taken are put back as a marker would, the bitmap first and
//! then every level above; as is, for words that were listed and not taken, what leads to them.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::cover::{Cover, covers};
use super::output::Output;
use super::takes::Takes;
use crate::decode::{Decoder, LIST, Words};
use crate::geometry::{MAX_LEVELS, WORD_BITS, WORD_SHIFT};
use crate::primitive::{AtomicU64, Ordering};
use crate::take::Take;
use crate::tree::Tree;
use crate::window::Window;

/// Words of a level that are listed before they are gone through, and up to 63 more.
const REACH: usize = LIST - WORD_BITS as usize;

/// The fewest, and words of room for each: what leads to words beyond the room is put back.
const LEAST_REACH: usize = 16;
const ROOM_PER_REACH: usize = 4;

/// A walk over a window; with `WHOLE`, over the whole tree.
///
/// Lists name words of a level by 32 bits, counted from the first that has bits of the window: a
/// window has at most 2^32 pages.
pub(super) struct Walk<'t, T, O, const WHOLE: bool> {
    tree: &'t Tree,
    output: &'t mut O,
    /// The page that is called 0.
    base: u64,
    covers: [Cover; MAX_LEVELS],
    decoder: Decoder,
    reach: usize,
    /// The first page that the output had no room for.
    stopped_at: Option<u64>,
    take: PhantomData<T>,
}

impl<'t, T: Take, O: Output, const WHOLE: bool> Walk<'t, T, O, WHOLE> {
    pub(super) fn new(tree: &'t Tree, window: Window, output: &'t mut O) -> Self {
        let whole = [Cover::default(); MAX_LEVELS];
        let (start, end) = (window.start(), window.end());
        let reach = if O::GROWS {
            REACH
        } else {
            (output.room_words() / ROOM_PER_REACH).clamp(LEAST_REACH, REACH)
        };
        Self {
            tree,
            output,
            base: window.base,
            covers: if WHOLE { whole } else { covers(&tree.geometry, start, end) },
            decoder: Decoder::active(),
            reach,
            stopped_at: None,
            take: PhantomData,
        }
    }

    /// The first page that the output had no room for, if there is one.
    pub(super) fn run(&mut self) -> Option<u64> {
        match self.tree.geometry.top() {
            0 => self.leaves(&[0]),
            top => self.below(top, &[0]),
        };
        self.stopped_at
    }

    /// Everything below some words of a summary. False once the output is full.
    fn below(&mut self, level: usize, words: &[u32]) -> bool {
        let first_child = (self.first_word(level) as u64) << WORD_SHIFT;
        let origin = first_child.wrapping_sub(self.first_word(level - 1) as u64) as u32;
        let mut rest = words;
        while !rest.is_empty() {
            let mut children = [const { MaybeUninit::uninit() }; LIST];
            let takes = self.takes(level, rest, origin);
            let (taken, children) = self.decoder.list(takes, self.reach, &mut children);
            rest = &rest[taken..];
            let goes_on =
                if level == 1 { self.leaves(children) } else { self.below(level - 1, children) };
            if !goes_on {
                self.put_back_names(level, rest);
                return false;
            }
        }
        true
    }

    /// Lists the pages of some words of the bitmap. False once the output is full.
    fn leaves(&mut self, words: &[u32]) -> bool {
        let mut rest = words;
        while let [first, later @ ..] = rest {
            let fitting = rest.len().min(self.output.room_words());
            if fitting > 0 {
                let (first, cover) = (self.first_word(0), self.covers[0]);
                let words = &rest[..fitting];
                let origin = self.origin_of_pages();
                let takes: Takes<'_, T, WHOLE> =
                    Takes::new(self.tree, 0, words, origin, first, cover);
                self.output.list(takes, self.decoder);
                rest = &rest[fitting..];
                continue;
            }
            if !self.part_of_leaf(*first) {
                self.put_back_names(0, later);
                return false;
            }
            rest = later;
        }
        true
    }

    /// The pages of a word of the bitmap that there is room for. False if it has more than that.
    #[cold]
    fn part_of_leaf(&mut self, word: u32) -> bool {
        let pages = self.takes(0, &[word], 0).bits(0);
        let first = (word << WORD_SHIFT).wrapping_add(self.origin_of_pages());
        let too_many = self.output.list_part(first, pages);
        if too_many == 0 {
            return true;
        }
        self.put_back(0, word, too_many);
        let first = ((self.first_word(0) + word as usize) as u64) << WORD_SHIFT;
        self.stopped_at = Some(first + u64::from(too_many.trailing_zeros()));
        false
    }

    /// What page 0 of word 0 of a list of leaves is called. Wraps around where the window's base lies
    /// within that word: what is listed does not.
    #[inline]
    fn origin_of_pages(&self) -> u32 {
        ((self.first_word(0) as u64) << WORD_SHIFT).wrapping_sub(self.base) as u32
    }

    /// Some words of a level, to be taken.
    #[inline]
    fn takes<'w>(&'w self, level: usize, words: &'w [u32], origin: u32) -> Takes<'w, T, WHOLE> {
        let (first, cover) = (self.first_word(level), self.covers[level]);
        Takes::new(self.tree, level, words, origin, first, cover)
    }

    #[inline(always)]
    fn word(&self, level: usize, word: u32) -> &AtomicU64 {
        self.tree.word(level, self.first_word(level) + word as usize)
    }

    /// The word of a level that lists call 0.
    #[inline(always)]
    fn first_word(&self, level: usize) -> usize {
        if WHOLE { 0 } else { self.covers[level].first_word() }
    }

    /// Sets bits that were taken and not dealt with, and what leads to them.
    #[cold]
    fn put_back(&self, level: usize, word: u32, bits: u64) {
        if T::CLEARS && bits != 0 {
            // As a mark does: see `set` in `mark`.
            self.word(level, word).fetch_or(bits, Ordering::SeqCst);
            self.tree.lead_to(level, self.first_word(level) + word as usize);
        }
    }

    /// Sets what leads to words that were named and not taken.
    #[cold]
    fn put_back_names(&self, level: usize, words: &[u32]) {
        if T::CLEARS {
            let first = self.first_word(level);
            words.iter().for_each(|word| self.tree.lead_to(level, first + *word as usize));
        }
    }
}
