//! How duplicates and writes lie in the huge pages of several processes.
//!
//! Memory is blocks of 2 MiB. A share of the pages of each process is an *image*: contents that all
//! processes have, once each, in runs of one length, which come in another order and at other
//! positions in each. Runs of whole blocks are aligned to blocks, all others lie anywhere. The rest
//! is unique.
//!
//! Some blocks are *hot*: a thread writes a word into every eighth page of them once a second. What
//! it writes is unique, so written pages are unique from the beginning and count as nothing that can
//! be saved; the seven pages between do.

use std::collections::HashMap;

use bindery_units::PAGE_BYTES;
use clap::ValueEnum;
use serde::Serialize;

use crate::merge::dataset::Mix;

/// Pages of a block, which one huge page can hold.
pub(super) const BLOCK_PAGES: u32 = (2 << 20) / PAGE_BYTES as u32;

/// Distance of written pages in a hot block.
const WRITE_SPACING_PAGES: u32 = 8;

/// Set in the seeds of pages that all processes have.
const IMAGE: u64 = 1 << 40;

/// Share of the blocks that are hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Hot {
    /// Nobody writes.
    None,
    /// One block in two, at random.
    Half,
    /// Every block.
    All,
}

/// Memory of all processes.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Number of processes.
    pub processes: u32,
    /// Blocks of 2 MiB of each.
    pub blocks: u32,
    /// Share of the image in each, in percent.
    pub share_percent: u32,
    /// Length of each of its runs, in pages.
    pub run_pages: u32,
    /// Share of the blocks that are hot.
    pub hot: Hot,
}

impl Layout {
    /// Returns a layout of one process, without anything that another has or that is hot.
    #[must_use]
    pub const fn unique(blocks: u32) -> Self {
        Self { processes: 1, blocks, share_percent: 0, run_pages: 1, hot: Hot::None }
    }

    /// Number of pages of each process.
    #[must_use]
    pub const fn pages(&self) -> u32 {
        self.blocks * BLOCK_PAGES
    }

    /// Number of runs of the image.
    fn runs(&self) -> u32 {
        (u64::from(self.pages()) * u64::from(self.share_percent) / 100) as u32 / self.run_pages
    }

    /// Seeds of the pages of process `process`, in order of its pages.
    #[must_use]
    pub fn seeds(&self, process: u32) -> Vec<u64> {
        let own = u64::from(process + 2) << 40;
        let mut seeds: Vec<u64> = (0..u64::from(self.pages())).map(|page| own | page).collect();
        let mut random = Mix(u64::from(process) << 8 | 1);
        let starts = self.starts(&mut random);
        for (run, start) in shuffled(self.runs(), &mut random).into_iter().zip(starts) {
            for page in 0..self.run_pages {
                seeds[(start + page) as usize] = IMAGE | u64::from(run * self.run_pages + page);
            }
        }
        for page in self.written_pages(process) {
            seeds[page as usize] = own | u64::from(page);
        }
        seeds
    }

    /// Places runs at random, none over another: the free space is cut at random positions.
    fn starts(&self, random: &mut Mix) -> Vec<u32> {
        let unit = if self.run_pages.is_multiple_of(BLOCK_PAGES) { BLOCK_PAGES } else { 1 };
        let free_units = (self.pages() - self.runs() * self.run_pages) / unit;
        let cut = |random: &mut Mix| (random.next() % u64::from(free_units + 1)) as u32 * unit;
        let mut cuts: Vec<u32> = (0..self.runs()).map(|_| cut(random)).collect();
        cuts.sort_unstable();
        (0..).zip(cuts).map(|(run, cut)| cut + run * self.run_pages).collect()
    }

    /// Numbers of the hot blocks of process `process`, in ascending order.
    #[must_use]
    pub fn hot_blocks(&self, process: u32) -> Vec<u32> {
        let mut random = Mix(u64::from(process) << 8 | 2);
        let mut blocks = match self.hot {
            Hot::None => Vec::new(),
            Hot::Half => shuffled(self.blocks, &mut random).split_off(self.blocks as usize / 2),
            Hot::All => (0..self.blocks).collect(),
        };
        blocks.sort_unstable();
        blocks
    }

    /// Pages of process `process` that its writer writes to, block by block.
    pub fn written_pages(&self, process: u32) -> impl Iterator<Item = u32> + use<> {
        self.hot_blocks(process).into_iter().flat_map(written_pages_of)
    }

    /// Number of pages that can be saved: all that hold a content, less one.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates_among(|_, _| true)
    }

    /// Number of pages that can be saved though no hot block is touched.
    #[must_use]
    pub fn quiet_duplicates(&self) -> u64 {
        let hot: Vec<Vec<u32>> = (0..self.processes).map(|of| self.hot_blocks(of)).collect();
        self.duplicates_among(|process, block| hot[process as usize].binary_search(&block).is_err())
    }

    fn duplicates_among(&self, is_wanted: impl Fn(u32, u32) -> bool) -> u64 {
        let mut copies: HashMap<u64, u64> = HashMap::new();
        for process in 0..self.processes {
            for (page, seed) in (0..).zip(self.seeds(process)) {
                if seed >> 40 == IMAGE >> 40 && is_wanted(process, page / BLOCK_PAGES) {
                    *copies.entry(seed).or_default() += 1;
                }
            }
        }
        copies.values().map(|copies| copies - 1).sum()
    }
}

/// Pages that are written in the hot block `block`.
pub(super) fn written_pages_of(block: u32) -> impl Iterator<Item = u32> {
    let first = block * BLOCK_PAGES;
    (first..first + BLOCK_PAGES).step_by(WRITE_SPACING_PAGES as usize)
}

/// Numbers below `count` in random order.
fn shuffled(count: u32, random: &mut Mix) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    for left in (2..=numbers.len()).rev() {
        numbers.swap(left - 1, (random.next() % left as u64) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn layout(share_percent: u32, run_pages: u32, hot: Hot) -> Layout {
        Layout { processes: 2, blocks: 40, share_percent, run_pages, hot }
    }

    fn image_pages(seeds: &[u64]) -> Vec<u32> {
        let image = |&(_, seed): &(u32, &u64)| seed >> 40 == 1;
        (0..).zip(seeds).filter(image).map(|(page, _)| page).collect()
    }

    #[test]
    fn the_image_has_its_share_at_other_positions() {
        for (share, run) in [(5, 1), (25, 64), (50, 512), (100, 1), (100, 512)] {
            let layout = layout(share, run, Hot::None);
            let [one, other] = [0, 1].map(|process| layout.seeds(process));
            let pages = 40 * 512 * share as usize / 100 / run as usize * run as usize;
            assert_eq!(image_pages(&one).len(), pages, "{share}% in {run}");
            assert_eq!(layout.duplicates(), pages as u64);
            assert_eq!(layout.quiet_duplicates(), pages as u64);
            let same = one.iter().zip(&other).filter(|(one, other)| one == other).count();
            assert!(same <= pages / 8, "{same} of {pages} lie at the same position");
            assert_eq!(one.iter().collect::<HashSet<_>>().len(), one.len(), "none twice in one");
        }
    }

    #[test]
    fn runs_are_whole_and_those_of_blocks_aligned() {
        let seeds = layout(25, 64, Hot::None).seeds(0);
        let begins = |page: &u32| (seeds[*page as usize] & 0xffff_ffff).is_multiple_of(64);
        let starts: Vec<u32> = image_pages(&seeds).into_iter().filter(begins).collect();
        assert_eq!(starts.len(), 80);
        for start in starts {
            let first = seeds[start as usize];
            assert!((0..64).all(|page| seeds[start as usize + page] == first + page as u64));
        }
        let seeds = layout(25, 512, Hot::None).seeds(1);
        let blocks: HashSet<u32> = image_pages(&seeds).iter().map(|page| page / 512).collect();
        assert_eq!(blocks.len(), 10);
    }

    #[test]
    fn written_pages_are_unique_and_in_hot_blocks() {
        let half = layout(100, 1, Hot::Half);
        assert_eq!(
            (half.hot_blocks(0).len(), layout(5, 1, Hot::All).hot_blocks(1).len()),
            (20, 40)
        );
        assert_ne!(half.hot_blocks(0), half.hot_blocks(1));
        let seeds = half.seeds(0);
        let written: Vec<u32> = half.written_pages(0).collect();
        assert_eq!(written.len(), 20 * 64);
        assert!(written.iter().all(|&page| seeds[page as usize] >> 40 == 2));
        let (all, quiet) = (half.duplicates(), half.quiet_duplicates());
        assert!(quiet < all && all < 40 * 512 && quiet > 0, "{quiet} of {all}");
        assert_eq!(layout(50, 64, Hot::All).quiet_duplicates(), 0);
    }
}
