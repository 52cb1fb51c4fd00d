//! Gains: of each block of a guest, which of its pages a split would gain, and whether it is split.
//!
//! 24 bytes a block, and a bit for each page of those that were read.
//!
//! # Concurrency
//! While pages are examined, workers add to the gains of any guest's blocks. What is split changes between
//! those phases, or by the one worker that examines the block.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use bindery_units::PageIndex;
use bindery_wire::lane::BLOCK_PAGES;

use crate::huge::Gain;

const WORD_PAGES: u32 = u64::BITS;
const WORDS: usize = (BLOCK_PAGES / WORD_PAGES) as usize;

/// Gain of one block.
#[derive(Debug, Default)]
struct BlockGain {
    is_split: AtomicBool,
    zeros: AtomicU16,
    /// A bit for each page that others have, too.
    shared: OnceLock<Box<[AtomicU64; WORDS]>>,
}

/// Gains of one guest's blocks.
#[derive(Debug, Default)]
pub(crate) struct Gains {
    blocks: Vec<BlockGain>,
}

impl Gains {
    /// Makes room for the pages below `end`.
    pub(crate) fn grow(&mut self, end: PageIndex) {
        let blocks = end.0.div_ceil(BLOCK_PAGES) as usize;
        if blocks > self.blocks.len() {
            self.blocks.resize_with(blocks, BlockGain::default);
        }
    }

    fn block(&self, page: PageIndex) -> Option<&BlockGain> {
        self.blocks.get((page.0 / BLOCK_PAGES) as usize)
    }

    fn whole(&self, page: PageIndex) -> Option<&BlockGain> {
        self.block(page).filter(|block| !block.is_split())
    }

    /// Returns true if the block of `page` is split: only there pages may be merged.
    pub(crate) fn is_split(&self, page: PageIndex) -> bool {
        self.block(page).is_some_and(BlockGain::is_split)
    }

    /// Notes whether the block of `page` is split. Its gain is none from here on.
    pub(crate) fn set_split(&self, page: PageIndex, is_split: bool) {
        let Some(block) = self.block(page) else { return };
        block.is_split.store(is_split, Ordering::Relaxed);
        block.zeros.store(0, Ordering::Relaxed);
        block.words().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Adds a page that others have, too, to what splitting its block gains, unless it is split.
    pub(crate) fn add(&self, page: PageIndex) {
        let Some(block) = self.whole(page) else { return };
        let words = block.shared.get_or_init(Box::default);
        let bit = page.0 % BLOCK_PAGES;
        words[(bit / WORD_PAGES) as usize].fetch_or(1 << (bit % WORD_PAGES), Ordering::Relaxed);
    }

    /// Adds zero pages to what splitting the block of `page` gains, unless it is split.
    pub(crate) fn add_zeros(&self, page: PageIndex, zeros: u16) {
        if let Some(block) = self.whole(page) {
            block.zeros.fetch_add(zeros, Ordering::Relaxed);
        }
    }

    /// Returns the gain of the block of `page`: none if it is split.
    pub(crate) fn of(&self, page: PageIndex) -> Gain {
        self.whole(page).map_or_else(Gain::default, BlockGain::sum)
    }

    /// Returns the memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let read = self.blocks.iter().filter(|block| block.shared.get().is_some()).count();
        self.blocks.capacity() * size_of::<BlockGain>() + read * WORDS * size_of::<u64>()
    }
}

impl BlockGain {
    fn is_split(&self) -> bool {
        // Relaxed, here and above: figures, and a flag that nothing is published with.
        self.is_split.load(Ordering::Relaxed)
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.shared.get().into_iter().flat_map(|words| words.iter())
    }

    fn sum(&self) -> Gain {
        let zeros = self.zeros.load(Ordering::Relaxed).into();
        let mut gain = Gain { zeros, ..Gain::default() };
        let mut last = 0;
        for word in self.words().map(|word| word.load(Ordering::Relaxed)) {
            gain.shared += word.count_ones();
            // A run begins at each page that the page before is not with.
            gain.runs += (word & !(word << 1 | last)).count_ones();
            last = word >> (WORD_PAGES - 1);
        }
        gain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn gains_count_until_a_block_is_split() {
        let mut gains = Gains::default();
        gains.grow(PageIndex(513));
        [3, 4, 511, 3].into_iter().for_each(|page| gains.add(PageIndex(page)));
        gains.add_zeros(PageIndex(0), 9);
        assert_eq!(gains.of(PageIndex(0)), Gain { shared: 3, runs: 2, zeros: 9 });
        assert_eq!(gains.of(PageIndex(512)), Gain::default());
        gains.set_split(PageIndex(9), true);
        gains.add(PageIndex(9));
        gains.add_zeros(PageIndex(9), 1);
        assert!(gains.is_split(PageIndex(0)) && !gains.is_split(PageIndex(512)));
        gains.set_split(PageIndex(9), false);
        assert_eq!(gains.of(PageIndex(0)), Gain::default());
        // No room.
        gains.add(PageIndex(5000));
        assert_eq!(gains.of(PageIndex(5000)), Gain::default());
        assert!(!gains.is_split(PageIndex(5000)));
    }

    proptest! {
        #[test]
        fn runs_are_pages_side_by_side(pages in prop::collection::btree_set(0..BLOCK_PAGES, 0..400)) {
            let mut gains = Gains::default();
            gains.grow(PageIndex(BLOCK_PAGES));
            pages.iter().for_each(|page| gains.add(PageIndex(*page)));
            let is_first = |page: &&u32| !page.checked_sub(1).is_some_and(|page| pages.contains(&page));
            let runs: BTreeSet<&u32> = pages.iter().filter(is_first).collect();
            let expected = Gain { shared: pages.len() as u32, runs: runs.len() as u32, zeros: 0 };
            prop_assert_eq!(gains.of(PageIndex(7)), expected);
        }
    }
}
