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

use bindery_units::{PAGE_BYTES, PageIndex, Slot, SlotRange};
use bindery_wire::lane::RUN_PAGES_MAX;

use crate::domain::Domain;
use crate::headroom::pages_to_spare;
use crate::member::Member;
use crate::runs::Merge;
use crate::settings::MAPPING_BYTES;

/// The rows of one store.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// How long each row is, and what its head is, by its first slot; no two overlap.
    rows: BTreeMap<Slot, (u32, Slot)>,
    /// Heads, with the length and the first slot of each of their rows.
    heads: BTreeSet<(Slot, u32, Slot)>,
}

impl Copies {
    /// The slot in which `page` finds the content of `head`.
    pub(crate) fn place(&self, head: Slot, page: PageIndex) -> Slot {
        self.longest(head).map_or(head, |row| row.first.plus(page.0 % row.count))
    }

    /// The row that `slot` is in, and its head.
    pub(crate) fn row_of(&self, slot: Slot) -> Option<(SlotRange, Slot)> {
        let (first, (count, head)) = self.rows.range(..=slot).next_back()?;
        (slot.0 - first.0 < *count).then(|| (SlotRange::new(*first, *count), *head))
    }

    /// Whether `slot` is a head that has rows.
    pub(crate) fn has_rows(&self, slot: Slot) -> bool {
        self.longest(slot).is_some()
    }

    /// The row that pages of `head` are given.
    fn longest(&self, head: Slot) -> Option<SlotRange> {
        let mut rows = self.heads.range((head, 0, Slot(0))..=(head, u32::MAX, Slot(u32::MAX)));
        rows.next_back().map(|(_, count, first)| SlotRange::new(*first, *count))
    }

    /// How many copies a page of `head` can choose from.
    fn count(&self, head: Slot) -> u32 {
        self.longest(head).map_or(1, |row| row.count)
    }

    /// How many copies there are in all rows.
    fn total(&self) -> usize {
        self.rows.values().map(|(count, _)| *count as usize).sum()
    }

    /// Adds a row, longer than all that its head has.
    fn add(&mut self, row: SlotRange, head: Slot) {
        assert!(row.count > self.count(head), "a head gets another row only for a longer one");
        self.rows.insert(row.first, (row.count, head));
        self.heads.insert((head, row.count, row.first));
    }

    /// Whether `segment` has slots of a row, or of a head that has rows.
    pub(crate) fn touch(&self, segment: SlotRange) -> bool {
        let (first, last) = (segment.first, Slot(segment.end().0 - 1));
        let head = self.heads.range((first, 0, Slot(0))..=(last, u32::MAX, Slot(u32::MAX)));
        let row = self.rows.range(first..=last);
        row.count() > 0 || head.count() > 0 || self.row_of(first).is_some()
    }

    /// Takes a row out.
    fn remove(&mut self, row: SlotRange) {
        let (count, head) = self.rows.remove(&row.first).expect("only rows are taken out");
        self.heads.remove(&(head, count, row.first));
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

/// How many copies are worth their memory where they spare `mappings`: as many as take half of what
/// those would.
fn copies_for(mappings: u64) -> u32 {
    let bytes = mappings * MAPPING_BYTES / 2;
    (bytes / PAGE_BYTES as u64).min(u64::from(RUN_PAGES_MAX)) as u32
}

/// Makes rows for contents that fill stretches of this round's merges, and gives all merges their
/// places. Between phases only.
pub(crate) fn spread(domain: &mut Domain) {
    let repeats = repeats(domain);
    if !repeats.is_empty() && domain.shortage().is_none() {
        let mut room = room_for_copies(domain);
        for (head, repeats) in repeats {
            // Of a head that has copies, as many pages share a mapping.
            let has = domain.copies.count(head);
            let copies = copies_for(u64::from(repeats / has));
            if copies >= 2 * has
                && copies as usize <= room
                && let Some(row) = fill_row(domain, head, copies)
            {
                domain.copies.add(row, head);
                room -= copies as usize;
            }
        }
    }
    if domain.copies.rows.is_empty() {
        return;
    }
    for member in domain.members.values() {
        for merge in &mut member.state().merges {
            let place = domain.copies.place(merge.slot, merge.page);
            if place != merge.slot {
                domain.slots.take(place);
                domain.give_back(std::mem::replace(&mut merge.slot, place));
            }
        }
    }
}

/// How many more copies there may be. A row stays as long as one page maps any of it, so that guests
/// could fill memory with rows: all of them together take no more than mappings of all merged pages
/// could save.
fn room_for_copies(domain: &Domain) -> usize {
    let merges = |member: &Member| member.state().merges.len() as u64;
    let merged = domain.merged() + domain.members.values().map(merges).sum::<u64>();
    let most = (merged * MAPPING_BYTES / 2 / PAGE_BYTES as u64) as usize;
    most.saturating_sub(domain.copies.total()).min(pages_to_spare())
}

/// How many pages are to be merged with the same slot as the page before them, by slot. Sorts the
/// merges.
fn repeats(domain: &mut Domain) -> BTreeMap<Slot, u32> {
    let mut repeats = BTreeMap::new();
    for member in domain.members.values_mut() {
        let merges = &mut member.state_mut().merges;
        merges.sort_unstable();
        for pair in merges.windows(2) {
            let [before, Merge { page, slot }] = pair else { continue };
            if before.slot == *slot && before.page.plus(1) == *page {
                *repeats.entry(*slot).or_insert(0) += 1;
            }
        }
    }
    repeats
}

/// A row of `copies` of what is in `head`, if there is room for it.
fn fill_row(domain: &mut Domain, head: Slot, copies: u32) -> Option<SlotRange> {
    let row = domain.slots.allocate_run(copies)?;
    match domain.grant.store.copy(head, row) {
        Ok(()) => Some(row),
        Err(error) => {
            tracing::debug!(%error, "a content that fills stretches of memory gets no copies");
            domain.release(row);
            None
        }
    }
}

/// Of slots whose last reference was given back: frees the rows that no page maps any more, and
/// returns the slots that can be freed with their leaves.
pub(crate) fn free_rows(domain: &mut Domain, unmapped: Vec<Slot>) -> Vec<Slot> {
    let (mut rows, mut heads) = (BTreeMap::new(), BTreeSet::new());
    for slot in unmapped {
        match domain.copies.row_of(slot) {
            Some((row, head)) => drop(rows.insert(row.first, (row, head))),
            None => drop(heads.insert(slot)),
        }
    }
    for (row, head) in rows.into_values() {
        if !row.slots().any(|slot| domain.slots.references(slot) > 0) {
            domain.copies.remove(row);
            domain.release(row);
            heads.insert(head);
        }
    }
    heads.retain(|head| domain.slots.references(*head) == 0 && !domain.copies.has_rows(*head));
    heads.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_side_by_side_find_slots_side_by_side() {
        let mut copies = Copies::default();
        assert_eq!(copies.place(Slot(7), PageIndex(100)), Slot(7));
        copies.add(SlotRange::new(Slot(20), 8), Slot(7));
        let places: Vec<u32> =
            (100..110).map(|page| copies.place(Slot(7), PageIndex(page)).0).collect();
        assert_eq!(places, [24, 25, 26, 27, 20, 21, 22, 23, 24, 25]);
        assert_eq!(copies.place(Slot(8), PageIndex(100)), Slot(8));
    }

    #[test]
    fn a_head_has_its_longest_row_until_that_is_gone() {
        let mut copies = Copies::default();
        let (short, long) = (SlotRange::new(Slot(20), 4), SlotRange::new(Slot(30), 16));
        copies.add(short, Slot(7));
        copies.add(long, Slot(7));
        assert_eq!(copies.place(Slot(7), PageIndex(5)), Slot(35));
        assert_eq!(copies.row_of(Slot(23)), Some((short, Slot(7))));
        assert_eq!((copies.row_of(Slot(24)), copies.row_of(Slot(7))), (None, None));
        copies.remove(long);
        assert_eq!(copies.place(Slot(7), PageIndex(5)), Slot(21));
        copies.remove(short);
        assert!(!copies.has_rows(Slot(7)));
    }

    #[test]
    fn copies_take_less_memory_than_the_mappings_that_they_save() {
        assert_eq!((copies_for(50), copies_for(100), copies_for(1_000_000)), (1, 2, RUN_PAGES_MAX));
        for mappings in 80..10_000 {
            let copies = u64::from(copies_for(mappings));
            let saved = (mappings - mappings.div_ceil(copies)) * MAPPING_BYTES;
            assert!(saved >= copies * PAGE_BYTES as u64, "{mappings}");
        }
    }
}
