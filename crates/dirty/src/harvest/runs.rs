//! Harvests that list runs of consecutive pages.
//!
//! Where a page differs from the one before it, a run begins or ends: those places are the bits of
//! `word ^ word << 1`, which decoders list as they list pages, without a branch on each. Every other
//! number begins a run and the next one ends it, which is how a [`PageRange`] lies in memory, but that it
//! has a count where its end was listed.

use std::mem::MaybeUninit;

use bindery_units::PageRange;

use super::list::{List, SPARE_RUNS, WORD_RUNS};
use super::output::Output;
use super::takes::Takes;
use crate::decode::{Decoder, LIST, Words};
use crate::geometry::WORD_BITS;
use crate::take::Take;

/// Runs, to the end of a list. None of them is next to another, within one walk.
pub(super) struct Runs<'l, L> {
    list: &'l mut L,
    /// Whether the last run may go on. It is not in the list then, which has room for it.
    is_open: bool,
    /// The page that it began with, and the one that it would go on with.
    first: u32,
    next: u32,
}

impl<'l, L: List<Entry = PageRange>> Runs<'l, L> {
    pub(super) fn new(list: &'l mut L) -> Self {
        Self { list, is_open: false, first: 0, next: 0 }
    }

    /// Adds the last run.
    pub(super) fn finish(mut self) {
        if self.is_open {
            self.close();
        }
    }

    /// Ends the open run before page `next`.
    fn close(&mut self) {
        let end = self.list.end();
        // SAFETY: an open run has room.
        unsafe {
            end.write(self.first);
            end.add(1).write(self.next - self.first);
            self.list.advance(1);
        }
        self.is_open = false;
    }

    /// Where runs begin and end in words that follow the ones before.
    #[inline(always)]
    fn ends_of(&mut self, words: impl Words) -> Ends {
        let mut ends = Ends { numbers: [const { MaybeUninit::uninit() }; 2 * LIST], len: 0 };
        assert!(words.len() <= LIST, "{} words are too many at a time", words.len());
        let (mut is_open, mut next, mut len) = (self.is_open, self.next, 0);
        for at in 0..words.len() {
            let (bits, first) = (words.bits(at), words.first(at));
            let goes_on = is_open & (first == next);
            let changes = bits ^ (bits << 1 | u64::from(goes_on));
            // What is put and not counted is written over.
            ends.numbers[len].write((next, 1));
            len += usize::from(is_open & !goes_on);
            ends.numbers[len].write((first, changes));
            len += usize::from(changes != 0);
            is_open = bits >> (WORD_BITS - 1) == 1;
            next = first.wrapping_add(WORD_BITS as u32);
        }
        ends.len = len;
        (self.is_open, self.next) = (is_open, next);
        ends
    }
}

impl<L: List<Entry = PageRange>> Output for Runs<'_, L> {
    const GROWS: bool = L::GROWS;

    #[inline]
    fn room_words(&mut self) -> usize {
        self.list.prepare().saturating_sub(SPARE_RUNS) / WORD_RUNS
    }

    #[inline]
    fn list<T: Take, const WHOLE: bool>(&mut self, takes: Takes<'_, T, WHOLE>, decoder: Decoder) {
        let was_open = usize::from(self.is_open);
        let ends = self.ends_of(takes);
        let end = self.list.end();
        // SAFETY: as many words as there is room for begin 32 runs each at most, and end as many and the
        // open one, which comes first; the decoder writes no further than a word beyond. What it counts it
        // has written.
        unsafe {
            end.write(self.first);
            let numbers = was_open + decoder.list_pages(&ends, end.add(was_open));
            assert_eq!(numbers % 2 == 1, self.is_open, "a run that does not end is open");
            for run in 0..numbers / 2 {
                let (first, end) = (end.add(2 * run), end.add(2 * run + 1));
                *end -= *first;
            }
            if self.is_open {
                self.first = *end.add(numbers - 1);
            }
            self.list.advance(numbers / 2);
        }
    }

    fn list_part(&mut self, first: u32, bits: u64) -> u64 {
        let follows = self.is_open && first == self.next;
        let mut rest = bits;
        while rest != 0 {
            let start = rest.trailing_zeros();
            let end = start + (rest >> start).trailing_ones();
            if self.is_open && !(follows && start == 0) {
                self.close();
            }
            if !self.is_open {
                if self.list.prepare() == 0 {
                    break;
                }
                (self.is_open, self.first) = (true, first.wrapping_add(start));
            }
            self.next = first.wrapping_add(end);
            if end < WORD_BITS as u32 {
                self.close();
            }
            // What is added is carried through the run.
            rest &= rest.wrapping_add(1 << start);
        }
        rest
    }
}

/// Words of which each bit is the first page of a run or the one behind its last.
struct Ends {
    /// What the lowest bit of a word is called, and the word.
    numbers: [MaybeUninit<(u32, u64)>; 2 * LIST],
    /// How many of them were written.
    len: usize,
}

impl Ends {
    #[inline(always)]
    fn get(&self, at: usize) -> (u32, u64) {
        assert!(at < self.len, "only what was put can be had");
        // SAFETY: `len` counts what was written.
        unsafe { self.numbers[at].assume_init() }
    }
}

impl Words for &Ends {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn first(&self, at: usize) -> u32 {
        self.get(at).0
    }

    #[inline(always)]
    fn bits(&self, at: usize) -> u64 {
        self.get(at).1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use bindery_units::PageIndex;

    use super::super::list::Buffer;
    use super::*;

    fn runs_of(words: &[(u32, u64)]) -> Vec<(u32, u32)> {
        let mut buffer = [PageRange::default(); 100];
        let mut list = Buffer::new(&mut buffer);
        let mut runs = Runs::new(&mut list);
        words.iter().for_each(|(first, bits)| assert_eq!(runs.list_part(*first, *bits), 0));
        runs.finish();
        list.listed().iter().map(|run| (run.first.0, run.count)).collect()
    }

    #[test]
    fn runs_go_on_from_word_to_word() {
        assert_eq!(runs_of(&[(0, !0), (64, !0), (128, 0b111)]), [(0, 131)]);
        assert_eq!(runs_of(&[(0, 1 << 63), (64, 1)]), [(63, 2)]);
        assert_eq!(runs_of(&[(0, 1 << 63), (128, 1)]), [(63, 1), (128, 1)]);
        assert_eq!(runs_of(&[(64, 0b1011_0110)]), [(65, 2), (68, 2), (71, 1)]);
        assert_eq!(runs_of(&[(64, 0), (128, 0)]), []);
        // A window whose base is bit 3 of its first word.
        assert_eq!(runs_of(&[(3_u32.wrapping_neg(), !0 << 3), (61, 1)]), [(0, 62)]);
    }

    #[test]
    fn a_word_that_does_not_fit_is_listed_in_part() {
        let mut buffer = [PageRange::default(); 2];
        let mut list = Buffer::new(&mut buffer);
        let mut runs = Runs::new(&mut list);
        assert_eq!(runs.list_part(64, 1 << 63 | 0b110), 0);
        // The last one goes on, for which there is room.
        assert_eq!(runs.list_part(128, 0b1011), 0b1000);
        runs.finish();
        assert_eq!(
            list.listed(),
            [(65, 2), (127, 3)].map(|(at, n)| PageRange::new(PageIndex(at), n))
        );
    }
}
