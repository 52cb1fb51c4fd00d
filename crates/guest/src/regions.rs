//! Which pages of a guest are managed, as its shim tells, and what changed since asked last.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bindery_sys::memory::MachineMemory;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
pub use bindery_wire::control::PAGES_MAX;
use bindery_wire::control::{REGIONS_MAX, Region};

use crate::GuestError;

/// The most memory that one guest may have managed, in multiples of what the machine has, swap
/// included: what is only claimed costs the daemon up to a byte a page all the same.
const OVERCOMMIT_MAX: u64 = 4;

/// The most changes that may wait to be taken: a guest that makes more in one period is not sane.
const CHANGES_MAX: usize = 16 * REGIONS_MAX;

/// A region came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionChange {
    /// These pages are managed from now on.
    Added(Region),
    /// These pages are no longer managed, and private.
    Removed(PageRange),
}

/// The managed regions of one guest. They never overlap.
#[derive(Debug)]
pub struct RegionTable {
    /// By first page.
    regions: BTreeMap<u32, Region>,
    /// Pages of all of them, and the most that there may be.
    pages: u32,
    pages_max: u32,
    changes: Vec<RegionChange>,
}

impl Default for RegionTable {
    /// A table for a guest of this machine.
    fn default() -> Self {
        static PAGES: LazyLock<u32> = LazyLock::new(|| {
            // Without the figures, what fits any machine.
            MachineMemory::read().map_or(PAGES_MAX, |memory| pages_max(&memory))
        });
        Self::with_pages_max(*PAGES)
    }
}

impl RegionTable {
    fn with_pages_max(pages_max: u32) -> Self {
        Self { regions: BTreeMap::new(), pages: 0, pages_max, changes: Vec::new() }
    }

    /// Takes in what the shim says.
    ///
    /// # Errors
    /// [`GuestError::Nonsense`] if the region overlaps another, is empty, misaligned or beyond
    /// [`PAGES_MAX`], or if there are too many, or too many pages for this machine.
    pub fn add(&mut self, region: Region) -> Result<(), GuestError> {
        let range = checked(region.pages)?;
        // What is left of a region that was cut may begin at any page.
        if !region.address.is_page_aligned() || self.overlapping(range).next().is_some() {
            return Err(GuestError::nonsense(format!("a region of {range}, misaligned or taken")));
        }
        if self.regions.len() >= REGIONS_MAX {
            return Err(GuestError::nonsense(format!(
                "more than {REGIONS_MAX} regions, which a shim of this version does not have"
            )));
        }
        if range.count > self.pages_max - self.pages {
            return Err(GuestError::nonsense(format!(
                "regions of more than {} pages, {OVERCOMMIT_MAX} times the memory and swap of this \
                 machine",
                self.pages_max
            )));
        }
        self.pages += range.count;
        self.regions.insert(range.first.0, region);
        self.note(RegionChange::Added(region))
    }

    /// Takes in that pages are no longer managed: any part of any regions.
    ///
    /// # Errors
    /// [`GuestError::Nonsense`] if the range is none.
    pub fn remove(&mut self, range: PageRange) -> Result<(), GuestError> {
        let range = checked(range)?;
        let hit: Vec<Region> = self.overlapping(range).collect();
        for region in hit {
            self.regions.remove(&region.pages.first.0);
            self.pages -= region.pages.intersection(range).count;
            let (old, end) = (region.pages, range.end());
            let before = range.first.0.saturating_sub(old.first.0);
            let after = old.end().0.saturating_sub(end.0);
            for (first, count) in [(old.first, before), (end, after)] {
                if count > 0 {
                    let address = region.address.plus_pages(first.0 - old.first.0);
                    let part = Region { pages: PageRange::new(first, count), address };
                    self.regions.insert(first.0, part);
                }
            }
        }
        self.note(RegionChange::Removed(range))
    }

    /// All regions, ascending by page.
    #[must_use]
    pub fn regions(&self) -> Vec<Region> {
        self.regions.values().copied().collect()
    }

    /// What changed since this was last called, in the order in which it happened.
    pub fn take_changes(&mut self) -> Vec<RegionChange> {
        std::mem::take(&mut self.changes)
    }

    fn overlapping(&self, range: PageRange) -> impl Iterator<Item = Region> + '_ {
        // Regions do not overlap, so at most one that begins before the range reaches into it.
        let before = self.regions.range(..range.first.0).next_back();
        let within = self.regions.range(range.first.0..range.end().0);
        let regions = before.into_iter().chain(within).map(|(_, region)| *region);
        regions.filter(move |region| !region.pages.intersection(range).is_empty())
    }

    fn note(&mut self, change: RegionChange) -> Result<(), GuestError> {
        if self.changes.len() >= CHANGES_MAX {
            return Err(GuestError::nonsense("regions that come and go without end"));
        }
        self.changes.push(change);
        Ok(())
    }
}

/// The most pages of one guest on a machine with so much memory.
fn pages_max(memory: &MachineMemory) -> u32 {
    let bytes = memory.total_bytes.saturating_add(memory.swap_bytes).saturating_mul(OVERCOMMIT_MAX);
    u32::try_from(bytes / PAGE_BYTES as u64).map_or(PAGES_MAX, |pages| pages.min(PAGES_MAX))
}

/// A range as it came over the wire, if it is one.
fn checked(range: PageRange) -> Result<PageRange, GuestError> {
    let PageIndex(first) = range.first;
    match first.checked_add(range.count) {
        Some(end) if end <= PAGES_MAX && range.count > 0 => Ok(range),
        _ => Err(GuestError::nonsense(format!("{} pages at page {first}", range.count))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_units::HostAddress;
    use proptest::prelude::*;

    const BASE: usize = 1 << 40;

    fn region(first: u32, count: u32) -> Region {
        let pages = PageRange { first: PageIndex(first), count };
        let address = HostAddress(BASE + (first as usize) * 4096);
        Region { pages, address }
    }

    proptest! {
        /// The table says what a set of pages would say.
        #[test]
        fn the_table_is_a_set_of_pages(
            steps in prop::collection::vec((any::<bool>(), 0u32..8, 0u32..1500, 1u32..1200), 0..12)
        ) {
            let mut table = RegionTable::default();
            let mut pages = std::collections::BTreeSet::new();
            for (adds, block, offset, count) in steps {
                if adds {
                    let first = block * 512;
                    let free = (first..first + count).all(|page| !pages.contains(&page));
                    prop_assert_eq!(table.add(region(first, count)).is_ok(), free);
                    if free {
                        pages.extend(first..first + count);
                    }
                } else {
                    let first = block * 512 + offset;
                    table.remove(PageRange::new(PageIndex(first), count)).unwrap();
                    pages.retain(|page| !(first..first + count).contains(page));
                }
                prop_assert_eq!(table.pages as usize, pages.len());
                let changed: Vec<u32> = table
                    .regions()
                    .iter()
                    .flat_map(|region| region.pages.pages().map(|page| page.0))
                    .collect();
                prop_assert_eq!(changed, pages.iter().copied().collect::<Vec<_>>());
                for part in table.regions() {
                    prop_assert_eq!(part.address.0, BASE + part.pages.first.at() * 4096);
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut table = RegionTable::default();
        for bad in [region(0, 0), region(512, u32::MAX), region(PAGES_MAX, 1)] {
            assert!(table.add(bad).is_err(), "{bad:?}");
        }
        let beyond = PageRange { first: PageIndex(u32::MAX), count: 2 };
        assert!(table.remove(beyond).is_err());
        assert!(table.take_changes().is_empty());
    }

    #[test]
    fn a_guest_claims_no_more_than_some_times_what_the_machine_has() {
        let (total_bytes, swap_bytes) = (6 << 20, 2 << 20);
        let memory = MachineMemory { total_bytes, swap_bytes, available_bytes: 0 };
        let mut table = RegionTable::with_pages_max(pages_max(&memory));
        table.add(region(0, 4096)).unwrap();
        table.add(region(8192, 4096)).unwrap();
        let error = table.add(region(4096, 1)).unwrap_err();
        assert!(error.to_string().contains("the memory and swap of this machine"), "{error}");
        // What is given up may be claimed again.
        table.remove(region(2048, 8192).pages).unwrap();
        table.add(region(4096, 4096)).unwrap();

        let huge = MachineMemory { total_bytes: u64::MAX, ..memory };
        assert_eq!(pages_max(&huge), PAGES_MAX);
    }

    #[test]
    fn changes_come_in_order_and_once() {
        let mut table = RegionTable::default();
        table.add(region(0, 10)).unwrap();
        table.remove(region(0, 10).pages).unwrap();
        table.add(region(0, 20)).unwrap();
        let expected = [
            RegionChange::Added(region(0, 10)),
            RegionChange::Removed(region(0, 10).pages),
            RegionChange::Added(region(0, 20)),
        ];
        assert_eq!(table.take_changes(), expected);
        assert!(table.take_changes().is_empty());
    }
}
