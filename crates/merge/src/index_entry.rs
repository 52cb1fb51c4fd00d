//! Value of an index leaf: what is known of a content.
//!
//! ```text
//! tag:2 | shared:1 | guest:29 | page:32     a page of one guest has it, and was not written since
//! tag:2 | 0                   | class:32    seen twice in this period; to become canonical
//! tag:2 | 0                   | slot:32     in the store
//! ```
//!
//! A leaf goes from candidate to planned by one compare-and-swap, of whoever finds the content for
//! the second time, and from planned to canonical between the phases, or back. A candidate in a whole block,
//! of which no page is merged, is *shared* once a page was found that has its content as well.

use bindery_units::{PageIndex, Slot};

/// Numbers of guests are below this.
pub(crate) const GUESTS_MAX: u32 = 1 << 29;

/// The value of a leaf, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexEntry {
    Candidate { guest: u32, page: PageIndex, is_shared: bool },
    Planned { class: u32 },
    Canonical { slot: Slot },
}

const TAG_SHIFT: u32 = 62;
const SHARED_SHIFT: u32 = 61;
const GUEST_SHIFT: u32 = 32;
const CANDIDATE: u64 = 1;
const PLANNED: u64 = 2;
const CANONICAL: u64 = 3;

impl IndexEntry {
    pub(crate) fn to_bits(self) -> u64 {
        match self {
            Self::Candidate { guest, page, is_shared } => {
                assert!(guest < GUESTS_MAX, "guests are numbered below {GUESTS_MAX}");
                let guest = u64::from(guest) << GUEST_SHIFT | u64::from(page.0);
                CANDIDATE << TAG_SHIFT | u64::from(is_shared) << SHARED_SHIFT | guest
            }
            Self::Planned { class } => PLANNED << TAG_SHIFT | u64::from(class),
            Self::Canonical { slot } => CANONICAL << TAG_SHIFT | u64::from(slot.0),
        }
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        let low = bits as u32;
        match bits >> TAG_SHIFT {
            CANDIDATE => {
                let guest = (bits >> GUEST_SHIFT) as u32 & (GUESTS_MAX - 1);
                let is_shared = bits >> SHARED_SHIFT & 1 == 1;
                Self::Candidate { guest, page: PageIndex(low), is_shared }
            }
            PLANNED => Self::Planned { class: low },
            CANONICAL => Self::Canonical { slot: Slot(low) },
            _ => unreachable!("every value in the index was made by `to_bits`: {bits:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_apart_as_they_were_made() {
        for low in [0, 1, u32::MAX] {
            for entry in [
                IndexEntry::Candidate {
                    guest: GUESTS_MAX - 1,
                    page: PageIndex(low),
                    is_shared: false,
                },
                IndexEntry::Candidate { guest: 0, page: PageIndex(low), is_shared: true },
                IndexEntry::Planned { class: low },
                IndexEntry::Canonical { slot: Slot(low) },
            ] {
                assert_eq!(IndexEntry::from_bits(entry.to_bits()), entry);
            }
        }
    }
}
