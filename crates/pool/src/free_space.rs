//! Free parts of one device.
//!
//! Nothing of it is stored: what is free is what the catalogue does not name, and is worked out when a
//! pool is opened. So there is no bitmap that could contradict the catalogue.
//!
//! Objects are placed by best fit at the lowest aligned offset, the small tables beside them by best
//! fit at the highest: tables fill the gaps that alignment leaves, and do not break up the large
//! holes from the front.

use std::collections::{BTreeMap, BTreeSet};

/// The free parts of one device, none touching another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Length by offset, in bytes.
    by_offset: BTreeMap<u64, u64>,
    /// Free parts as (length, offset), smallest first.
    by_length: BTreeSet<(u64, u64)>,
    free_bytes: u64,
}

impl FreeSpace {
    /// Nothing is free.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that are free, in all.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// The longest part that is free, in bytes.
    #[must_use]
    pub fn longest_bytes(&self) -> u64 {
        self.by_length.last().map_or(0, |&(bytes, _)| bytes)
    }

    /// The free parts as (offset, length) in bytes, by offset.
    pub fn parts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_offset.iter().map(|(&offset, &bytes)| (offset, bytes))
    }

    /// Makes a part free.
    ///
    /// # Panics
    /// If any of it was free already: somebody gave it back twice.
    pub fn release(&mut self, offset: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (mut start, mut end) = (offset, offset + bytes);
        if let Some((&before, &length)) = self.by_offset.range(..end).next_back() {
            assert!(before + length <= offset, "{bytes} bytes at {offset} were free already");
            if before + length == offset {
                self.remove(before, length);
                start = before;
            }
        }
        if let Some(&length) = self.by_offset.get(&end) {
            self.remove(end, length);
            end += length;
        }
        self.insert(start, end - start);
    }

    /// Takes exactly this part. Whether it could: all of it must be free.
    #[must_use]
    pub fn take(&mut self, offset: u64, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let Some(end) = offset.checked_add(bytes) else { return false };
        match self.by_offset.range(..=offset).next_back() {
            Some((&start, &length)) if end <= start + length => {
                self.carve(start, length, offset, bytes);
                true
            }
            _ => false,
        }
    }

    /// Takes a part at a multiple of `alignment`, the lowest in the smallest hole that has one. Where
    /// it is; none if there is no such hole.
    ///
    /// Looks at the holes that are long enough but badly placed, one after the other, which are those
    /// shorter than `bytes` + `alignment`.
    ///
    /// # Panics
    /// If `bytes` is 0, or `alignment` is no power of two.
    #[must_use]
    pub fn allocate(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        assert!(bytes > 0 && alignment.is_power_of_two(), "{bytes} bytes aligned to {alignment}");
        let fits = |&&(length, start): &&(u64, u64)| {
            let offset = start.next_multiple_of(alignment);
            offset.checked_add(bytes).is_some_and(|end| end <= start + length)
        };
        let &(length, start) = self.by_length.range((bytes, 0)..).find(fits)?;
        let offset = start.next_multiple_of(alignment);
        self.carve(start, length, offset, bytes);
        Some(offset)
    }

    /// Takes the end of the smallest hole that is long enough. Where it is; none if there is no hole.
    ///
    /// # Panics
    /// If `bytes` is 0.
    #[must_use]
    pub fn allocate_high(&mut self, bytes: u64) -> Option<u64> {
        assert!(bytes > 0, "a part of no bytes");
        let &(length, start) = self.by_length.range((bytes, 0)..).next()?;
        let offset = start + length - bytes;
        self.carve(start, length, offset, bytes);
        Some(offset)
    }

    /// Takes a part out of the hole that holds it.
    fn carve(&mut self, start: u64, length: u64, offset: u64, bytes: u64) {
        self.remove(start, length);
        self.insert(start, offset - start);
        self.insert(offset + bytes, start + length - offset - bytes);
    }

    fn insert(&mut self, offset: u64, bytes: u64) {
        if bytes > 0 {
            self.by_offset.insert(offset, bytes);
            self.by_length.insert((bytes, offset));
            self.free_bytes += bytes;
        }
    }

    fn remove(&mut self, offset: u64, bytes: u64) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(bytes, offset));
        self.free_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNITS: u64 = 96;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Allocate {
            bytes: u64,
            shift: u32,
        },
        AllocateHigh {
            bytes: u64,
        },
        Take {
            offset: u64,
            bytes: u64,
        },
        Release {
            which: usize,
        },
        /// Gives back the tail of a part, as a commit does with what was not written.
        Trim {
            which: usize,
            keep: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1..24_u64, 0..5_u32).prop_map(|(bytes, shift)| Step::Allocate { bytes, shift }),
            2 => (1..4_u64).prop_map(|bytes| Step::AllocateHigh { bytes }),
            1 => (0..UNITS, 0..12_u64).prop_map(|(offset, bytes)| Step::Take { offset, bytes }),
            3 => (0..64_usize).prop_map(|which| Step::Release { which }),
            1 => (0..64_usize, 1..8_u64).prop_map(|(which, keep)| Step::Trim { which, keep }),
        ]
    }

    /// Free units, one by one.
    #[derive(Default)]
    struct Oracle {
        free: Vec<bool>,
        held: Vec<(u64, u64)>,
    }

    impl Oracle {
        fn all_free(&self, offset: u64, bytes: u64) -> bool {
            (offset..offset + bytes).all(|at| self.free.get(at as usize) == Some(&true))
        }

        fn set(&mut self, offset: u64, bytes: u64, free: bool) {
            (offset..offset + bytes).for_each(|at| self.free[at as usize] = free);
        }

        fn hold(&mut self, offset: u64, bytes: u64) {
            self.set(offset, bytes, false);
            self.held.push((offset, bytes));
        }

        fn parts(&self) -> Vec<(u64, u64)> {
            let mut parts: Vec<(u64, u64)> = Vec::new();
            for (at, _) in self.free.iter().enumerate().filter(|(_, free)| **free) {
                match parts.last_mut() {
                    Some((offset, bytes)) if *offset + *bytes == at as u64 => *bytes += 1,
                    _ => parts.push((at as u64, 1)),
                }
            }
            parts
        }
    }

    fn apply(space: &mut FreeSpace, oracle: &mut Oracle, step: Step) {
        match step {
            Step::Allocate { bytes, shift } => {
                let alignment = 1 << shift;
                let offset = space.allocate(bytes, alignment);
                let fits = |at: &u64| at.is_multiple_of(alignment) && oracle.all_free(*at, bytes);
                assert_eq!(offset.is_some(), (0..UNITS).any(|at| fits(&at)));
                if let Some(offset) = offset {
                    assert!(fits(&offset));
                    oracle.hold(offset, bytes);
                }
            }
            Step::AllocateHigh { bytes } => {
                let offset = space.allocate_high(bytes);
                assert_eq!(offset.is_some(), (0..UNITS).any(|at| oracle.all_free(at, bytes)));
                if let Some(offset) = offset {
                    assert!(oracle.all_free(offset, bytes));
                    oracle.hold(offset, bytes);
                }
            }
            Step::Take { offset, bytes } => {
                let was_free = oracle.all_free(offset, bytes);
                assert_eq!(space.take(offset, bytes), was_free);
                if was_free && bytes > 0 {
                    oracle.hold(offset, bytes);
                }
            }
            Step::Release { which } if !oracle.held.is_empty() => {
                let which = which % oracle.held.len();
                let (offset, bytes) = oracle.held.swap_remove(which);
                space.release(offset, bytes);
                oracle.set(offset, bytes, true);
            }
            Step::Trim { which, keep } if !oracle.held.is_empty() => {
                let which = which % oracle.held.len();
                let (offset, bytes) = oracle.held[which];
                let keep = keep.min(bytes);
                space.release(offset + keep, bytes - keep);
                oracle.set(offset + keep, bytes - keep, true);
                oracle.held[which].1 = keep;
            }
            Step::Release { .. } | Step::Trim { .. } => {}
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_counting_units(steps in prop::collection::vec(step(), 1..120)) {
            let mut space = FreeSpace::new();
            space.release(0, UNITS);
            let mut oracle = Oracle { free: vec![true; UNITS as usize], held: Vec::new() };
            for step in steps {
                apply(&mut space, &mut oracle, step);
                let parts = oracle.parts();
                prop_assert_eq!(space.parts().collect::<Vec<_>>(), parts.clone());
                prop_assert_eq!(space.free_bytes(), parts.iter().map(|part| part.1).sum::<u64>());
                let longest = parts.iter().map(|part| part.1).max().unwrap_or(0);
                prop_assert_eq!(space.longest_bytes(), longest);
            }
        }
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn nothing_is_given_back_twice() {
        let mut space = FreeSpace::new();
        space.release(10, 10);
        space.release(15, 10);
    }

    #[test]
    fn tables_fill_the_gaps_that_alignment_leaves() {
        let mut space = FreeSpace::new();
        space.release(1, 63);
        assert_eq!(space.allocate(8, 8), Some(8));
        // The gap below, not the long hole above.
        assert_eq!(space.allocate_high(1), Some(7));
        assert_eq!(space.allocate(8, 8), Some(16));
    }
}
