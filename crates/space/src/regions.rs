//! All regions of the process, found by address and by page.
//!
//! Page indices are never used again, so that a message about a region that is gone cannot be taken
//! for one about another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use bindery_units::{HostAddress, PAGE_SHIFT, PageIndex, PageRange};

use crate::extents::Extents;
use crate::region::Region;
use bindery_wire::control::{PAGES_MAX, REGIONS_MAX};
use bindery_wire::lane::BLOCK_PAGES;

/// All regions of the process.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    lookup: RwLock<Lookup>,
    next_page: AtomicU32,
    /// Bounds of the regions, for those who may not wait.
    extents: Extents,
}

/// The regions, in both orders. They overlap in neither.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    by_address: BTreeMap<HostAddress, Arc<Region>>,
    by_page: BTreeMap<PageIndex, Arc<Region>>,
}

impl Lookup {
    /// Returns the number of regions.
    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Returns all regions, ascending by page.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.by_page.values()
    }

    /// Returns the region that the byte at `address` lies in. Allocates nothing.
    pub(crate) fn at(&self, address: HostAddress) -> Option<&Arc<Region>> {
        let (_, region) = self.by_address.range(..=address).next_back()?;
        (address < region.end()).then_some(region)
    }

    /// Returns the region of `page`. Allocates nothing.
    pub(crate) fn of(&self, page: PageIndex) -> Option<&Arc<Region>> {
        let (_, region) = self.by_page.range(..=page).next_back()?;
        region.pages().contains(page).then_some(region)
    }

    /// Returns the regions that have a byte between two addresses, ascending by address.
    pub(crate) fn overlapping(
        &self,
        start: HostAddress,
        end: HostAddress,
    ) -> impl Iterator<Item = &Arc<Region>> {
        let first = self.at(start).map_or(start, |region| region.start());
        self.by_address.range(first..end.max(first)).map(|(_, region)| region)
    }

    /// Returns the regions that have a page of `range`, ascending by page.
    pub(crate) fn within(&self, range: PageRange) -> impl Iterator<Item = &Arc<Region>> {
        let first = self.of(range.first).map_or(range.first, |region| region.pages().first);
        self.by_page.range(first..range.end().max(first)).map(|(_, region)| region)
    }

    fn insert(&mut self, region: Arc<Region>) {
        let same_page = self.by_page.insert(region.pages().first, Arc::clone(&region));
        let same_address = self.by_address.insert(region.start(), region);
        assert!(same_page.is_none() && same_address.is_none(), "regions do not overlap");
    }

    /// Removes a region, if it is still there.
    fn remove(&mut self, region: &Arc<Region>) {
        if self.has(region) {
            self.by_page.remove(&region.pages().first);
            self.by_address.remove(&region.start());
        }
    }

    fn has(&self, region: &Arc<Region>) -> bool {
        self.by_page.get(&region.pages().first).is_some_and(|other| Arc::ptr_eq(other, region))
    }
}

impl Regions {
    /// Returns page indices for a region of `count` pages at `address`, never given before. A page is as far
    /// into its block as its address is into the 2 MiB that a huge page would have there.
    pub(crate) fn number(&self, address: HostAddress, count: u32) -> Option<PageRange> {
        let into_block = (address.0 >> PAGE_SHIFT) as u32 % BLOCK_PAGES;
        let aligned = count.checked_add(into_block)?.checked_next_multiple_of(BLOCK_PAGES)?;
        let first = self
            .next_page
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                next.checked_add(aligned).filter(|&end| end <= PAGES_MAX)
            })
            .ok()?;
        Some(PageRange::new(PageIndex(first + into_block), count))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Lookup> {
        self.lookup.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if any managed memory may be between two addresses. Takes no lock.
    pub(crate) fn may_overlap(&self, start: HostAddress, end: HostAddress) -> bool {
        self.extents.may_overlap(start, end)
    }

    pub(crate) fn of(&self, page: PageIndex) -> Option<Arc<Region>> {
        self.read().of(page).cloned()
    }

    /// Returns the regions that have a byte between two addresses, ascending by address.
    pub(crate) fn overlapping(&self, start: HostAddress, end: HostAddress) -> Vec<Arc<Region>> {
        if !self.may_overlap(start, end) {
            return Vec::new();
        }
        self.read().overlapping(start, end).cloned().collect()
    }

    /// Returns true if there are as many as a daemon takes.
    pub(crate) fn is_full(&self) -> bool {
        self.read().len() >= REGIONS_MAX
    }

    pub(crate) fn add(&self, region: Region) -> Arc<Region> {
        let region = Arc::new(region);
        self.exchange_all(None, vec![Arc::clone(&region)]);
        region
    }

    /// Takes `pages` out of `region`; what is left of it stays.
    pub(crate) fn cut(&self, region: &Arc<Region>, pages: PageRange) {
        let all = region.pages();
        let before = PageRange::new(all.first, pages.first.0 - all.first.0);
        let after = PageRange::new(pages.end(), all.end().0 - pages.end().0);
        let rest = [before, after].into_iter().filter(|rest| !rest.is_empty());
        self.exchange(region, rest.map(|rest| region.part(rest)).collect());
        // Nobody asks for them any more, and the parts share the table.
        region.forget_pending(pages);
    }

    /// Puts `parts` of a region in its place.
    pub(crate) fn exchange(&self, region: &Arc<Region>, parts: Vec<Region>) {
        self.exchange_all(Some(region), parts.into_iter().map(Arc::new).collect());
    }

    /// Returns true if a region was neither cut nor taken out since it was looked up.
    pub(crate) fn has(&self, region: &Arc<Region>) -> bool {
        self.read().has(region)
    }

    fn exchange_all(&self, old: Option<&Arc<Region>>, new: Vec<Arc<Region>>) {
        let mut lookup = self.lookup.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = old {
            lookup.remove(old);
        }
        // A part lies within what its region had; memory that is new may lie beyond all extents.
        let grown = new.first().filter(|_| old.is_none()).map(bounds);
        new.into_iter().for_each(|region| lookup.insert(region));
        self.extents.follow(lookup.by_address.values().map(bounds), grown);
    }
}

fn bounds(region: &Arc<Region>) -> (HostAddress, HostAddress) {
    (region.start(), region.end())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bindery_units::PAGE_BYTES;
    use proptest::prelude::*;

    use super::*;
    use bindery_wire::control::Region as Announced;

    fn region(pages: PageRange, address: usize) -> Region {
        let address = HostAddress(address);
        let announced = Announced { pages, address };
        Region::new(announced, []).expect("small tables")
    }

    #[test]
    fn page_indices_end_where_the_daemon_takes_no_more() {
        let regions = Regions::default();
        let aligned = BLOCK_PAGES;
        let number = |count| regions.number(HostAddress(4 << 30), count);
        assert_eq!(number(PAGES_MAX - 2 * aligned).map(|pages| pages.first.0), Some(0));
        assert_eq!(number(2 * aligned + 1), None);
        assert_eq!(number(1).map(|pages| pages.end().0), Some(PAGES_MAX - 2 * aligned + 1));
        assert_eq!(number(aligned).map(|pages| pages.end().0), Some(PAGES_MAX));
        assert_eq!(number(1), None);
    }

    #[test]
    fn blocks_of_pages_are_blocks_of_addresses() {
        let regions = Regions::default();
        let number = |page: usize, count| {
            let pages = regions.number(HostAddress(page << PAGE_SHIFT), count).expect("few pages");
            (pages.first.0, pages.end().0)
        };
        assert_eq!(number(BLOCK_PAGES as usize * 9 + 500, 13), (500, 513));
        assert_eq!(number(BLOCK_PAGES as usize + 3, 512), (1024 + 3, 1024 + 515));
        assert_eq!(number(BLOCK_PAGES as usize * 2, 1), (2048, 2049));
    }

    #[test]
    fn cutting_leaves_the_rest() {
        let regions = Regions::default();
        let whole = regions.add(region(PageRange::new(PageIndex(0), 100), 0x10_0000));
        regions.cut(&whole, PageRange::new(PageIndex(10), 20));
        assert!(regions.of(PageIndex(9)).is_some() && regions.of(PageIndex(10)).is_none());
        assert_eq!(
            regions.of(PageIndex(30)).expect("rest").start(),
            HostAddress(0x10_0000 + 30 * PAGE_BYTES)
        );
        assert!(!regions.has(&whole));
        assert!(!regions.may_overlap(HostAddress(0), HostAddress(0x1000)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]
        /// What is found by address, by page and by a range is what a set of addresses says.
        #[test]
        fn lookups_agree_with_a_set(
            steps in prop::collection::vec((any::<bool>(), 0usize..600, 1u32..4), 1..700),
            asked in prop::collection::vec((0usize..2500, 1usize..9), 20),
        ) {
            const BASE: usize = 1 << 30;
            let regions = Regions::default();
            let mut managed = BTreeSet::new();
            for (adds, slot, count) in steps {
                // Slots of four pages: a region begins at each, and is shorter.
                let (first, address) = (slot * 4, BASE + slot * 4 * PAGE_BYTES);
                let all = first..first + 3;
                if adds && all.clone().all(|page| !managed.contains(&page)) {
                    let pages = regions.number(HostAddress(address), 3).expect("few pages");
                    regions.add(region(pages, address));
                    managed.extend(all);
                } else if let Some(found) =
                    regions.overlapping(HostAddress(address), HostAddress(address + PAGE_BYTES)).first()
                {
                    let end = HostAddress(address + count as usize * PAGE_BYTES);
                    let pages = found.pages_between(HostAddress(address), end);
                    regions.cut(found, pages);
                    managed.retain(|page| !(first..first + pages.count as usize).contains(page));
                }
            }
            let lookup = regions.read();
            let pages: usize = lookup.iter().map(|region| region.pages().count as usize).sum();
            prop_assert_eq!(pages, managed.len());
            for (page, count) in asked {
                let at = |page: usize| HostAddress(BASE + page * PAGE_BYTES);
                let (start, end) = (at(page), at(page + count));
                let found = lookup.at(start);
                prop_assert_eq!(found.is_some(), managed.contains(&page));
                if let Some(region) = found {
                    prop_assert!(Arc::ptr_eq(region, lookup.of(region.page(start)).expect("its page")));
                }
                let between = lookup.overlapping(start, end).map(|region| region.pages_between(start, end));
                let expected = managed.range(page..page + count).count();
                prop_assert_eq!(between.map(|pages| pages.count as usize).sum::<usize>(), expected);
                prop_assert!(expected == 0 || regions.may_overlap(start, end));
            }
        }
    }
}
