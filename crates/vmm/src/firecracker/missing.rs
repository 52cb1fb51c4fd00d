//! Pages of a microVM that were not filled yet. Pure.

use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use super::regions::GuestRegion;

const BITS: u32 = u64::BITS;

/// Pages of the memory file that a microVM still lacks, and where in its process they belong.
#[derive(Debug)]
pub(super) struct Missing {
    /// Ascending by offset; apart in the process too.
    regions: Vec<GuestRegion>,
    /// A bit for each page of the memory file.
    words: Vec<u64>,
    count: u64,
}

impl Missing {
    /// Makes a table in which all pages of `regions` are missing, which [`decode_regions`](super::decode_regions) has checked.
    pub(super) fn all_of(regions: Vec<GuestRegion>) -> Self {
        let end = regions.last().map_or(0, |region| region.offset + region.bytes);
        let pages = (end / PAGE_BYTES as u64).div_ceil(BITS.into());
        let mut missing = Self { regions, words: vec![0; pages as usize], count: 0 };
        for region in 0..missing.regions.len() {
            let pages = pages_of(&missing.regions[region]);
            missing.set(pages, true);
        }
        missing
    }

    /// Returns the number of missing pages.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn contains(&self, page: PageIndex) -> bool {
        self.words
            .get((page.0 / BITS) as usize)
            .is_some_and(|word| word >> (page.0 % BITS) & 1 == 1)
    }

    /// Takes pages out.
    pub(super) fn remove(&mut self, pages: PageRange) {
        self.set(pages, false);
    }

    fn set(&mut self, pages: PageRange, value: bool) {
        let end = pages.end().0.min(self.words.len() as u32 * BITS);
        let mut at = pages.first.0;
        while at < end {
            let (word, bit) = ((at / BITS) as usize, at % BITS);
            let count = (BITS - bit).min(end - at);
            let mask = (u64::MAX >> (BITS - count)) << bit;
            let before = self.words[word].count_ones();
            self.words[word] =
                if value { self.words[word] | mask } else { self.words[word] & !mask };
            self.count = self.count + u64::from(self.words[word].count_ones()) - u64::from(before);
            at += count;
        }
    }

    /// Returns the first run of missing pages in a range that lies in one piece in the process, and its address.
    pub(super) fn first_in(&self, range: PageRange) -> Option<(PageRange, u64)> {
        let first = self.next(range.first.0, range.end().0, true)?;
        let limit = range.end().0.min(pages_of(self.region_at(PageIndex(first))?).end().0);
        let end = self.next(first, limit, false).unwrap_or(limit);
        let run = PageRange::new(PageIndex(first), end - first);
        Some((run, self.address_of(run.first)?))
    }

    /// Returns the first page in `from..to` that is missing, or is not.
    fn next(&self, from: u32, to: u32, is_missing: bool) -> Option<u32> {
        let (mut at, to) = (from, to.min(self.words.len() as u32 * BITS));
        while at < to {
            let word = self.words[(at / BITS) as usize];
            let word = if is_missing { word } else { !word } >> (at % BITS);
            if word != 0 {
                return Some(at + word.trailing_zeros()).filter(|found| *found < to);
            }
            at += BITS - at % BITS;
        }
        None
    }

    fn region_at(&self, page: PageIndex) -> Option<&GuestRegion> {
        let behind = self
            .regions
            .partition_point(|region| region.offset <= u64::from(page.0) * PAGE_BYTES as u64);
        let region = &self.regions[behind.checked_sub(1)?];
        pages_of(region).contains(page).then_some(region)
    }

    /// Returns the address in the process of a page of the memory file that is in a region.
    pub(super) fn address_of(&self, page: PageIndex) -> Option<u64> {
        let region = self.region_at(page)?;
        Some(region.address + (u64::from(page) * PAGE_BYTES as u64 - region.offset))
    }

    /// Returns the page of the memory file at an address of the process.
    pub(super) fn page_at(&self, address: u64) -> Option<PageIndex> {
        let inside = |region: &&GuestRegion| {
            (region.address..region.address + region.bytes).contains(&address)
        };
        let region = self.regions.iter().find(inside)?;
        Some(PageIndex(((address - region.address + region.offset) / PAGE_BYTES as u64) as u32))
    }

    /// Returns the pages of the memory file between two addresses of the process, by region.
    pub(super) fn pages_between(&self, start: u64, end: u64) -> Vec<PageRange> {
        let within = self.regions.iter().filter_map(|region| {
            let start = start.max(region.address);
            let end = end.min(region.address + region.bytes);
            let first = start.checked_sub(region.address)? + region.offset;
            let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0)?;
            let (first, count) = (first / PAGE_BYTES as u64, bytes.div_ceil(PAGE_BYTES as u64));
            Some(PageRange::new(PageIndex(first as u32), count as u32))
        });
        within.collect()
    }

    /// Returns runs of missing pages, ascending: those nearer than `gap` pages to each other are one, unless a region
    /// ends between them.
    pub(super) fn runs(&self, gap: u32) -> Vec<PageRange> {
        let (mut runs, mut at) = (Vec::<PageRange>::new(), 0);
        let end = self.words.len() as u32 * BITS;
        while let Some((run, _)) = self.first_in(PageRange::new(PageIndex(at), end - at)) {
            at = run.end().0;
            let is_near = |last: &&mut PageRange| {
                let region = self.region_at(last.first).map(pages_of);
                run.first.0 - last.end().0 < gap
                    && region.is_some_and(|pages| pages.contains(run.first))
            };
            match runs.last_mut().filter(is_near) {
                Some(last) => last.count = run.end().0 - last.first.0,
                None => runs.push(run),
            }
        }
        runs
    }
}

fn pages_of(region: &GuestRegion) -> PageRange {
    let page = |bytes: u64| (bytes / PAGE_BYTES as u64) as u32;
    PageRange::new(PageIndex(page(region.offset)), page(region.bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Three regions with a hole between the last two, the last one lowest in the process.
    fn regions() -> Vec<GuestRegion> {
        let region = |address: u64, first: u64, pages: u64| GuestRegion {
            address: address * 4096,
            bytes: pages * 4096,
            offset: first * 4096,
            page_bytes: 4096,
        };
        vec![region(1000, 0, 70), region(2000, 70, 60), region(100, 140, 130)]
    }

    fn address_of(page: u32) -> u64 {
        let page = u64::from(page);
        let start = match page {
            0..70 => 1000 + page,
            70..130 => 2000 + page - 70,
            _ => 100 + page - 140,
        };
        start * 4096
    }

    proptest! {
        #[test]
        fn the_bits_are_a_set_of_pages(
            removed in prop::collection::vec((0..280u32, 0..90u32), 0..12),
            asked in (0..280u32, 0..200u32),
        ) {
            let mut missing = Missing::all_of(regions());
            let mut pages: BTreeSet<u32> = (0..130).chain(140..270).collect();
            for (first, count) in removed {
                missing.remove(PageRange::new(PageIndex(first), count));
                pages.retain(|page| !(first..first + count).contains(page));
            }
            prop_assert_eq!(missing.count(), pages.len() as u64);
            let range = PageRange::new(PageIndex(asked.0), asked.1);
            let first = pages.range(asked.0..asked.0 + asked.1).next().copied();
            let found = missing.first_in(range);
            prop_assert_eq!(found.map(|(run, _)| run.first.0), first);
            if let Some((run, address)) = found {
                prop_assert!(!run.is_empty() && run.end().0 <= range.end().0);
                for (at, page) in run.pages().enumerate() {
                    prop_assert!(pages.contains(&page.0));
                    prop_assert_eq!(address + at as u64 * 4096, address_of(page.0));
                    prop_assert_eq!(missing.page_at(address_of(page.0) + 17), Some(page));
                }
            }
            let runs = missing.runs(1);
            let listed: BTreeSet<u32> =
                runs.iter().flat_map(|run| run.pages()).map(|page| page.0).collect();
            prop_assert_eq!(&listed, &pages);
            let wide: BTreeSet<u32> =
                missing.runs(8).iter().flat_map(|run| run.pages()).map(|page| page.0).collect();
            prop_assert!(wide.is_superset(&pages));
            prop_assert!(!wide.iter().any(|page| (130..140).contains(page)));
        }

        #[test]
        fn addresses_are_found_in_the_file(first in 0..260u64, pages in 0..2200u64) {
            let missing = Missing::all_of(regions());
            let (start, end) = (first * 4096, (first + pages) * 4096);
            let found: BTreeSet<u32> = missing
                .pages_between(start, end)
                .iter()
                .flat_map(|run| run.pages())
                .map(|page| page.0)
                .collect();
            let expected: BTreeSet<u32> = (0..130)
                .chain(140..270)
                .filter(|page| (start..end).contains(&address_of(*page)))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
