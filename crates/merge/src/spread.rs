//! Copies of contents that fill stretches of guests, and the place of each merge among them.
//!
//! See [`rows`](crate::rows) for what rows of copies are, and why.

use std::collections::BTreeMap;

use bindery_units::{PAGE_BYTES, Slot, SlotRange};
use bindery_wire::lane::RUN_PAGES_MAX;

use crate::domain::Domain;
use crate::guest::Guest;
use crate::headroom::pages_to_spare;
use crate::runs::Merge;
use crate::settings::MAPPING_BYTES;

/// Returns how many copies are worth their memory where they spare `mappings`: as many as take half of what
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
            let has = domain.rows.copies(head);
            let copies = copies_for(u64::from(repeats / has));
            if copies >= 2 * has
                && copies as usize <= room
                && let Some(row) = fill_row(domain, head, copies)
            {
                domain.rows.add(row, head);
                room -= copies as usize;
            }
        }
    }
    if domain.rows.is_empty() {
        return;
    }
    for guest in domain.guests.values() {
        for merge in guest.state().round.merges_mut() {
            let place = domain.rows.place(merge.slot, merge.page);
            if place != merge.slot {
                domain.slots.take(place);
                domain.give_back(std::mem::replace(&mut merge.slot, place));
            }
        }
    }
}

/// Returns how many more copies there may be. A row stays as long as one page maps any of it, so that guests
/// could fill memory with rows: all of them together take no more than mappings of all merged pages
/// could save.
fn room_for_copies(domain: &Domain) -> usize {
    let merges = |guest: &Guest| guest.state().round.merges().len() as u64;
    let merged = domain.merged() + domain.guests.values().map(merges).sum::<u64>();
    let most = (merged * MAPPING_BYTES / 2 / PAGE_BYTES as u64) as usize;
    most.saturating_sub(domain.rows.total()).min(pages_to_spare())
}

/// Counts the pages that are to be merged with the same slot as the page before them, by slot. Sorts the
/// merges.
fn repeats(domain: &mut Domain) -> BTreeMap<Slot, u32> {
    let mut repeats = BTreeMap::new();
    for guest in domain.guests.values_mut() {
        for pair in guest.state_mut().round.sort_merges().windows(2) {
            let [before, Merge { page, slot }] = pair else { continue };
            if before.slot == *slot && before.page.plus(1) == *page {
                *repeats.entry(*slot).or_insert(0) += 1;
            }
        }
    }
    repeats
}

/// Fills a row with `copies` of what is in `head`, if there is room for it.
fn fill_row(domain: &mut Domain, head: Slot, copies: u32) -> Option<SlotRange> {
    let row = domain.slots.allocate_run(copies)?;
    match domain.store.copy(head, row) {
        Ok(()) => Some(row),
        Err(error) => {
            tracing::debug!(%error, "a content that fills stretches of memory gets no copies");
            domain.release(row);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
