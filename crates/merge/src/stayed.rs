//! Slots that some pages kept when the rest moved to another one with the same content (see `compact`).
//!
//! The index leads to one slot of a content. That is the *leader*; a slot that *stayed* has pages and no
//! leaf. When no page maps the leader any more, one that stayed inherits its leaf: otherwise who comes later
//! with that content would find nobody to share it with.

use std::collections::{BTreeMap, BTreeSet};

use bindery_units::Slot;

/// Slots that stayed, each with its leader. Empty but after a compaction that some guest did not follow.
#[derive(Debug, Default)]
pub(crate) struct Stayed {
    leaders: BTreeMap<Slot, Slot>,
    /// Leaders with those that stayed: the same pairs, by leader.
    followers: BTreeSet<(Slot, Slot)>,
}

impl Stayed {
    /// Notes that `slot` stayed when its leaf went to `leader`.
    pub(crate) fn note(&mut self, slot: Slot, leader: Slot) {
        let old = self.leaders.insert(slot, leader);
        assert!(old.is_none(), "{slot:?} had no leaf that could have gone, but {old:?} has it");
        self.followers.insert((leader, slot));
    }

    /// Returns the leader of a slot that stayed.
    pub(crate) fn leader(&self, slot: Slot) -> Option<Slot> {
        self.leaders.get(&slot).copied()
    }

    /// Forgets a slot that stayed, if it did: no page has it any more.
    pub(crate) fn forget(&mut self, slot: Slot) {
        if let Some(leader) = self.leaders.remove(&slot) {
            self.followers.remove(&(leader, slot));
        }
    }

    /// Notes that the leaf went from one slot to another: all that stayed have that for a leader.
    pub(crate) fn follow(&mut self, from: Slot, to: Slot) {
        let slots: Vec<Slot> = self.of(from).collect();
        for slot in slots {
            self.forget(slot);
            self.note(slot, to);
        }
    }

    /// Takes out a slot that stayed, for it is to have the leaf of `leader`, and leads the others from now on.
    /// `None` if none did.
    pub(crate) fn take_heir(&mut self, leader: Slot) -> Option<Slot> {
        let heir = self.of(leader).next()?;
        self.forget(heir);
        self.follow(leader, heir);
        Some(heir)
    }

    /// Returns the memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        // Each is in both, and nodes of a B-tree are two thirds full.
        self.leaders.len() * 2 * size_of::<(Slot, Slot)>() * 3 / 2
    }

    /// Returns those that stayed when the leaf went to `leader`, in order.
    fn of(&self, leader: Slot) -> impl Iterator<Item = Slot> + '_ {
        let all = (leader, Slot(0))..=(leader, Slot(u32::MAX));
        self.followers.range(all).map(|(_, slot)| *slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stayed_follows_the_leaf_and_inherits_it() {
        let mut stayed = Stayed::default();
        (1..4).for_each(|slot| stayed.note(Slot(slot), Slot(10)));
        stayed.note(Slot(4), Slot(11));
        stayed.follow(Slot(10), Slot(20));
        assert_eq!([1, 2, 3, 4].map(|slot| stayed.leader(Slot(slot)).unwrap().0), [20, 20, 20, 11]);
        stayed.forget(Slot(1));
        assert_eq!(stayed.take_heir(Slot(10)), None);
        assert_eq!(stayed.take_heir(Slot(20)), Some(Slot(2)));
        assert_eq!((stayed.leader(Slot(2)), stayed.leader(Slot(3))), (None, Some(Slot(2))));
        assert_eq!(stayed.take_heir(Slot(2)), Some(Slot(3)));
        assert_eq!(stayed.take_heir(Slot(3)), None);
        stayed.forget(Slot(4));
        assert!(stayed.leaders.is_empty() && stayed.followers.is_empty());
    }
}
