//! Segments of the store that have few slots in use are emptied, so that their files can be closed.
//!
//! What is still in use moves: its content is copied to a new slot, every page that maps it is asked to
//! map the new one (a guest compares the two first, as ever), and the leaf follows. Slots move in
//! order, so that pages side by side keep slots side by side and no mapping is cut that was not.
//!
//! A segment is emptied only if all who map it can be asked now. A slot that some page keeps all the same,
//! for want of mappings, say, *stays* without a leaf (see `stayed`) until that page moves or lets go.

use std::cmp::Reverse;

use bindery_units::{PAGE_BYTES, PageIndex, Slot};
use bindery_wire::lane::RUN_PAGES_MAX;

use crate::domain::Domain;
use crate::guest::Guest;
use crate::headroom::pages_to_spare;
use crate::links::Link;
use crate::plan::slots_in;
use crate::pressure::DomainState;
use crate::runs::Merge;
use crate::slots::Sparse;
use crate::store::{Store, StoreError};

/// A store with fewer vacant slots is left as it is: 4 MiB. Fewer in tests, whose segments are short.
const VACANT_MIN: u32 = if cfg!(test) { 16 } else { 1024 };

/// So is one with fewer than one vacant slot for so many in use, and a segment with fewer than one of so
/// many vacant.
const VACANT_SHARE: u32 = 8;

/// Pages that are asked to move in one period, at most, unless it is for one segment.
const PAGES_MAX: u64 = 1 << 16;

/// A guest is asked to move pages only if at least one of so many of its mappings is to be had: what
/// finds none keeps its slot, and the content is there twice.
const MAPPINGS_SHARE: u32 = 4;

/// Slots on the move, each with its new one, in order of the old.
pub(crate) struct Moves {
    moves: Vec<(Slot, Slot)>,
    /// Vacant slots before, and how many are to be given back.
    vacant: u32,
    gain: u32,
}

impl Moves {
    /// Plans what is worth moving, copies it, and enters the merges of the pages that map it. Between
    /// phases only; `None` if nothing moves in this period.
    pub(crate) fn plan(domain: &mut Domain) -> Option<Self> {
        let vacant = domain.slots.vacant();
        if !is_wanted(domain, vacant) || !domain.compaction.is_due() {
            return None;
        }
        let segments = choose(domain, movable(domain));
        let moves = copy(domain, &segments);
        if moves.is_empty() {
            domain.compaction.note(false);
            return None;
        }
        for (number, merge) in mappers(domain, &moves) {
            let guest = domain.guests.get_mut(&number).expect("it was asked what it maps");
            domain.slots.take(merge.slot);
            guest.state_mut().round.add_merge(merge);
        }
        let gain = segments.iter().map(|segment| segment.vacant).sum();
        Some(Self { moves, vacant, gain })
    }

    /// Guests have been asked: leaves follow, and segments that are empty go.
    pub(crate) fn settle(self, domain: &mut Domain) {
        for (old, new) in self.moves {
            // Where nobody moved, the new one goes again. What stayed before has no leaf to hand over.
            if domain.slots.references(new) > 0 && domain.slots.leaf(old).is_some() {
                domain.hand_over_leaf(old, new);
                domain.stayed.follow(old, new);
                if domain.slots.references(old) > 0 {
                    domain.stayed.note(old, new);
                }
            }
        }
        domain.sweep();
        let given_back = self.vacant.saturating_sub(domain.slots.vacant());
        domain.compaction.note(given_back >= self.gain / 2);
    }
}

/// Returns true if so much is vacant that moving what is not pays.
fn is_wanted(domain: &Domain, vacant: u32) -> bool {
    let used = domain.slots.used();
    match domain.pressure.state() {
        _ if is_short(domain) => vacant >= domain.store.segment_slots() / VACANT_SHARE,
        // Guests have enough to do, and slots go by themselves.
        DomainState::Storm => vacant >= VACANT_MIN && vacant > used,
        _ => vacant >= VACANT_MIN && vacant > used / VACANT_SHARE,
    }
}

fn is_short(domain: &Domain) -> bool {
    matches!(
        domain.pressure.state(),
        DomainState::StoreFull | DomainState::MemoryShort | DomainState::DescriptorsShort
    )
}

/// Segments that all who map them can be asked to leave.
fn movable(domain: &Domain) -> Vec<Sparse> {
    let mut asked = vec![0; domain.slots.segments()];
    let number = |slot| domain.store.segment_of(slot) as usize;
    for guest in domain.guests.values().filter(|guest| can_be_asked(guest)) {
        for (_, slot) in merged_pages(guest) {
            asked[number(slot)] += 1;
        }
    }
    let can_move = |sparse: &Sparse| {
        // Each page that maps a slot has one reference of it: none is missing if so many are there.
        let all = sparse.references == asked[number(sparse.range.first)];
        all && !domain.rows.touch(sparse.range)
    };
    domain.slots.sparse().filter(can_move).collect()
}

fn can_be_asked(guest: &Guest) -> bool {
    let state = guest.state();
    let is_settled = !state.is_unmerged && state.doubt.is_clear();
    let has_room = state.usage.mappings_left() >= state.usage.mappings_max() / MAPPINGS_SHARE;
    guest.is_well() && is_settled && has_room
}

/// Returns the pages of `guest` that map slots of the domain's store.
fn merged_pages(guest: &Guest) -> impl Iterator<Item = (PageIndex, Slot)> + '_ {
    guest.links.linked(guest.links.range()).filter_map(|(page, link)| match link {
        Link::Merged(slot) => Some((page, slot)),
        _ => None,
    })
}

/// Chooses of segments that can be emptied those with the most vacant slots, until half of what makes it worth
/// while is vacant; where slots or memory are short, as many as there is room for. In order.
fn choose(domain: &Domain, mut movable: Vec<Sparse>) -> Vec<Sparse> {
    let slots = &domain.slots;
    let mut vacant: u32 = movable.iter().map(|segment| segment.vacant).sum();
    if !is_wanted(domain, vacant) {
        return Vec::new();
    }
    let half = (slots.used() / VACANT_SHARE).max(VACANT_MIN) / 2;
    let enough = if is_short(domain) { 0 } else { half };
    let mut room = slots.room().min(u32::try_from(pages_to_spare()).unwrap_or(u32::MAX));
    let mut pages = 0;
    movable.sort_unstable_by_key(|segment| (Reverse(segment.vacant), segment.range.first));
    let mut chosen = Vec::new();
    for segment in movable {
        if vacant <= enough || segment.vacant < segment.range.count / VACANT_SHARE {
            break;
        }
        // What was not allocated of it yet is not, either, until all of it is given back.
        let needs = segment.range.count - segment.vacant;
        pages += segment.references;
        if needs > room || (pages > PAGES_MAX && !chosen.is_empty()) {
            break;
        }
        room -= needs;
        vacant -= segment.vacant;
        chosen.push(segment);
    }
    chosen.sort_unstable_by_key(|segment| segment.range.first);
    chosen
}

/// Copies what is in use of `segments` to new slots. Returns each with its new one, in order: none if there
/// is no memory for them. What stayed is not copied again: its new slot is where its leader goes.
fn copy(domain: &mut Domain, segments: &[Sparse]) -> Vec<(Slot, Slot)> {
    segments.iter().for_each(|segment| domain.slots.seal(segment.range));
    let in_use = |slot: &Slot| domain.slots.references(*slot) > 0;
    let slots = segments.iter().flat_map(|segment| segment.range.slots()).filter(in_use);
    let (stayed, old): (Vec<Slot>, Vec<Slot>) =
        slots.partition(|slot| domain.stayed.leader(*slot).is_some());
    let Some(mut moves) = copy_all(domain, old) else { return Vec::new() };
    let leaders = stayed.into_iter().map(|slot| {
        let leader = domain.stayed.leader(slot).expect("it stayed");
        (slot, destination(&moves, leader).unwrap_or(leader))
    });
    moves.extend(leaders.collect::<Vec<_>>());
    moves.sort_unstable();
    moves
}

/// Returns where a slot moves to, if it does. `moves` are in order of the old slots.
fn destination(moves: &[(Slot, Slot)], slot: Slot) -> Option<Slot> {
    let at = moves.binary_search_by_key(&slot, |(old, _)| *old).ok()?;
    Some(moves[at].1)
}

/// Copies slots, which are in order, to new ones. Returns each with its new one; `None` if there is no memory
/// for them.
fn copy_all(domain: &mut Domain, old: Vec<Slot>) -> Option<Vec<(Slot, Slot)>> {
    let runs = domain.slots.allocate_last(old.len() as u32);
    let new: Vec<Slot> = slots_in(&runs).collect();
    assert!(new.len() == old.len(), "no more is chosen than there is room for");
    let moves: Vec<(Slot, Slot)> = old.into_iter().zip(new).collect();
    let mut row = moves
        .chunk_by(|a, b| a.1.plus(1) == b.1)
        .flat_map(|run| run.chunks(RUN_PAGES_MAX as usize));
    match row.try_for_each(|run| copy_run(&domain.store, run)) {
        Ok(()) => Some(moves),
        Err(error) => {
            tracing::debug!(%error, "sparse segments of the store stay as they are");
            runs.into_iter().for_each(|run| domain.release(run));
            None
        }
    }
}

/// Copies slots from wherever they are to consecutive ones, which are written at once.
fn copy_run(store: &Store, moves: &[(Slot, Slot)]) -> Result<(), StoreError> {
    let mut pages = vec![0; moves.len() * PAGE_BYTES];
    let mut rest = &mut pages[..];
    for run in moves.chunk_by(|a, b| a.0.plus(1) == b.0) {
        let (some, others) = rest.split_at_mut(run.len() * PAGE_BYTES);
        store.read(run[0].0, some)?;
        rest = others;
    }
    store.write_moved(moves[0].1, &pages)
}

/// Returns the pages that map what moves: guests, each with the page and its new slot, in order of pages.
fn mappers(domain: &Domain, moves: &[(Slot, Slot)]) -> Vec<(u32, Merge)> {
    let askable = domain.guests.values().filter(|guest| can_be_asked(guest));
    let merges = askable.flat_map(|guest| {
        let moving = merged_pages(guest)
            .filter_map(move |(page, slot)| Some(Merge { page, slot: destination(moves, slot)? }));
        moving.map(|merge| (guest.number, merge))
    });
    merges.collect()
}
