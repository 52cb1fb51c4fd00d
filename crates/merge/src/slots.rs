//! What is known of each slot of a store: how many pages map it, and which leaf leads to it.
//!
//! # The reference rule
//! A reference is taken *before* a guest is asked to map a slot, and given back when it has said
//! that it does not. So a slot without references is mapped by no guest, and only then is it freed.
//!
//! # The segment rule
//! What no guest maps that the daemon knows of, somebody else may: a child of a guest, of any kind of
//! fork, or I/O that began before. So a slot that was written is never written again, nor punched. Slots are given back
//! in *segments*, each of which is a file: one that was freed is *vacant* until all of its segment are
//! (`compact` sees to that). Then the file is closed, and the slots' next contents go to another one
//! (`store`).
//!
//! # Concurrency
//! References are taken and given back by any worker during a phase; slots are allocated and freed
//! between phases only. A slot found in the index always has a reference, or copies that have one:
//! within the phases in which slots are found, none is given back.

use std::sync::atomic::{AtomicU32, Ordering};

use bindery_units::{Slot, SlotRange};

use crate::extents::Extents;

/// A store with so many segments keeps one for what is to move.
const SEGMENTS_TO_SPARE: u32 = 4;

/// Leads to no leaf.
const NO_LEAF: u32 = u32::MAX;

/// The slots of one store. Eight bytes for each slot below the highest that was not given back, two
/// for each segment.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Vacant ones are taken as well.
    extents: Extents,
    references: Vec<AtomicU32>,
    /// The leaf of each slot that one leads to.
    leaves: Vec<u32>,
    /// How many slots of each segment are in use.
    used_of: Vec<u16>,
    used: u32,
    limit: u32,
    segment_slots: u32,
}

/// A segment that has slots in use and vacant ones. The rest of it was not allocated yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sparse {
    pub(crate) range: SlotRange,
    pub(crate) used: u32,
    pub(crate) vacant: u32,
    /// References of its slots: pages that map them, or may.
    pub(crate) references: u64,
}

impl Slots {
    /// A store that can have `limit` slots, which are given back in segments of so many.
    pub(crate) fn new(limit: u32, segment_slots: u32) -> Self {
        Self {
            extents: Extents::new(limit, segment_slots),
            references: Vec::new(),
            leaves: Vec::new(),
            used_of: Vec::new(),
            used: 0,
            limit,
            segment_slots,
        }
    }

    /// Takes up to `count` slots without references; fewer if the store is full.
    pub(crate) fn allocate(&mut self, count: u32) -> Vec<SlotRange> {
        self.allocate_last(count.min(self.room_but_the_last()))
    }

    /// The same, where even the last segment may be taken.
    pub(crate) fn allocate_last(&mut self, count: u32) -> Vec<SlotRange> {
        let runs = self.extents.allocate(count);
        self.grow();
        runs.iter().for_each(|run| self.use_all(*run));
        runs
    }

    /// Takes `count` slots side by side without references, if there are as many.
    pub(crate) fn allocate_run(&mut self, count: u32) -> Option<SlotRange> {
        if count > self.room_but_the_last() {
            return None;
        }
        let run = self.extents.allocate_run(count)?;
        self.grow();
        self.use_all(run);
        Some(run)
    }

    /// Makes room in the tables for all slots below the frontier.
    fn grow(&mut self) {
        let frontier = self.extents.frontier() as usize;
        if frontier > self.references.len() {
            self.references.resize_with(frontier, AtomicU32::default);
            self.leaves.resize(frontier, NO_LEAF);
            self.used_of.resize(frontier.div_ceil(self.segment_slots as usize), 0);
        }
    }

    fn use_all(&mut self, run: SlotRange) {
        self.used += run.count;
        for part in self.parts(run) {
            *self.used_of_mut(part.first) += part.count as u16;
        }
    }

    /// How many slots of the segment of `slot` are in use.
    fn used_of_mut(&mut self, slot: Slot) -> &mut u16 {
        &mut self.used_of[(slot.0 / self.segment_slots) as usize]
    }

    /// The parts of `run` that are in one segment each.
    fn parts(&self, run: SlotRange) -> impl Iterator<Item = SlotRange> + use<> {
        let (segment, end) = (self.segment_slots, run.end().0);
        let firsts = std::iter::successors(Some(run.first.0), move |first| {
            Some((first / segment + 1) * segment).filter(|next| *next < end)
        });
        let parts = firsts.map(move |first| {
            let next = ((first / segment + 1) * segment).min(end);
            SlotRange::new(Slot(first), next - first)
        });
        parts.filter(|part| part.count > 0)
    }

    /// The segment that `slot` is in.
    pub(crate) fn segment_of(&self, slot: Slot) -> SlotRange {
        let first = slot.0 / self.segment_slots * self.segment_slots;
        SlotRange::new(Slot(first), self.segment_slots)
    }

    /// Says which leaf leads to `slot`, or that none does (any more).
    pub(crate) fn set_leaf(&mut self, slot: Slot, leaf: Option<u32>) {
        self.leaves[slot.at()] = leaf.unwrap_or(NO_LEAF);
    }

    /// The leaf that leads to `slot`.
    pub(crate) fn leaf(&self, slot: Slot) -> Option<u32> {
        Some(self.leaves[slot.at()]).filter(|leaf| *leaf != NO_LEAF)
    }

    /// Takes a reference of a slot that was not found in the index. False if it could not be: no page
    /// gets it any more that does not have it.
    pub(crate) fn take_indexed(&self, slot: Slot) -> bool {
        let indexed = slot.at() < self.leaves.len() && self.leaf(slot).is_some();
        if indexed {
            self.take(slot);
        }
        indexed
    }

    /// Takes a reference.
    pub(crate) fn take(&self, slot: Slot) {
        // Relaxed: the phases order what depends on it, see the module's concurrency rule.
        let before = self.references[slot.at()].fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX, "fewer pages than 2^32 map a slot");
    }

    /// Takes a reference of a slot that somebody claims to map already. False if nobody can: the
    /// slot is free or does not exist.
    pub(crate) fn take_claimed(&self, slot: Slot) -> bool {
        let claimed = self.references(slot) > 0;
        if claimed {
            self.take(slot);
        }
        claimed
    }

    /// Gives a reference back. True if it was the last.
    ///
    /// # Panics
    /// If there was none.
    pub(crate) fn give_back(&self, slot: Slot) -> bool {
        let before = self.references[slot.at()].fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "{slot:?} had no reference to give back");
        before == 1
    }

    /// How many references `slot` has.
    pub(crate) fn references(&self, slot: Slot) -> u32 {
        self.references.get(slot.at()).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Frees slots. Returns the segments of which none is in use any more: they are to be
    /// [given back](Self::give_back_segments) when their files are closed.
    ///
    /// # Panics
    /// If one has references.
    #[must_use]
    pub(crate) fn free(&mut self, range: SlotRange) -> Vec<SlotRange> {
        for slot in range.slots() {
            assert!(self.references(slot) == 0, "{slot:?} is freed while it is mapped");
            self.set_leaf(slot, None);
        }
        self.used -= range.count;
        let mut empty: Vec<SlotRange> = Vec::new();
        for part in self.parts(range) {
            let used = self.used_of_mut(part.first);
            *used -= part.count as u16;
            if *used == 0 {
                let segment = self.segment_of(part.first);
                match empty.last_mut() {
                    Some(last) if last.end() == segment.first => last.count += segment.count,
                    _ => empty.push(segment),
                }
            }
        }
        empty
    }

    /// Has slots of segments allocated again of which none is in use, and none has a file.
    pub(crate) fn give_back_segments(&mut self, segments: SlotRange) {
        self.extents.release_taken(segments);
        self.shrink();
    }

    fn shrink(&mut self) {
        let frontier = self.extents.frontier() as usize;
        self.references.truncate(frontier);
        self.leaves.truncate(frontier);
        self.used_of.truncate(frontier.div_ceil(self.segment_slots as usize));
        if self.references.capacity() > 4 * frontier + 1024 {
            self.references.shrink_to(2 * frontier);
            self.leaves.shrink_to(2 * frontier);
            self.used_of.shrink_to(2 * self.used_of.len());
        }
    }

    /// All slots that are in use or vacant are below this.
    #[cfg(test)]
    fn frontier(&self) -> Slot {
        Slot(self.extents.frontier())
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Slots that were freed and not given back.
    pub(crate) fn vacant(&self) -> u32 {
        self.extents.used() - self.used
    }

    /// How many slots can be allocated, the last segment's included.
    pub(crate) fn room(&self) -> u32 {
        self.extents.room()
    }

    /// In a full store what is to move must have somewhere to go: one segment is kept for that, but of a store
    /// that has very few.
    fn room_but_the_last(&self) -> u32 {
        let has_many = self.limit >= SEGMENTS_TO_SPARE * self.segment_slots;
        let kept = if has_many { self.segment_slots } else { 0 };
        self.room().saturating_sub(kept)
    }

    /// The segments that have slots in use and vacant ones, but for the one that the frontier is in.
    pub(crate) fn sparse(&self) -> impl Iterator<Item = Sparse> + '_ {
        let segment = self.segment_slots;
        let whole = (self.extents.frontier() / segment) as usize;
        let in_use = self.used_of.iter().take(whole).enumerate().filter(|(_, used)| **used > 0);
        let sparse = in_use.map(move |(at, used)| {
            let range = SlotRange::new(Slot(at as u32 * segment), segment);
            let used = u32::from(*used);
            let vacant = segment - used - self.extents.free_slots_in(range);
            Sparse { range, used, vacant, references: self.references_in(range) }
        });
        sparse.filter(|sparse| sparse.vacant > 0)
    }

    /// Whether no slot of the segment that begins with `first` can be allocated before all of it is given
    /// back.
    pub(crate) fn is_taken(&self, first: Slot) -> bool {
        let segment = self.segment_of(first);
        let is_whole = segment.end().0 <= self.extents.frontier();
        is_whole && self.extents.free_slots_in(segment) == 0
    }

    /// How many segments the tables have room for.
    pub(crate) fn segments(&self) -> usize {
        self.used_of.len()
    }

    fn references_in(&self, range: SlotRange) -> u64 {
        range.slots().map(|slot| u64::from(self.references(slot))).sum()
    }

    /// Has no slot of `segment` allocated until all of it is given back.
    pub(crate) fn seal(&mut self, segment: SlotRange) {
        self.extents.take(segment);
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.references.capacity() * size_of::<AtomicU32>()
            + self.leaves.capacity() * size_of::<u32>()
            + self.used_of.capacity() * size_of::<u16>()
            + self.extents.memory_bytes()
    }
}

/// Slots, sorted and without duplicates, as runs.
pub(crate) fn runs_of(slots: &[Slot]) -> impl Iterator<Item = SlotRange> + '_ {
    let runs = slots.chunk_by(|a, b| b.0 == a.0 + 1);
    runs.map(|run| SlotRange::new(run[0], run.len() as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LIMIT: u32 = 400;

    proptest! {
        /// A segment is given back when the last of its slots is freed, and not before; until then none
        /// of what was freed is given out again.
        #[test]
        fn segments_are_given_back_whole(
            steps in prop::collection::vec((0..4, 1u32..90, any::<usize>()), 1..80),
            segment_slots in prop_oneof![Just(2u32), Just(16)],
        ) {
            let mut slots = Slots::new(LIMIT, segment_slots);
            let (mut used, mut vacant) = (BTreeSet::new(), BTreeSet::new());
            for (kind, count, seed) in steps {
                let nth = |set: &BTreeSet<u32>| set.iter().nth(seed % set.len().max(1)).copied();
                if kind == 0 {
                    for run in slots.allocate(count) {
                        for slot in run.first.0..run.end().0 {
                            prop_assert!(!vacant.contains(&slot) && used.insert(slot));
                        }
                    }
                } else if kind == 1 && let Some(slot) = nth(&used) {
                    let segment = slots.segment_of(Slot(slot));
                    let below = segment.end().0.min(slots.frontier().0);
                    slots.seal(segment);
                    vacant.extend((segment.first.0..below).filter(|slot| !used.contains(slot)));
                } else if let Some(first) = nth(&used) {
                    let run = (first..first + count).take_while(|slot| used.contains(slot));
                    let run = SlotRange::new(Slot(first), run.count() as u32);
                    for slot in run.first.0..run.end().0 {
                        used.remove(&slot);
                        vacant.insert(slot);
                    }
                    let empty = slots.free(run);
                    empty.iter().for_each(|segments| slots.give_back_segments(*segments));
                    let given: Vec<u32> =
                        empty.iter().flat_map(|run| run.first.0..run.end().0).collect();
                    prop_assert!(given.is_sorted());
                    let touched = (run.first.0 / segment_slots)..=((run.end().0 - 1) / segment_slots);
                    let segment = |at: u32| at * segment_slots..(at + 1) * segment_slots;
                    let empty = touched.filter(|at| !segment(*at).any(|slot| used.contains(&slot)));
                    let expected: Vec<u32> = empty.flat_map(segment).collect();
                    prop_assert_eq!(&given, &expected);
                    vacant.retain(|slot| !given.contains(slot));
                }
                prop_assert_eq!(slots.used() as usize, used.len());
                prop_assert_eq!(slots.vacant() as usize, vacant.len());
                for sparse in slots.sparse() {
                    let own = || sparse.range.first.0..sparse.range.end().0;
                    let of = |set: &BTreeSet<u32>| own().filter(|slot| set.contains(slot)).count();
                    prop_assert_eq!((of(&used) as u32, of(&vacant) as u32), (sparse.used, sparse.vacant));
                }
            }
        }
    }

    #[test]
    fn references_are_counted() {
        let mut slots = Slots::new(10, 2);
        assert_eq!(slots.allocate(4), [SlotRange::new(Slot(0), 4)]);
        slots.take(Slot(2));
        assert!(slots.take_claimed(Slot(2)) && !slots.take_claimed(Slot(3)));
        assert!(!slots.take_claimed(Slot(99)));
        assert!(!slots.give_back(Slot(2)) && slots.give_back(Slot(2)));
        let all = SlotRange::new(Slot(0), 4);
        assert_eq!(slots.free(all), [all]);
        assert_eq!((slots.used(), slots.vacant(), slots.room()), (0, 4, 6));
        slots.give_back_segments(all);
        assert_eq!((slots.vacant(), slots.room()), (0, 10));
    }

    #[test]
    #[should_panic(expected = "while it is mapped")]
    fn a_mapped_slot_is_never_freed() {
        let mut slots = Slots::new(10, 2);
        slots.allocate(4);
        slots.take(Slot(1));
        let _ = slots.free(SlotRange::new(Slot(0), 2));
    }

    #[test]
    fn the_last_segment_is_for_what_moves() {
        let mut slots = Slots::new(64, 16);
        assert_eq!(slots.allocate(100), [SlotRange::new(Slot(0), 48)]);
        assert_eq!((slots.allocate(1), slots.allocate_run(1)), (vec![], None));
        assert_eq!(slots.allocate_last(100), [SlotRange::new(Slot(48), 16)]);
    }

    #[test]
    fn a_slot_has_no_leaf_but_its_own() {
        let mut slots = Slots::new(100, 16);
        slots.allocate(20);
        assert_eq!(slots.leaf(Slot(3)), None);
        slots.set_leaf(Slot(3), Some(0));
        assert_eq!(slots.leaf(Slot(3)), Some(0));
        let _ = slots.free(SlotRange::new(Slot(3), 1));
        assert_eq!(slots.leaf(Slot(3)), None);
    }

    #[test]
    fn slots_become_runs() {
        let slots = [1, 2, 3, 7, 9, 10].map(Slot);
        let runs: Vec<_> = runs_of(&slots).map(|run| (run.first.0, run.count)).collect();
        assert_eq!(runs, [(1, 3), (7, 1), (9, 2)]);
    }
}
