//! What is known of each slot of a store: how many pages map it, and which leaf leads to it.
//!
//! # The reference rule
//! A reference is taken *before* a guest is asked to map a slot, and given back when it has said
//! that it does not. So a slot without references is mapped by no one, and only then is it freed,
//! its hole punched, and its number given out again.
//!
//! # Concurrency
//! References are taken and given back by any worker during a phase; slots are allocated and freed
//! between phases only. A slot found in the index always has a reference, or copies that have one:
//! within the phases in which slots are found, none is given back.

use std::sync::atomic::{AtomicU32, Ordering};

use bindery_units::{Slot, SlotRange};

use crate::extents::Extents;

/// The slots of one store. Eight bytes for each slot below the highest in use.
#[derive(Debug)]
pub(crate) struct Slots {
    extents: Extents,
    references: Vec<AtomicU32>,
    /// The leaf of each slot in use.
    leaves: Vec<u32>,
}

impl Slots {
    /// A store that can have `limit` slots.
    pub(crate) fn new(limit: u32) -> Self {
        Self { extents: Extents::new(limit), references: Vec::new(), leaves: Vec::new() }
    }

    /// Takes up to `count` slots without references; fewer if the store is full.
    pub(crate) fn allocate(&mut self, count: u32) -> Vec<SlotRange> {
        let runs = self.extents.allocate(count);
        self.grow();
        runs
    }

    /// Takes `count` slots side by side without references, if there are as many.
    pub(crate) fn allocate_run(&mut self, count: u32) -> Option<SlotRange> {
        let run = self.extents.allocate_run(count);
        self.grow();
        run
    }

    /// Makes room in the tables for all slots below the frontier.
    fn grow(&mut self) {
        let frontier = self.extents.frontier() as usize;
        if frontier > self.references.len() {
            self.references.resize_with(frontier, AtomicU32::default);
            self.leaves.resize(frontier, 0);
        }
    }

    /// Says which leaf leads to `slot`.
    pub(crate) fn set_leaf(&mut self, slot: Slot, leaf: u32) {
        self.leaves[slot.at()] = leaf;
    }

    /// The leaf that leads to `slot`.
    pub(crate) fn leaf(&self, slot: Slot) -> u32 {
        self.leaves[slot.at()]
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

    /// Frees slots.
    ///
    /// # Panics
    /// If one has references.
    pub(crate) fn free(&mut self, range: SlotRange) {
        for slot in range.first.0..range.end().0 {
            assert!(self.references(Slot(slot)) == 0, "slot {slot} is freed while it is mapped");
        }
        self.extents.release(range);
        let frontier = self.extents.frontier() as usize;
        self.references.truncate(frontier);
        self.leaves.truncate(frontier);
        if self.references.capacity() > 4 * frontier + 1024 {
            self.references.shrink_to(2 * frontier);
            self.leaves.shrink_to(2 * frontier);
        }
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u32 {
        self.extents.used()
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.references.capacity() * size_of::<AtomicU32>()
            + self.leaves.capacity() * size_of::<u32>()
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

    #[test]
    fn references_are_counted() {
        let mut slots = Slots::new(10);
        assert_eq!(slots.allocate(4), [SlotRange::new(Slot(0), 4)]);
        slots.take(Slot(2));
        assert!(slots.take_claimed(Slot(2)) && !slots.take_claimed(Slot(3)));
        assert!(!slots.take_claimed(Slot(99)));
        assert!(!slots.give_back(Slot(2)) && slots.give_back(Slot(2)));
        slots.free(SlotRange::new(Slot(0), 4));
        assert_eq!(slots.used(), 0);
    }

    #[test]
    #[should_panic(expected = "while it is mapped")]
    fn a_mapped_slot_is_never_freed() {
        let mut slots = Slots::new(10);
        slots.allocate(4);
        slots.take(Slot(1));
        slots.free(SlotRange::new(Slot(0), 2));
    }

    #[test]
    fn slots_become_runs() {
        let slots = [1, 2, 3, 7, 9, 10].map(Slot);
        let runs: Vec<_> = runs_of(&slots).map(|run| (run.first.0, run.count)).collect();
        assert_eq!(runs, [(1, 3), (7, 1), (9, 2)]);
    }
}
