//! Gains: of each block of a guest, how many of its pages a split would gain, and whether it is split.
//!
//! Two bytes a block.
//!
//! # Concurrency
//! While pages are examined, workers add to the gains of any guest's blocks. What is split changes between
//! those phases, or by the one worker that examines the block.

use std::sync::atomic::{AtomicU16, Ordering};

use bindery_units::PageIndex;
use bindery_wire::lane::BLOCK_PAGES;

/// Bit of a block that is split. The others count its gain.
const SPLIT: u16 = 1 << 15;

/// Gains of one guest's blocks.
#[derive(Debug, Default)]
pub(crate) struct Gains {
    blocks: Vec<AtomicU16>,
}

impl Gains {
    /// Makes room for the pages below `end`.
    pub(crate) fn grow(&mut self, end: PageIndex) {
        let blocks = end.0.div_ceil(BLOCK_PAGES) as usize;
        if blocks > self.blocks.len() {
            self.blocks.resize_with(blocks, AtomicU16::default);
        }
    }

    fn cell(&self, page: PageIndex) -> Option<&AtomicU16> {
        self.blocks.get((page.0 / BLOCK_PAGES) as usize)
    }

    /// Returns true if the block of `page` is split: only there pages may be merged.
    pub(crate) fn is_split(&self, page: PageIndex) -> bool {
        // Relaxed, here and below: a figure, and a flag that nothing is published with.
        self.cell(page).is_some_and(|cell| cell.load(Ordering::Relaxed) & SPLIT != 0)
    }

    /// Notes whether the block of `page` is split. Its gain is none from here on.
    pub(crate) fn set_split(&self, page: PageIndex, is_split: bool) {
        if let Some(cell) = self.cell(page) {
            cell.store(if is_split { SPLIT } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Adds pages to the gain of the block of `page`, unless it is split.
    pub(crate) fn add(&self, page: PageIndex, pages: u16) {
        let Some(cell) = self.cell(page) else { return };
        let added =
            |gain: u16| (gain & SPLIT == 0).then(|| gain.saturating_add(pages).min(SPLIT - 1));
        let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added);
    }

    /// Returns the gain of the block of `page`, in pages: none if it is split.
    pub(crate) fn of(&self, page: PageIndex) -> u32 {
        let gain = self.cell(page).map_or(0, |cell| cell.load(Ordering::Relaxed));
        if gain & SPLIT == 0 { gain.into() } else { 0 }
    }

    /// Returns the memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<AtomicU16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_count_until_a_block_is_split() {
        let mut gains = Gains::default();
        gains.grow(PageIndex(513));
        gains.add(PageIndex(3), 2);
        gains.add(PageIndex(511), 1);
        assert_eq!((gains.of(PageIndex(0)), gains.of(PageIndex(512))), (3, 0));
        gains.set_split(PageIndex(9), true);
        gains.add(PageIndex(9), 1);
        assert!(gains.is_split(PageIndex(0)) && !gains.is_split(PageIndex(512)));
        assert_eq!(gains.of(PageIndex(0)), 0);
        gains.set_split(PageIndex(9), false);
        (0..3).for_each(|_| gains.add(PageIndex(9), u16::MAX));
        assert!(!gains.is_split(PageIndex(9)) && gains.of(PageIndex(9)) > 512);
        // No room.
        gains.add(PageIndex(5000), 1);
        assert_eq!((gains.of(PageIndex(5000)), gains.is_split(PageIndex(5000))), (0, false));
    }
}
