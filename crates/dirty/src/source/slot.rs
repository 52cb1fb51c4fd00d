//! KVM's memory slots, and the pages of a guest that they show.

use bindery_units::{PageIndex, PageRange};

use super::SourceError;

/// A memory slot of a machine, tracked with `KVM_MEM_LOG_DIRTY_PAGES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySlot {
    /// Its number, with the address space in the upper 16 bits (x86: 1 in system management mode).
    pub id: u32,
    /// Which pages of the guest's space it shows: all of the slot, in order.
    pub pages: PageRange,
}

impl MemorySlot {
    /// As errors name it.
    pub(super) fn name(&self) -> String {
        format!("slot {:#x} of {} pages", self.id, self.pages.count)
    }
}

/// Slots by their numbers.
#[derive(Debug, Default)]
pub(super) struct Slots(Vec<MemorySlot>);

impl Slots {
    /// # Errors
    /// [`SourceError::Misfit`] if two have one number, or one has no page.
    pub(super) fn new(slots: &[MemorySlot]) -> Result<Self, SourceError> {
        let mut sorted = slots.to_vec();
        sorted.sort_by_key(|slot| slot.id);
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(SourceError::Misfit(format!("slot {:#x} is given twice", pair[0].id)));
        }
        if let Some(slot) = sorted.iter().find(|slot| slot.pages.is_empty()) {
            return Err(SourceError::Misfit(format!("slot {:#x} has no page", slot.id)));
        }
        Ok(Self(sorted))
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The guest's page that a ring's entry names, or why it names none.
    pub(super) fn page(
        &self,
        vcpu: usize,
        slot: u32,
        offset: u64,
    ) -> Result<PageIndex, SourceError> {
        let Ok(at) = self.0.binary_search_by_key(&slot, |known| known.id) else {
            return Err(SourceError::UnknownSlot { vcpu, slot, offset, known: self.len() });
        };
        let pages = self.0[at].pages;
        match u32::try_from(offset) {
            Ok(offset) if offset < pages.count => Ok(pages.first.plus(offset)),
            _ => Err(SourceError::UnknownPage { vcpu, slot, offset, pages: pages.count }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(id: u32, first: u32, count: u32) -> MemorySlot {
        MemorySlot { id, pages: PageRange::new(PageIndex(first), count) }
    }

    #[test]
    fn pages_are_found_by_slot_and_offset() {
        let slots = Slots::new(&[slot(0x1_0002, 7, 3), slot(2, 100, 50)]).unwrap();
        assert_eq!(slots.page(0, 2, 49).unwrap(), PageIndex(149));
        assert_eq!(slots.page(0, 0x1_0002, 0).unwrap(), PageIndex(7));
    }

    #[test]
    fn entries_that_name_no_page_are_errors_with_numbers() {
        let slots = Slots::new(&[slot(2, 100, 50)]).unwrap();
        let shown = |slot, offset| slots.page(3, slot, offset).unwrap_err().to_string();
        let unknown = shown(0x1_0002, 9);
        for part in ["vCPU 3", "page 9", "slot 0x10002", "1 slots"] {
            assert!(unknown.contains(part), "{unknown}");
        }
        for offset in [50, u64::from(u32::MAX) + 1, u64::MAX] {
            let beyond = shown(2, offset);
            assert!(
                beyond.contains(&offset.to_string()) && beyond.contains("50 pages"),
                "{beyond}"
            );
        }
    }

    #[test]
    fn slots_must_differ_and_have_pages() {
        assert!(Slots::new(&[slot(2, 0, 1), slot(2, 1, 1)]).is_err());
        assert!(Slots::new(&[slot(2, 0, 0)]).is_err());
    }
}
