//! Blocks of the store that have few slots in use are emptied, so that they can be given back.
//!
//! What is still in use moves: its content is copied to a new slot, every page that maps it is asked to
//! map the new one (a guest compares the two first, as ever), and the leaf follows. Slots move in
//! order, so that pages side by side keep slots side by side and no mapping is cut that was not.
//!
//! A slot moves only if all who map it can be asked now. One that some page keeps all the same, for
//! want of mappings, say, stays without a leaf until that page lets go.

use std::collections::BTreeMap;

use bindery_index::Handle;
use bindery_space::wire::lane::RUN_PAGES_MAX;
use bindery_units::{Slot, SlotRange};

use crate::domain::Domain;
use crate::entry::Entry;
use crate::headroom::pages_to_spare;
use crate::links::Link;
use crate::member::Member;
use crate::pressure::DomainState;
use crate::runs::Merge;

/// A store with fewer vacant slots is left as it is: 4 MiB. Fewer in tests, whose blocks are short.
const VACANT_MIN: u32 = if cfg!(test) { 16 } else { 1024 };

/// So is one with fewer than one vacant slot for so many in use.
const VACANT_SHARE: u32 = 8;

/// Slots that move in one period, at most: 64 MiB.
const MOVES_MAX: u32 = 1 << 14;

/// Periods between two tries, at most, where moving gave little back.
const PAUSE_MAX: u32 = 64;

/// How long a domain waits before it tries again.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// Periods left to wait.
    left: u32,
    /// How many it were the last time.
    pause: u32,
}

impl Patience {
    /// A period begins: whether there may be a try in it.
    fn has_waited(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Takes in whether a try gave back what it was to.
    fn note(&mut self, was_worth_it: bool) {
        self.pause = if was_worth_it { 0 } else { (2 * self.pause).clamp(2, PAUSE_MAX) };
        self.left = self.pause;
    }
}

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
        if !is_wanted(domain) || !domain.patience.has_waited() {
            return None;
        }
        let vacant = domain.slots.vacant();
        let (blocks, mappers) = movable(domain, sparse_blocks(domain));
        let moves = copy(domain, &blocks);
        if moves.is_empty() {
            domain.patience.note(false);
            return None;
        }
        for (number, merge) in mappers {
            // Of a block that does not move after all, none.
            let Some(new) = new_slot(&moves, merge.slot) else { continue };
            let member = domain.members.get_mut(&number).expect("it was asked what it maps");
            domain.slots.take(new);
            member.state_mut().merges.push(Merge { slot: new, ..merge });
        }
        let block = domain.grant.store.block_slots();
        let gain = blocks.len() as u32 * block - moves.len() as u32;
        Some(Self { moves, vacant, gain })
    }

    /// Guests have been asked: leaves follow, and blocks that are empty go.
    pub(crate) fn settle(self, domain: &mut Domain) {
        for (old, new) in self.moves {
            // Where nobody moved, the new one goes again.
            if domain.slots.references(new) > 0
                && let Some(leaf) = domain.slots.leaf(old)
            {
                let (from, to) = (Entry::Canonical { slot: old }, Entry::Canonical { slot: new });
                let handle = Handle::from_bits(leaf);
                let exchanged = domain.index.exchange_value(handle, from.to_bits(), to.to_bits());
                assert!(exchanged.is_ok(), "a slot's leaf leads to it between phases");
                domain.slots.set_leaf(old, None);
                domain.slots.set_leaf(new, Some(leaf));
            }
        }
        domain.sweep();
        let given_back = self.vacant.saturating_sub(domain.slots.vacant());
        domain.patience.note(given_back >= self.gain / 2);
    }
}

/// Whether so much of the store is vacant that moving what is not pays.
fn is_wanted(domain: &Domain) -> bool {
    let (used, vacant) = (domain.slots.used(), domain.slots.vacant());
    match domain.pressure.state() {
        // Guests have enough to do.
        DomainState::Storm => false,
        DomainState::StoreFull => vacant > 0,
        _ => vacant >= VACANT_MIN && vacant > used / VACANT_SHARE,
    }
}

/// Blocks to be emptied: those with the fewest slots in use, until half of what makes it worth while is
/// vacant.
fn sparse_blocks(domain: &Domain) -> Vec<SlotRange> {
    let slots = &domain.slots;
    let block = domain.grant.store.block_slots();
    let enough = (slots.used() / VACANT_SHARE).max(VACANT_MIN) / 2;
    let mut left = MOVES_MAX.min(slots.room()).min(pages_to_spare() as u32);
    let mut vacant = slots.vacant();
    let mut blocks = Vec::new();
    for sparse in slots.sparse(block - block / VACANT_SHARE) {
        let range = SlotRange::new(sparse.first, block);
        if domain.copies.touch(range) {
            continue;
        }
        if vacant <= enough || sparse.used > left {
            break;
        }
        left -= sparse.used;
        vacant = vacant.saturating_sub(block - sparse.used);
        blocks.push(range);
    }
    blocks.sort_unstable_by_key(|block| block.first);
    blocks
}

/// Those of `blocks` that all who map them can be asked to leave, and who that is: members, with their
/// pages and the slots that these map now.
fn movable(domain: &Domain, blocks: Vec<SlotRange>) -> (Vec<SlotRange>, Vec<(u32, Merge)>) {
    let holds = |slot: Slot| {
        let after = blocks.partition_point(|block| block.first <= slot);
        after > 0 && slot < blocks[after - 1].end()
    };
    let mut mappers = Vec::new();
    let mut counted: BTreeMap<Slot, u32> = BTreeMap::new();
    for member in domain.members.values().filter(|member| can_be_asked(member)) {
        for (page, link) in member.links.linked(member.links.range()) {
            if let Link::Merged(slot) = link
                && holds(slot)
            {
                mappers.push((member.number, Merge { page, slot }));
                *counted.entry(slot).or_insert(0) += 1;
            }
        }
    }
    let is_free_to_go = |slot: &Slot| {
        let references = domain.slots.references(*slot);
        let counted = counted.get(slot).copied().unwrap_or(0);
        references == counted && (references == 0 || domain.slots.leaf(*slot).is_some())
    };
    let movable = |block: &SlotRange| slots_of(*block).all(|slot| is_free_to_go(&slot));
    (blocks.iter().copied().filter(movable).collect(), mappers)
}

fn can_be_asked(member: &Member) -> bool {
    let state = member.state();
    member.is_well() && !state.unmerged && !state.doubt.merged && state.in_flight.is_empty()
}

fn slots_of(range: SlotRange) -> impl Iterator<Item = Slot> {
    (range.first.0..range.end().0).map(Slot)
}

/// Copies what is in use of `blocks` to new slots, as far as there are any.
fn copy(domain: &mut Domain, blocks: &[SlotRange]) -> Vec<(Slot, Slot)> {
    blocks.iter().for_each(|block| domain.slots.seal(*block));
    let in_use = |slot: &Slot| domain.slots.references(*slot) > 0;
    let old: Vec<Slot> = blocks.iter().flat_map(|block| slots_of(*block)).filter(in_use).collect();
    let runs = domain.slots.allocate(old.len() as u32);
    let new: Vec<Slot> = runs.iter().flat_map(|run| slots_of(*run)).collect();
    let moves: Vec<(Slot, Slot)> = old.into_iter().zip(new).collect();
    let is_next = |a: &(Slot, Slot), b: &(Slot, Slot)| a.0.plus(1) == b.0 && a.1.plus(1) == b.1;
    let copied = moves
        .chunk_by(is_next)
        .flat_map(|run| run.chunks(RUN_PAGES_MAX as usize))
        .try_for_each(|run| domain.grant.store.move_slots(run[0].0, run[0].1, run.len() as u32));
    match copied {
        Ok(()) => moves,
        Err(error) => {
            tracing::debug!(%error, "sparse blocks of the store stay as they are");
            runs.into_iter().for_each(|run| domain.release(run));
            Vec::new()
        }
    }
}

/// Where the content of `slot` is now.
fn new_slot(moves: &[(Slot, Slot)], slot: Slot) -> Option<Slot> {
    let at = moves.binary_search_by_key(&slot, |(old, _)| *old).ok()?;
    Some(moves[at].1)
}
