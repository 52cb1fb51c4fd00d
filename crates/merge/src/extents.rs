//! Which slots are free: long runs of them, for contents that guests hold side by side.

use std::collections::BTreeMap;

use bindery_units::{Slot, SlotRange};

/// Free and used slots of one store. Slots at and above the *frontier* were never used.
///
/// Slots are given back in segments. What is left of one that was *begun* has its file, so it is
/// filled before another segment is begun, but for a run that it has no room for.
#[derive(Debug)]
pub(crate) struct Extents {
    /// Free runs below the frontier, by first slot; no two touch.
    free: BTreeMap<u32, u32>,
    free_slots: u32,
    frontier: u32,
    limit: u32,
    segment_slots: u32,
}

impl Extents {
    /// All of `limit` slots are free, and will be given back in segments of so many.
    pub(crate) fn new(limit: u32, segment_slots: u32) -> Self {
        Self { free: BTreeMap::new(), free_slots: 0, frontier: 0, limit, segment_slots }
    }

    /// Slots below this have been used.
    pub(crate) fn frontier(&self) -> u32 {
        self.frontier
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u32 {
        self.frontier - self.free_slots
    }

    /// Takes `count` slots, in as few runs as it can; fewer slots if the store is full. Fresh slots come
    /// last: tables grow with the frontier.
    pub(crate) fn allocate(&mut self, count: u32) -> Vec<SlotRange> {
        let mut taken = Vec::new();
        let left = count - self.take_free(count, &mut taken);
        let fresh = left.min(self.limit - self.frontier);
        if fresh > 0 {
            taken.push(SlotRange::new(Slot(self.frontier), fresh));
            self.frontier += fresh;
        }
        taken
    }

    /// Takes `count` slots in one run, if there is one.
    pub(crate) fn allocate_run(&mut self, count: u32) -> Option<SlotRange> {
        let free = self.free.iter().find(|(_, length)| **length >= count);
        if let Some((first, length)) = free.map(|(first, length)| (*first, *length)) {
            return Some(self.cut_free(first, length, count));
        }
        let fits = count <= self.limit - self.frontier;
        fits.then(|| {
            self.frontier += count;
            SlotRange::new(Slot(self.frontier - count), count)
        })
    }

    /// Takes up to `count` slots from free runs, those of segments that were begun first. Returns how many.
    fn take_free(&mut self, count: u32, taken: &mut Vec<SlotRange>) -> u32 {
        let mut left = count;
        if count == 0 {
            return 0;
        }
        let mut runs: Vec<(u32, u32)> =
            self.free.iter().map(|(first, length)| (*first, *length)).collect();
        // What is left of a segment that was begun is its end.
        runs.sort_by_key(|(first, _)| first.is_multiple_of(self.segment_slots));
        for (first, length) in runs {
            if left == 0 {
                break;
            }
            let part = length.min(left);
            taken.push(self.cut_free(first, length, part));
            left -= part;
        }
        count - left
    }

    /// Takes the first `count` slots of a free run.
    fn cut_free(&mut self, first: u32, length: u32, count: u32) -> SlotRange {
        self.free.remove(&first);
        if count < length {
            self.free.insert(first + count, length - count);
        }
        self.free_slots -= count;
        SlotRange::new(Slot(first), count)
    }

    /// Gives back slots that were taken.
    ///
    /// # Panics
    /// If one of them is free already.
    pub(crate) fn release(&mut self, range: SlotRange) {
        let (mut first, mut end) = (range.first.0, range.end().0);
        assert!(end <= self.frontier, "{range:?} was never taken");
        self.free_slots += range.count;
        if let Some((before, length)) = self.free.range(..end).next_back() {
            let (before, before_end) = (*before, before + length);
            assert!(before_end <= first, "{range:?} is free already");
            if before_end == first {
                self.free.remove(&before);
                first = before;
            }
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        if end == self.frontier {
            self.frontier = first;
            self.free_slots -= end - first;
        } else {
            self.free.insert(first, end - first);
        }
    }

    /// Takes all of `range` that is free below the frontier.
    pub(crate) fn take(&mut self, range: SlotRange) {
        for free in self.free_in(range) {
            let (first, length) = self.free_run_at(free.first);
            let end = first + length;
            self.free.remove(&first);
            if first < free.first.0 {
                self.free.insert(first, free.first.0 - first);
            }
            if free.end().0 < end {
                self.free.insert(free.end().0, end - free.end().0);
            }
            self.free_slots -= free.count;
        }
    }

    /// Gives back all of `range` that is taken.
    pub(crate) fn release_taken(&mut self, range: SlotRange) {
        let end = range.end().0.min(self.frontier);
        let mut at = range.first.0;
        for free in self.free_in(range) {
            self.release_some(at, free.first.0);
            at = free.end().0;
        }
        self.release_some(at, end);
    }

    fn release_some(&mut self, first: u32, end: u32) {
        if first < end {
            self.release(SlotRange::new(Slot(first), end - first));
        }
    }

    /// How much of `range` is free below the frontier.
    pub(crate) fn free_slots_in(&self, range: SlotRange) -> u32 {
        self.free_in(range).iter().map(|free| free.count).sum()
    }

    /// What is free of `range` below the frontier, in order.
    fn free_in(&self, range: SlotRange) -> Vec<SlotRange> {
        let before = self.free.range(..range.first.0).next_back();
        let runs = before.into_iter().chain(self.free.range(range.first.0..range.end().0));
        let parts = runs.filter_map(|(first, length)| {
            let (first, end) = ((*first).max(range.first.0), (first + length).min(range.end().0));
            (first < end).then(|| SlotRange::new(Slot(first), end - first))
        });
        parts.collect()
    }

    /// The free run that `slot` is in.
    fn free_run_at(&self, slot: Slot) -> (u32, u32) {
        let run = self.free.range(..=slot.0).next_back().expect("a free slot is in a free run");
        (*run.0, *run.1)
    }

    /// How many slots there are room for.
    pub(crate) fn room(&self) -> u32 {
        self.limit - self.used()
    }

    /// Memory held, in bytes, roughly: a B-tree's nodes are at least half full.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.free.len() * 2 * size_of::<(u32, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// No slot is given twice, none is lost, and a store is full only when it is.
        #[test]
        fn slots_are_given_once(
            steps in prop::collection::vec((0..5, 0u32..400, any::<usize>()), 1..60),
            segment_slots in prop_oneof![Just(2u32), Just(16)],
        ) {
            let limit = 1000;
            let mut extents = Extents::new(limit, segment_slots);
            let mut used = BTreeSet::new();
            for (takes, count, seed) in steps {
                if takes == 0 {
                    let count = count % 64 + 1;
                    let fits = (0..=limit - count)
                        .any(|first| (first..first + count).all(|slot| !used.contains(&slot)));
                    let run = extents.allocate_run(count);
                    prop_assert_eq!(run.is_some(), fits);
                    for slot in run.into_iter().flat_map(|run| run.first.0..run.end().0) {
                        prop_assert!(slot < limit && used.insert(slot));
                    }
                } else if takes == 1 {
                    let free = limit - used.len() as u32;
                    let runs = extents.allocate(count);
                    let given: u32 = runs.iter().map(|run| run.count).sum();
                    prop_assert_eq!(given, count.min(free));
                    for run in runs {
                        for slot in run.first.0..run.end().0 {
                            prop_assert!(slot < limit && used.insert(slot));
                        }
                    }
                } else if takes == 2 {
                    let first = seed as u32 % limit;
                    let range = SlotRange::new(Slot(first), count.min(limit - first));
                    let below = first..range.end().0.min(extents.frontier());
                    extents.take(range);
                    used.extend(below);
                } else if takes == 3 {
                    let first = seed as u32 % limit;
                    let range = SlotRange::new(Slot(first), count.min(limit - first));
                    extents.release_taken(range);
                    used.retain(|slot| !(first..range.end().0).contains(slot));
                } else if !used.is_empty() {
                    let (count, first) = (count.max(1), *used.iter().nth(seed % used.len()).unwrap());
                    let end = (first..first + count).find(|slot| !used.contains(slot));
                    let length = end.unwrap_or(first + count) - first;
                    extents.release(SlotRange::new(Slot(first), length));
                    used.retain(|slot| !(first..first + length).contains(slot));
                }
                prop_assert_eq!(extents.used() as usize, used.len());
                prop_assert_eq!(extents.room() as usize, limit as usize - used.len());
                let highest = used.last().map_or(0, |slot| slot + 1);
                prop_assert_eq!(extents.frontier(), highest);
            }
        }
    }

    #[test]
    fn a_segment_that_was_begun_is_filled_before_another() {
        let run = |first, count| SlotRange::new(Slot(first), count);
        let mut extents = Extents::new(100_000, 16);
        extents.allocate(160);
        [run(32, 16), run(80, 16)].into_iter().for_each(|segment| extents.release(segment));
        assert_eq!(extents.allocate(10), [run(32, 10)]);
        extents.release(run(0, 16));
        assert_eq!(extents.allocate(10), [run(42, 6), run(0, 4)]);
        assert_eq!(extents.allocate(30), [run(4, 12), run(80, 16), run(160, 2)]);
    }
}
