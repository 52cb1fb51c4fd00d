//! Sampling of blocks: what a whole block is made of, and whether it changes, by reading little of it.
//!
//! Reading neither splits a huge page nor protects it. Some lines of a block are read, always the same, at
//! places that follow no pattern: they cost a microsecond or two, and a block in which much is written shows
//! by them. One in which little is written may not.

use bindery_sys::huge::Policy;
use bindery_sys::pagemap::{EXTENTS_PER_CALL_MAX, Extent, Query, category};
use bindery_units::{HostAddress, PAGE_BYTES, PageRange};
use bindery_wire::lane::{BLOCK_PAGES, BlockSample, BlockState};

use crate::{Core, blocks::may_be_huge, region::Region, transfer::PageSet};

/// Lines read of each huge page, and the words of a line.
const LINES: u64 = 16;
const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();

/// An odd number whose bits follow no pattern: the golden ratio's.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Pages that are there, whether the kernel's zeros, and whether in a huge page.
const BACKED: Query = Query {
    require: category::PRESENT,
    any_of: 0,
    invert: 0,
    report: category::PRESENT | category::ZERO | category::HUGE,
    protect: false,
    refuse_unprotectable: false,
};

impl Core {
    /// Samples a block, which stays mapped meanwhile. One system call, and the lines of a huge page.
    pub(crate) fn sample(
        &self,
        region: &Region,
        block: PageRange,
        policy: Policy,
        extents: &mut [Extent; EXTENTS_PER_CALL_MAX],
    ) -> BlockSample {
        let may_be_huge = u32::from(may_be_huge(region, block, policy));
        if region.is_split(block.first) {
            return BlockSample { state: BlockState::Split, may_be_huge, ..BlockSample::default() };
        }
        let start = region.address(block.first);
        let bytes = block.count as usize * PAGE_BYTES;
        // Where the kernel does not say, the next look may.
        let scanned = self.pagemap.scan(start, bytes, BACKED, extents);
        let extents = &extents[..scanned.map_or(0, |scanned| scanned.extents)];
        let own = extents.iter().filter(|extent| extent.categories & category::ZERO == 0);
        let present: usize = own.clone().map(Extent::pages).sum();
        let is_huge = own.clone().any(|extent| {
            extent.categories & category::HUGE != 0 && extent.pages() == BLOCK_PAGES as usize
        });
        let state = match (present, is_huge) {
            (0, _) => BlockState::Absent,
            (_, false) => BlockState::Small,
            (_, true) => BlockState::Huge,
        };
        let signature = if is_huge { self.signature(start, block.first.0) } else { 0 };
        BlockSample { state, may_be_huge, signature }
    }

    /// Reads the lines of a huge page, which are chosen by `seed`. Lines that cannot be read count as nothing.
    fn signature(&self, start: HostAddress, seed: u32) -> u64 {
        let lines = (0..LINES).map(|line| place(seed, line));
        let readable = lines.filter(|(page, _)| {
            self.readable(start.plus_pages(*page), PageSet::first(1)).contains(0)
        });
        readable.fold(MIX, |signature, (page, offset)| {
            let line = start.plus_pages(page).plus(offset).0 as *const u64;
            (0..LINE_WORDS).fold(signature, |signature, word| {
                // SAFETY: the block is mapped and stays so, and the line is within it and aligned. Its guest
                // may write there meanwhile, which is why the read is volatile.
                let word = unsafe { line.add(word).read_volatile() };
                (signature ^ word).wrapping_mul(MIX).rotate_left(29)
            })
        })
    }
}

/// Returns where a line of a block is: its page, and how far into that it begins, in bytes.
const fn place(seed: u32, line: u64) -> (u32, usize) {
    let mixed = ((seed as u64) * LINES + line + 1).wrapping_mul(MIX);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(MIX);
    let page = (mixed >> 40) as u32 % BLOCK_PAGES;
    (page, (mixed >> 52) as usize % (PAGE_BYTES / LINE_BYTES) * LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lines_lie_all_over_the_blocks() {
        let blocks = 0..64_u32;
        let places = blocks.flat_map(|block| (0..LINES).map(move |line| place(block * 512, line)));
        let places: Vec<_> = places.collect();
        assert!(places.iter().all(|(page, offset)| *page < BLOCK_PAGES && *offset < PAGE_BYTES));
        let pages: BTreeSet<u32> = places.iter().map(|(page, _)| *page).collect();
        let offsets: BTreeSet<usize> = places.iter().map(|(_, offset)| *offset).collect();
        assert!(pages.len() > 400, "{}", pages.len());
        assert_eq!(offsets.len(), PAGE_BYTES / LINE_BYTES);
    }
}
