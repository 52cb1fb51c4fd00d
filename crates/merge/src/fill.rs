//! Newly shared contents get slots, and the slots their contents.
//!
//! Contents are copied from the source of each class, digested here once more, and written only if
//! they are what the leaf is found by: a guest that lied about a digest, or wrote to the page
//! meanwhile, spoils nothing but its own class.

use std::sync::atomic::{AtomicBool, Ordering};

use bindery_guest::{Fetched, Lane};
use bindery_index::Handle;
use bindery_units::Slot;
use bindery_wire::lane::FETCH_PAGES_MAX;

use crate::classes::Classes;
use crate::domain::Domain;
use crate::headroom::pages_to_spare;
use crate::index_entry::IndexEntry;
use crate::links::Link;
use crate::lock::locked_mut;
use crate::phases::PhaseName;
use crate::plan::{self, Class, Join};
use crate::pressure::Shortage;
use crate::room::leave_out;
use crate::runs::Merge;
use crate::slots::runs_of;
use crate::stable::BACK_OFF_MAX;
use crate::workers::Workers;

/// Guests that a content is asked of, one after the other, before it is given up.
const SOURCES_MAX: usize = 3;

/// Times that slots are passed on in one round: a guest whose pages are all unlike what they are inferred to be
/// could have it go on with few slots and many classes.
const PASSES_MAX: usize = 8;

/// Classes of a round, in order of their homes; the first of them have slots.
pub(crate) struct Plan {
    classes: Vec<Class>,
    joins: Vec<Join>,
    slots: Vec<Slot>,
    filled: Vec<AtomicBool>,
    /// Classes that guests have no room for mappings for.
    left_out: Vec<Class>,
}

impl Plan {
    /// Plans what a round found, and allocates the slots.
    pub(crate) fn make(domain: &mut Domain) -> Self {
        let mut found = std::mem::take(locked_mut(&mut domain.found));
        domain.classes = Classes::default();
        let mut classes = plan::classes(&mut found.seeds, &mut found.joins);
        let left_out = leave_out(domain, &mut classes, &found.joins);
        let runs = domain.slots.allocate(classes.len() as u32);
        let slots: Vec<Slot> = plan::slots_in(&runs).collect();
        let filled = slots.iter().map(|_| AtomicBool::new(false)).collect();
        Self { classes, joins: found.joins, slots, filled, left_out }
    }

    /// Copies the contents into the store. A slot whose class nobody has the content of goes to the next class
    /// that found none.
    pub(crate) fn fill(&mut self, domain: &Domain, workers: &Workers) {
        let affordable = self.slots.len().min(pages_to_spare());
        let mut missing: Vec<usize> = (0..affordable).collect();
        let mut waiting = self.slots.len()..self.classes.len();
        for _ in 0..PASSES_MAX {
            if missing.is_empty() || is_short(domain) {
                break;
            }
            self.try_sources(domain, workers, missing.clone());
            missing.retain(|class| !self.is_filled(*class));
            missing.truncate(waiting.len());
            for (failed, next) in missing.iter().zip(&mut waiting) {
                self.classes.swap(*failed, next);
            }
        }
        if affordable < self.slots.len() {
            tracing::debug!("memory for canonical pages is short: merging pauses");
            domain.note_shortage(Shortage::Memory);
        } else if !waiting.is_empty() {
            domain.note_shortage(Shortage::Store);
        }
    }

    /// Copies the contents of classes that have slots, from other guests where sources fail. A phase of its
    /// own, or several.
    fn try_sources(&mut self, domain: &Domain, workers: &Workers, mut missing: Vec<usize>) {
        for tried in 1..=SOURCES_MAX {
            missing.sort_by_key(|class| self.source_of(*class));
            let sources = missing.chunk_by(|a, b| self.source_of(*a) == self.source_of(*b));
            let requests: Vec<&[usize]> =
                sources.flat_map(|source| source.chunks(FETCH_PAGES_MAX)).collect();
            workers.each(PhaseName::Fill, &requests, Fetched::default, |fetched, classes| {
                self.fill_some(domain, classes, fetched);
            });
            missing.retain(|class| !self.is_filled(*class));
            missing.retain(|class| self.try_next_source(*class, tried));
        }
    }

    fn source_of(&self, class: usize) -> u32 {
        self.classes[class].source.0
    }

    fn is_filled(&self, class: usize) -> bool {
        // Relaxed: read after the phase's threads were joined.
        self.filled[class].load(Ordering::Relaxed)
    }

    /// Makes the next guest that has the content its source, after so many were tried. False if there is
    /// no other.
    fn try_next_source(&mut self, class: usize, tried: usize) -> bool {
        let class = &mut self.classes[class];
        let next = class.next_source(&self.joins, tried);
        class.source = next.unwrap_or(class.source);
        next.is_some()
    }

    /// Fetches the contents of classes with sources in one guest, and writes those that are as digested.
    fn fill_some(&self, domain: &Domain, classes: &[usize], fetched: &mut Fetched) {
        let Some(guest) = domain.guests.get(&self.source_of(classes[0])) else { return };
        if is_short(domain) {
            return;
        }
        let Some(mut lane) = guest.lane() else { return };
        let pages: Vec<u32> = classes.iter().map(|class| self.classes[*class].source.1.0).collect();
        let result = lane.fetch(&pages, fetched);
        guest.note_gauges(&mut lane, &mut guest.state().usage);
        drop(lane);
        if let Err(error) = result {
            return guest.note(&error);
        }
        let good: Vec<usize> = (0..classes.len())
            .filter(|at| {
                fetched.page(*at).is_some_and(|page| {
                    let digest = bindery_page::digest(page, &domain.key);
                    let [head, tail] = digest.to_words();
                    let seed = &self.classes[classes[*at]].seed;
                    head == seed.head && seed.tail.is_none_or(|found| tail == found)
                })
            })
            .collect();
        let slot = |at: usize| self.slots[classes[at]];
        for run in good.chunk_by(|a, b| *b == a + 1 && slot(*b).0 == slot(*a).0 + 1) {
            let bytes = fetched.bytes(run[0], run.len());
            if let Err(error) = domain.store.write(slot(run[0]), bytes) {
                return domain.note_store_error(&error);
            }
            for at in run {
                // Relaxed: read after the phase's threads were joined.
                self.filled[classes[*at]].store(true, Ordering::Relaxed);
            }
        }
    }

    /// Makes filled classes canonical and enters the merges of their pages; gives up the others.
    pub(crate) fn commit(self, domain: &mut Domain) {
        let mut empty = Vec::new();
        let is_short = is_short(domain);
        for (at, class) in self.classes.iter().enumerate() {
            let slot = self.slots.get(at).copied();
            match slot.filter(|_| self.is_filled(at)) {
                Some(slot) => {
                    unlink_origin(domain, class);
                    make_canonical(domain, class, slot, class.joins(&self.joins));
                }
                None => {
                    make_candidate(domain, class);
                    empty.extend(slot);
                    let no_room = slot.is_none() || is_short;
                    give_up(domain, class.later(&self.joins), no_room);
                }
            }
        }
        for class in &self.left_out {
            make_candidate(domain, class);
            give_up(domain, class.later(&self.joins), true);
        }
        empty.sort_unstable();
        for run in runs_of(&empty) {
            domain.release(run);
        }
    }
}

/// Returns true if nothing more can be written in this period.
fn is_short(domain: &Domain) -> bool {
    matches!(domain.shortage(), Some(Shortage::Memory | Shortage::Descriptors))
}

/// Unlinks the page that was seen first from the leaf, whose candidate it is no more.
fn unlink_origin(domain: &Domain, class: &Class) {
    let (guest, page) = class.seed.origin;
    if let Some(guest) = domain.guests.get(&guest) {
        let old = guest.link(page, Link::None);
        assert!(old == Link::Candidate(class.seed.leaf), "a class is made of a candidate: {old:?}");
    }
}

/// Turns the leaf of a class back into that of the page seen first, as its link says: no other page has
/// the content, or there is no room.
fn make_candidate(domain: &Domain, class: &Class) {
    let (guest, page) = class.seed.origin;
    exchange(domain, class, IndexEntry::Candidate { guest, page, is_shared: false });
}

/// Has the leaf of a class say something else.
fn exchange(domain: &Domain, class: &Class, entry: IndexEntry) {
    let planned = IndexEntry::Planned { class: class.seed.class }.to_bits();
    let leaf = Handle::from_bits(class.seed.leaf);
    let exchanged = domain.index.exchange_value(leaf, planned, entry.to_bits());
    assert!(exchanged.is_ok(), "a planned leaf is changed by its planner alone");
}

fn make_canonical(domain: &mut Domain, class: &Class, slot: Slot, joins: &[Join]) {
    exchange(domain, class, IndexEntry::Canonical { slot });
    domain.slots.set_leaf(slot, Some(class.seed.leaf));
    // As for any slot: a reference for each page that is to map it, before it is asked to.
    for join in joins {
        if let Some(guest) = domain.guests.get_mut(&join.guest) {
            domain.slots.take(slot);
            guest.state_mut().round.add_merge(Merge { page: join.page, slot });
        }
    }
}

/// Puts pages back that have no slot to be merged with: later if there was no room, and ever later
/// if nobody had what was digested. Pages that were only inferred are put back at once, to be digested alone.
fn give_up<'a>(domain: &mut Domain, joins: impl Iterator<Item = &'a Join>, no_room: bool) {
    for join in joins {
        let Some(guest) = domain.guests.get_mut(&join.guest) else { continue };
        let tracking = &mut guest.state_mut().tracking;
        if join.inferred {
            tracking.put_back(join.page, 0);
        } else if no_room {
            tracking.put_back(join.page, BACK_OFF_MAX);
        } else {
            if domain.backs_off {
                tracking.note_break(join.page);
            }
            tracking.put_back_later(join.page);
        }
    }
}
