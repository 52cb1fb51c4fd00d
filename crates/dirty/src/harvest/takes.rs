//! Words of a level on their way into a list.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::cover::Cover;
use crate::decode::{Decoder, LIST, Words};
use crate::geometry::{LINE_WORDS, WORD_BITS, WORD_SHIFT};
use crate::primitive::{AtomicU64, Ordering, prefetch};
use crate::take::{Look, Take};
use crate::tree::Tree;

/// How many words before one is taken its cache line is asked for.
const AHEAD: usize = 8;

/// Words of a level that are taken as they are listed: while one is taken, which is an atomic
/// operation, the one before is listed and those that follow are fetched.
pub(super) struct Takes<'w, T, const WHOLE: bool> {
    /// The words of the level from the one on that lists call 0.
    all: &'w [AtomicU64],
    words: &'w [u32],
    /// What the lowest bit of word 0 is called.
    origin: u32,
    /// The word that lists call 0, and what of the level is in the window.
    first: usize,
    cover: Cover,
    take: PhantomData<T>,
}

impl<T, const WHOLE: bool> Clone for Takes<'_, T, WHOLE> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const WHOLE: bool> Copy for Takes<'_, T, WHOLE> {}

impl<T: Take, const WHOLE: bool> Words for Takes<'_, T, WHOLE> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.words.len()
    }

    #[inline(always)]
    fn first(&self, at: usize) -> u32 {
        (self.words[at] << WORD_SHIFT).wrapping_add(self.origin)
    }

    #[inline(always)]
    fn bits(&self, at: usize) -> u64 {
        // The last ones over and over: a branch where the list ends would be guessed wrong.
        self.prefetch(self.words[(at + AHEAD).min(self.words.len() - 1)]);
        self.take(at)
    }
}

impl<'w, T: Take, const WHOLE: bool> Takes<'w, T, WHOLE> {
    /// Words of a level of which `first` is called 0, and its lowest bit `origin`.
    #[inline]
    pub(super) fn new(
        tree: &'w Tree,
        level: usize,
        words: &'w [u32],
        origin: u32,
        first: usize,
        cover: Cover,
    ) -> Self {
        let all = &tree.words()[tree.geometry.starts[level] + first..];
        let takes = Self { all, words, origin, first, cover, take: PhantomData };
        words.iter().take(AHEAD).for_each(|word| takes.prefetch(*word));
        takes
    }

    /// The bits that lead into the window or are its pages, cleared but for those that lead out of it
    /// as well.
    #[inline(always)]
    fn take(&self, at: usize) -> u64 {
        let at = self.words[at] as usize;
        let word = &self.all[at];
        if WHOLE {
            return T::take(word, !0);
        }
        let (inner, touched) = self.cover.bits(self.first + at);
        let taken = if inner == 0 { 0 } else { T::take(word, inner) };
        let edges = touched & !inner;
        let looked_at = if edges == 0 { 0 } else { Look::take(word, edges) };
        taken | looked_at
    }

    #[inline(always)]
    fn prefetch(&self, word: u32) {
        // No processor looks beyond an atomic operation for what comes next, and none far beyond a
        // branch that waits for its line.
        prefetch(&self.all[word as usize]);
    }

    /// The words, if every bit of them is set, as it seems, and none is missing between them.
    #[inline]
    pub(super) fn full(&self) -> Option<&'w [AtomicU64]> {
        let (first, last) = (self.words[0] as usize, self.words[self.words.len() - 1] as usize);
        if last - first != self.words.len() - 1 {
            return None;
        }
        let words = &self.all[first..=last];
        let look = |word: &AtomicU64| word.load(Ordering::Relaxed);
        (words.iter().map(look).fold(!0, |all, bits| all & bits) == !0).then_some(words)
    }

    /// Asks for as many words as these behind them: what is written meanwhile would keep anything else from
    /// fetching them.
    fn prefetch_next(&self) {
        let first = self.words[self.words.len() - 1] as usize + 1;
        let behind = self.all.get(first..).unwrap_or_default();
        behind.iter().take(self.words.len()).step_by(LINE_WORDS).for_each(prefetch);
    }

    /// Takes and lists these words, which seemed to be full.
    ///
    /// # Safety
    /// `end` is writable for all pages of all words.
    pub(super) unsafe fn list_run(
        &self,
        words: &[AtomicU64],
        decoder: Decoder,
        end: *mut u32,
    ) -> usize {
        let mut bits = [const { MaybeUninit::uninit() }; LIST];
        let mut all = !0;
        for ((at, word), bits) in words.iter().enumerate().zip(&mut bits) {
            all &= *bits.write(if WHOLE { T::take(word, !0) } else { self.take(at) });
        }
        self.prefetch_next();
        // SAFETY: all that are asked for were written; the room is the caller's promise.
        unsafe {
            if all == !0 {
                let count = self.len() * WORD_BITS as usize;
                decoder.run(self.first(0), count, end);
                return count;
            }
            // Somebody else harvests.
            let taken = Taken { takes: self, bits: bits[..self.len()].assume_init_ref() };
            decoder.list_pages(taken, end)
        }
    }
}

/// The same, once they are taken.
struct Taken<'w, W> {
    takes: &'w W,
    bits: &'w [u64],
}

impl<W> Clone for Taken<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Taken<'_, W> {}

impl<W: Words> Words for Taken<'_, W> {
    fn len(&self) -> usize {
        self.bits.len()
    }

    fn first(&self, at: usize) -> u32 {
        self.takes.first(at)
    }

    fn bits(&self, at: usize) -> u64 {
        self.bits[at]
    }
}
