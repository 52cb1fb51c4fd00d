//! Entry of one page in a space's tables: 32 bits.
//!
//! Absent, zero and private pages need no entry beyond zero: the kernel knows which they are. The
//! tables are untouched memory until a page of theirs is merged, so a space in which nothing is
//! merged pays nothing for them.
//!
//! ```text
//!  31    29 28    26 25                                0
//! +--------+--------+-----------------------------------+
//! |  kind  | store  | slot                              |
//! +--------+--------+-----------------------------------+
//! ```
//!
//! | kind | backing | the daemon believes | becomes |
//! |---|---|---|---|
//! | `Private` | absent, zero page or anonymous | private | `Merged`, `CowCopy`, `Unprotected` |
//! | `Merged` | the store's page, write-protected | merged | `Broken`, `Discarded`, `Unmerged`, `CowCopyLost`, `Merged` (another slot) |
//! | `Broken`, `Discarded`, `Unmerged` | as `Private` | merged, until it asks what was lost | `Private` |
//! | `CowCopyLost` | a private copy inside a mapping of the store | merged, until it asks | `CowCopy` |
//! | `CowCopy` | the same | never to be merged | `Private` by a discard |
//! | `Unprotected` | the store's page or a copy, protected or not | merged | `Discarded` by a discard, `CowCopyLost` |
//!
//! Only the holder of a page (`held`) changes its entry, but for one step: whoever
//! reports a loss takes the `…Lost` marks away by compare-and-swap.

use bindery_units::Slot;

use bindery_wire::control::{SLOT_BITS, SLOTS_MAX, STORE_MAX, StoreId};

/// How a page is backed; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Absent, the zero page, or an anonymous page of the guest's own.
    Private = 0,
    /// A slot of a store, write-protected.
    Merged = 1,
    /// Private since a write.
    Broken = 2,
    /// Absent since a discard.
    Discarded = 3,
    /// Private since an unmerge.
    Unmerged = 4,
    /// Copied by the kernel inside the store's mapping; not reported yet.
    CowCopyLost = 5,
    /// Copied by the kernel inside the store's mapping.
    CowCopy = 6,
    /// In a mapping of the store, and it cannot be told whether it was written, or will be.
    Unprotected = 7,
}

impl Kind {
    /// Whether its page may be written without any scan finding that: it lies in a mapping of the store.
    pub(crate) const fn is_untracked(self) -> bool {
        matches!(self, Self::CowCopyLost | Self::CowCopy | Self::Unprotected)
    }
}

/// Entry of one page in a space's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceEntry(pub u32);

impl SpaceEntry {
    /// A page that is its guest's own.
    pub const PRIVATE: Self = Self(0);

    /// A page that the kernel copied inside a mapping of a store, and that the daemon takes for its
    /// guest's own.
    pub const COW_COPY: Self = Self((Kind::CowCopy as u32) << 29);

    /// An entry of `kind` for a slot.
    #[must_use]
    pub fn new(kind: Kind, store: StoreId, slot: Slot) -> Self {
        assert!(store.0 <= STORE_MAX && slot.0 < SLOTS_MAX, "stores and slots fit an entry");
        Self((kind as u32) << 29 | u32::from(store.0) << SLOT_BITS | slot.0)
    }

    /// The same slot under another kind.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self::new(kind, self.store(), self.slot())
    }

    /// How the page is backed.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self.0 >> 29 {
            0 => Kind::Private,
            1 => Kind::Merged,
            2 => Kind::Broken,
            3 => Kind::Discarded,
            4 => Kind::Unmerged,
            5 => Kind::CowCopyLost,
            6 => Kind::CowCopy,
            _ => Kind::Unprotected,
        }
    }

    /// The store that the page is or was merged with.
    #[must_use]
    pub const fn store(self) -> StoreId {
        StoreId((self.0 >> SLOT_BITS) as u8 & STORE_MAX)
    }

    /// The slot that the page is or was merged with.
    #[must_use]
    pub const fn slot(self) -> Slot {
        Slot(self.0 & (SLOTS_MAX - 1))
    }

    /// Whether the page lies in an anonymous mapping, so that it can be moved and zero-filled.
    #[must_use]
    pub const fn is_anonymous(self) -> bool {
        matches!(self.kind(), Kind::Private | Kind::Broken | Kind::Discarded | Kind::Unmerged)
    }

    /// Whether the daemon has yet to hear that the page left its slot.
    #[must_use]
    pub const fn is_lost(self) -> bool {
        matches!(self.kind(), Kind::Broken | Kind::Discarded | Kind::Unmerged | Kind::CowCopyLost)
    }

    /// The entry once the daemon has heard of the loss.
    #[must_use]
    pub const fn reported(self) -> Self {
        match self.kind() {
            Kind::Broken | Kind::Discarded | Kind::Unmerged => Self::PRIVATE,
            Kind::CowCopyLost => Self::COW_COPY,
            _ => self,
        }
    }

    /// Whether it is `pages` after `first` in a run: of its kind and store, the slot so much further
    /// on.
    #[must_use]
    pub fn is_after(self, first: Self, pages: u32) -> bool {
        let same = (self.kind(), self.store()) == (first.kind(), first.store());
        same && self.slot().0.checked_sub(first.slot().0) == Some(pages)
    }

    /// The slot `pages` further on, for runs.
    #[must_use]
    pub fn plus(self, pages: u32) -> Self {
        Self::new(self.kind(), self.store(), self.slot().plus(pages))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [Kind; 8] = [
        Kind::Private,
        Kind::Merged,
        Kind::Broken,
        Kind::Discarded,
        Kind::Unmerged,
        Kind::CowCopyLost,
        Kind::CowCopy,
        Kind::Unprotected,
    ];

    proptest! {
        #[test]
        fn entries_give_back_what_they_were_made_of(
            kind in 0..8usize, store in 0..=STORE_MAX, slot in 0..SLOTS_MAX
        ) {
            let entry = SpaceEntry::new(KINDS[kind], StoreId(store), Slot(slot));
            prop_assert_eq!(entry.kind(), KINDS[kind]);
            prop_assert_eq!(entry.store(), StoreId(store));
            prop_assert_eq!(entry.slot(), Slot(slot));
            prop_assert!(!entry.reported().is_lost());
        }
    }

    #[test]
    fn an_untouched_table_says_private() {
        assert_eq!(SpaceEntry(0).kind(), Kind::Private);
        assert_eq!(SpaceEntry::PRIVATE.reported(), SpaceEntry::PRIVATE);
    }

    #[test]
    fn a_run_ends_with_its_kind_its_store_and_the_last_slot() {
        let entry = |kind, store, slot| SpaceEntry::new(kind, StoreId(store), Slot(slot));
        let first = entry(Kind::Merged, 1, SLOTS_MAX - 2);
        let last = entry(Kind::Merged, 1, SLOTS_MAX - 1);
        assert!(first.is_after(first, 0) && last.is_after(first, 1));
        assert!(!last.is_after(first, 2) && !first.is_after(last, 1));
        assert!(!entry(Kind::Broken, 1, SLOTS_MAX - 1).is_after(first, 1));
        // One bit more than the slot has.
        assert_eq!(entry(Kind::Merged, 2, 0).0, last.0 + 1);
        assert!(!entry(Kind::Merged, 2, 0).is_after(last, 1));
    }
}
