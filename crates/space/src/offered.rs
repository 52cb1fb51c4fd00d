//! Ranges that the VMM offered with `MADV_MERGEABLE`, as it named them, whether they are managed or not.
//!
//! A VMM offers its blocks of memory in the order in which it makes them: so a daemon that knows the blocks
//! from elsewhere finds where each of them lies. A range is forgotten when any of it is unmapped or moved.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bindery_units::HostAddress;
use bindery_wire::control::{OFFERED_MAX, Offered};

use crate::{Space, end_of, extents::Extents};

/// The first [`OFFERED_MAX`] ranges that are still mapped, in the order of the calls.
#[derive(Debug, Default)]
pub(crate) struct OfferedRanges {
    list: Mutex<List>,
    /// Bounds of the ranges, for those who may not wait.
    extents: Extents,
}

#[derive(Debug, Default)]
struct List {
    /// Ascending by address.
    ranges: Vec<Offered>,
    /// Number of the next range.
    next: u32,
}

impl OfferedRanges {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a range. Returns false for one that is known, or one too many.
    fn add(&self, address: HostAddress, bytes: u64) -> bool {
        let mut list = self.lock();
        let is_known =
            list.ranges.iter().any(|known| (known.address, known.bytes) == (address, bytes));
        let next = list.next.checked_add(1);
        let (false, Some(next)) = (is_known || list.ranges.len() >= OFFERED_MAX, next) else {
            return false;
        };
        let offered = Offered { number: list.next, address, bytes };
        list.next = next;
        let place = list.ranges.partition_point(|range| range.address <= address);
        list.ranges.insert(place, offered);
        self.follow(&list, Some(bounds(&offered)));
        true
    }

    /// Forgets every range that has a byte between two addresses. Returns true if there was any.
    fn withdraw(&self, start: HostAddress, end: HostAddress) -> bool {
        if !self.extents.may_overlap(start, end) {
            return false;
        }
        let mut list = self.lock();
        let before = list.ranges.len();
        list.ranges.retain(|range| {
            let (from, to) = bounds(range);
            end <= from || to <= start
        });
        let is_changed = list.ranges.len() < before;
        if is_changed {
            self.follow(&list, None);
        }
        is_changed
    }

    fn follow(&self, list: &List, grown: Option<(HostAddress, HostAddress)>) {
        // Offers may overlap: each reaches as far as those before it.
        let mut reach = HostAddress(0);
        let ascending = list.ranges.iter().map(bounds).map(|(start, end)| {
            reach = reach.max(end);
            (start, reach)
        });
        self.extents.follow(ascending, grown);
    }
}

fn bounds(range: &Offered) -> (HostAddress, HostAddress) {
    (range.address, HostAddress(range.address.0.saturating_add(range.bytes as usize)))
}

impl Space {
    /// Notes that the VMM offered a range, which may be shared memory that is never managed. Returns true if
    /// it is to be reported.
    pub fn note_offered(&self, address: HostAddress, bytes: usize) -> bool {
        self.core.offered.add(address, bytes as u64)
    }

    /// Forgets the ranges that were [noted](Self::note_offered) and have a byte in this one, which is about to
    /// be unmapped, replaced or moved. Returns true if there was any. Takes no lock where none is.
    pub fn withdraw_offered(&self, address: HostAddress, bytes: usize) -> bool {
        self.core.offered.withdraw(address, end_of(address, bytes))
    }

    /// Returns the ranges that the VMM offered and that are still mapped, in the order of its calls.
    #[must_use]
    pub fn offered(&self) -> Vec<Offered> {
        let mut ranges = self.core.offered.lock().ranges.clone();
        ranges.sort_unstable_by_key(|range| range.number);
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(page: usize) -> HostAddress {
        HostAddress(page << 12)
    }

    fn numbers(ranges: &OfferedRanges) -> Vec<u32> {
        let mut numbers: Vec<u32> = ranges.lock().ranges.iter().map(|range| range.number).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn ranges_keep_the_order_of_the_calls() {
        let ranges = OfferedRanges::default();
        assert!(
            ranges.add(at(90), 4096) && ranges.add(at(10), 3 * 4096) && ranges.add(at(50), 4096)
        );
        assert!(!ranges.add(at(10), 3 * 4096), "it is known");
        assert!(!ranges.withdraw(at(13), at(50)));
        assert!(ranges.withdraw(at(12), at(13)));
        assert_eq!(numbers(&ranges), [0, 2]);
        assert!(ranges.add(at(10), 3 * 4096));
        assert_eq!(numbers(&ranges), [0, 2, 3]);
    }

    #[test]
    fn the_first_are_kept_and_all_found() {
        let ranges = OfferedRanges::default();
        let spread = |n: usize| at((n * 7919) % 100_000 * 4 + 4);
        let added = (0..OFFERED_MAX + 9).filter(|&n| ranges.add(spread(n), 4096)).count();
        assert_eq!(added, OFFERED_MAX);
        for n in 0..OFFERED_MAX {
            assert!(ranges.withdraw(spread(n), spread(n).plus(1)), "{n}");
        }
        assert!(!ranges.withdraw(at(0), at(1 << 30)));
    }
}
