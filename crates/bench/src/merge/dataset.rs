//! PageONE's two data sets, and how duplicates lie in a process.
//!
//! Two thirds of each process's pages are an *image* that all processes have; the rest are its own.
//! In `easy` any two different pages differ in their first 8 bytes; in `zero-prefix` each page
//! begins with a random number of zero bytes, 128 on average, so that whoever compares from the
//! front reads further. Image pages come in the same order in every process, cut into extents of
//! random length with the process's own pages between, cut differently in each: as files lie in
//! the page caches of guests that booted from one disk.

use std::fmt;

use bindery_units::{ByteCount, PAGE_BYTES};
use clap::ValueEnum;
use serde::Serialize;

use crate::choice;

/// What pages look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// The first 8 bytes tell any two pages apart.
    Easy,
    /// A random number of zero bytes first, 128 on average.
    ZeroPrefix,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&choice::name(self))
    }
}

/// What every process holds.
#[derive(Clone, Copy, Debug)]
pub struct Dataset {
    /// What pages look like.
    pub content: Content,
    /// Pages of each process.
    pub pages: u32,
    /// The mean length of an extent of the image.
    pub extent_pages: u32,
    /// How many processes.
    pub processes: u32,
}

/// Set in the seeds of pages that all processes have.
const IMAGE: u64 = 1 << 40;

/// Whether the page of a seed stands in every process.
#[must_use]
pub const fn is_image(seed: u64) -> bool {
    seed >> 40 == IMAGE >> 40
}

/// Mean length of the zeros at the start of a page of `zero-prefix`.
const ZERO_PREFIX_MEAN_BYTES: u64 = 128;

impl Dataset {
    const fn image_pages(&self) -> u32 {
        self.pages / 3 * 2
    }

    /// Pages that are in another process too, less one of each kind: the most that can be saved.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        u64::from(self.image_pages()) * u64::from(self.processes - 1)
    }

    /// Returns the memory that one copy of all that the processes share takes: what merging needs beside theirs.
    #[must_use]
    pub const fn shared(&self) -> ByteCount {
        ByteCount(self.image_pages() as u64 * PAGE_BYTES as u64)
    }

    /// The seed of each page of process `process`, in order of its pages.
    #[must_use]
    pub fn seeds(&self, process: u32) -> Vec<u64> {
        let mut random = Mix(u64::from(process) + 1);
        let (mut image, mut own) = (0, 0);
        let own_pages = self.pages - self.image_pages();
        let mut seeds = Vec::with_capacity(self.pages as usize);
        while seeds.len() < self.pages as usize {
            for _ in 0..random.length(self.extent_pages).min(self.image_pages() - image) {
                seeds.push(IMAGE | u64::from(image));
                image += 1;
            }
            // Own pages between, half as many, so that both end together.
            let own_extent = random.length(self.extent_pages.div_ceil(2));
            let rest = if image == self.image_pages() { own_pages - own } else { own_extent };
            for _ in 0..rest.min(own_pages - own) {
                seeds.push(u64::from(process + 2) << 40 | u64::from(own));
                own += 1;
            }
        }
        seeds
    }

    /// Writes the page of a seed.
    pub fn fill(&self, seed: u64, page: &mut [u8; PAGE_BYTES]) {
        let mut random = Mix(seed);
        let zeros = match self.content {
            Content::Easy => 0,
            Content::ZeroPrefix => (random.next() % (2 * ZERO_PREFIX_MEAN_BYTES)) as usize,
        };
        page[..zeros].fill(0);
        for chunk in page[zeros..].chunks_mut(8) {
            let word = random.next() | 1;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
pub(crate) struct Mix(pub(crate) u64);

impl Mix {
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A length of `mean` on average, from 1 to twice as long.
    fn length(&mut self, mean: u32) -> u32 {
        1 + (self.next() % u64::from(2 * mean - 1)) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn dataset(content: Content, extent_pages: u32) -> Dataset {
        Dataset { content, pages: 3000, extent_pages, processes: 4 }
    }

    #[test]
    fn two_thirds_of_the_pages_stand_in_every_process() {
        for extent_pages in [1, 8, 64] {
            let dataset = dataset(Content::Easy, extent_pages);
            let mut count: HashMap<u64, u32> = HashMap::new();
            for process in 0..4 {
                let seeds = dataset.seeds(process);
                assert_eq!(seeds.len(), 3000);
                assert_eq!(seeds.iter().collect::<HashSet<_>>().len(), 3000, "none twice in one");
                seeds.iter().for_each(|seed| *count.entry(*seed).or_default() += 1);
            }
            let saved: u32 = count.values().map(|count| count - 1).sum();
            assert_eq!(u64::from(saved), dataset.duplicates());
        }
    }

    #[test]
    fn prefixes_average_128_zero_bytes() {
        let dataset = dataset(Content::ZeroPrefix, 8);
        let mut page = [0; PAGE_BYTES];
        let mut zeros = 0;
        for seed in 0..2000 {
            dataset.fill(seed, &mut page);
            zeros += page.iter().take_while(|&&byte| byte == 0).count();
        }
        assert!((118..138).contains(&(zeros / 2000)), "{}", zeros / 2000);
    }
}
