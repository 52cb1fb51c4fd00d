//! Draws that depend on a seed and an operation's number alone.

use crate::world::PAGES;

/// Contents that many pages have, so that they are merged.
const COMMON_CONTENTS: u64 = 12;

/// What a page is filled with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    Zero,
    /// One of a few: pages of the same are equal, in this process and in its twin.
    Common(u64),
    /// No other page's.
    Unique(u64),
}

impl Content {
    /// The word at `at` of the page.
    pub(crate) fn word(self, at: usize) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Common(kind) => mix(kind << 32 | at as u64),
            Self::Unique(number) => mix(number ^ (at as u64) << 48 | 1 << 63),
        }
    }
}

/// A stream of draws (SplitMix64).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        Self(mix(seed) ^ mix(number.wrapping_add(0x5851_f42d_4c95_7f2d)))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Less than `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A page of the arena and how many from there, at most `most`: few mostly.
    pub(crate) fn range(&mut self, most: usize) -> (usize, usize) {
        let few = if self.once_in(3) { most } else { most.min(16) };
        let count = 1 + self.below(few as u64) as usize;
        let first = self.below((PAGES - count + 1) as u64) as usize;
        (first, count)
    }

    /// Two ranges of the same length that share no page.
    pub(crate) fn two_ranges(&mut self, most: usize) -> (usize, usize, usize) {
        let half = PAGES / 2;
        let count = 1 + self.below(most.min(half) as u64) as usize;
        let first = self.below((half - count + 1) as u64) as usize;
        let second = half + self.below((half - count + 1) as u64) as usize;
        if self.once_in(2) { (first, second, count) } else { (second, first, count) }
    }

    pub(crate) fn content(&mut self) -> Content {
        match self.below(8) {
            0 => Content::Zero,
            1 => Content::Unique(self.draw()),
            _ => Content::Common(self.below(COMMON_CONTENTS)),
        }
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
