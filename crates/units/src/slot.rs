//! Slots of a canonical store.

use serde::{Deserialize, Serialize};

use crate::PAGE_SHIFT;

/// The number of a page within a canonical store, counted from zero.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(transparent)]
pub struct Slot(pub u32);

/// A run of consecutive slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlotRange {
    /// The first slot of the run.
    pub first: Slot,
    /// How many slots the run has.
    pub count: u32,
}

impl Slot {
    /// The slot as a position in a table.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }

    /// Where the slot's page begins in the store's file, in bytes.
    #[must_use]
    pub const fn offset_bytes(self) -> u64 {
        (self.0 as u64) << PAGE_SHIFT
    }

    /// The slot `slots` further on.
    ///
    /// # Panics
    /// If the sum leaves the 32 bits of a slot.
    #[must_use]
    pub const fn plus(self, slots: u32) -> Self {
        Self(self.0.checked_add(slots).expect("a slot stays within 32 bits"))
    }
}

impl SlotRange {
    /// The run of `count` slots that starts at `first`.
    #[must_use]
    pub const fn new(first: Slot, count: u32) -> Self {
        let _ = first.plus(count);
        Self { first, count }
    }

    /// The slots of the run, in order.
    pub fn slots(self) -> impl Iterator<Item = Slot> + use<> {
        (self.first.0..self.end().0).map(Slot)
    }

    /// The first slot after the run.
    #[must_use]
    pub const fn end(self) -> Slot {
        self.first.plus(self.count)
    }
}
