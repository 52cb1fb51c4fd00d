//! Contents that fill stretches of a guest: several slots in a row with the same bytes.
//!
//! A mapping leads from consecutive pages to consecutive slots. Where one content fills a stretch of
//! memory, as what a kernel or an allocator poisons free memory with does, every page of it would
//! need a mapping of its own. A *row* of copies serves as many pages with each mapping, and costs
//! less memory than the mappings would. KSM keeps more than one page of a content for another reason
//! (`max_page_sharing`: walks of reverse mappings stay short), which rows serve as well.
//!
//! Where a page belongs in a row follows from its number alone: pages that are merged at different
//! times fit together, and one that was written comes back to its place.
//!
//! The slot that the index leads to is the *head*. It stays in use as long as it has rows. A head
//! that needs a longer row gets another one; a row is freed as a whole, when no page maps any of it.

use std::collections::{BTreeMap, BTreeSet};

use bindery_units::{PageIndex, Slot, SlotRange};

/// Rows of one store.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Length and head of each row, by its first slot; no two overlap.
    rows: BTreeMap<Slot, (u32, Slot)>,
    /// Heads, with the length and the first slot of each of their rows.
    heads: BTreeSet<(Slot, u32, Slot)>,
}

impl Rows {
    /// Returns the slot in which `page` finds the content of `head`.
    pub(crate) fn place(&self, head: Slot, page: PageIndex) -> Slot {
        self.longest(head).map_or(head, |row| row.first.plus(page.0 % row.count))
    }

    /// Returns the row that `slot` is in, and its head.
    pub(crate) fn row_of(&self, slot: Slot) -> Option<(SlotRange, Slot)> {
        let (first, (count, head)) = self.rows.range(..=slot).next_back()?;
        (slot.0 - first.0 < *count).then(|| (SlotRange::new(*first, *count), *head))
    }

    /// Returns true if `slot` is a head that has rows.
    pub(crate) fn has_rows(&self, slot: Slot) -> bool {
        self.longest(slot).is_some()
    }

    /// Returns the row that pages of `head` are given.
    fn longest(&self, head: Slot) -> Option<SlotRange> {
        let mut rows = self.heads.range((head, 0, Slot(0))..=(head, u32::MAX, Slot(u32::MAX)));
        rows.next_back().map(|(_, count, first)| SlotRange::new(*first, *count))
    }

    /// Returns the number of copies that a page of `head` can choose from.
    pub(crate) fn copies(&self, head: Slot) -> u32 {
        self.longest(head).map_or(1, |row| row.count)
    }

    /// Returns the number of copies in all rows.
    pub(crate) fn total(&self) -> usize {
        self.rows.values().map(|(count, _)| *count as usize).sum()
    }

    /// Adds a row, longer than all that its head has.
    pub(crate) fn add(&mut self, row: SlotRange, head: Slot) {
        assert!(row.count > self.copies(head), "a head gets another row only for a longer one");
        self.rows.insert(row.first, (row.count, head));
        self.heads.insert((head, row.count, row.first));
    }

    /// Returns true if `segment` has slots of a row, or of a head that has rows.
    pub(crate) fn touch(&self, segment: SlotRange) -> bool {
        let (first, last) = (segment.first, Slot(segment.end().0 - 1));
        let head = self.heads.range((first, 0, Slot(0))..=(last, u32::MAX, Slot(u32::MAX)));
        let row = self.rows.range(first..=last);
        row.count() > 0 || head.count() > 0 || self.row_of(first).is_some()
    }

    /// Takes a row out.
    pub(crate) fn remove(&mut self, row: SlotRange) {
        let (count, head) = self.rows.remove(&row.first).expect("only rows are taken out");
        self.heads.remove(&(head, count, row.first));
    }

    /// Returns true if there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All rows, each with its head.
    #[cfg(test)]
    pub(crate) fn rows(&self) -> impl Iterator<Item = (SlotRange, Slot)> + '_ {
        self.rows.iter().map(|(first, (count, head))| (SlotRange::new(*first, *count), *head))
    }

    /// Memory held, in bytes, roughly: a B-tree's nodes are at least half full.
    pub(crate) fn memory_bytes(&self) -> usize {
        2 * self.rows.len() * (size_of::<(Slot, (u32, Slot))>() + size_of::<(Slot, u32, Slot)>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_side_by_side_find_slots_side_by_side() {
        let mut rows = Rows::default();
        assert_eq!(rows.place(Slot(7), PageIndex(100)), Slot(7));
        rows.add(SlotRange::new(Slot(20), 8), Slot(7));
        let places: Vec<u32> =
            (100..110).map(|page| rows.place(Slot(7), PageIndex(page)).0).collect();
        assert_eq!(places, [24, 25, 26, 27, 20, 21, 22, 23, 24, 25]);
        assert_eq!(rows.place(Slot(8), PageIndex(100)), Slot(8));
    }

    #[test]
    fn a_head_has_its_longest_row_until_that_is_gone() {
        let mut rows = Rows::default();
        let (short, long) = (SlotRange::new(Slot(20), 4), SlotRange::new(Slot(30), 16));
        rows.add(short, Slot(7));
        rows.add(long, Slot(7));
        assert_eq!(rows.place(Slot(7), PageIndex(5)), Slot(35));
        assert_eq!(rows.row_of(Slot(23)), Some((short, Slot(7))));
        assert_eq!((rows.row_of(Slot(24)), rows.row_of(Slot(7))), (None, None));
        rows.remove(long);
        assert_eq!(rows.place(Slot(7), PageIndex(5)), Slot(21));
        rows.remove(short);
        assert!(!rows.has_rows(Slot(7)));
    }
}
