//! Newly shared contents get slots, and the slots their contents.
//!
//! Contents are copied from the home of each class, digested here once more, and written only if
//! they are what the class was found by: a guest that lied about a digest, or wrote to the page
//! meanwhile, spoils nothing but its own class.

use std::sync::atomic::{AtomicBool, Ordering};

use bindery_guest::Fetched;
use bindery_index::{Handle, pin};
use bindery_space::wire::lane::FETCH_PAGES_MAX;
use bindery_units::Slot;

use crate::domain::{Domain, locked_mut};
use crate::entry::Entry;
use crate::headroom::pages_to_spare;
use crate::links::Link;
use crate::plan::{self, Class, Join};
use crate::pressure::Shortage;
use crate::runs::Merge;
use crate::slots::runs_of;
use crate::stable::BACK_OFF_MAX;
use crate::workers::Workers;

/// Guests that a content is asked of, one after the other, before it is given up.
const HOMES_MAX: usize = 3;

/// The classes of a round, in order of their homes; the first of them have slots.
pub(crate) struct Plan {
    classes: Vec<Class>,
    joins: Vec<Join>,
    slots: Vec<Slot>,
    filled: Vec<AtomicBool>,
}

impl Plan {
    /// Plans what a round found, and allocates the slots.
    pub(crate) fn make(domain: &mut Domain) -> Self {
        let mut found = std::mem::take(locked_mut(&mut domain.found));
        *domain.classes.get_mut() = 0;
        let classes = plan::classes(&mut found.seeds, &mut found.joins);
        let runs = domain.slots.allocate(classes.len() as u32);
        let slots: Vec<Slot> = plan::slots_in(&runs).collect();
        if slots.len() < classes.len() {
            domain.note_shortage(Shortage::Store);
        }
        let filled = slots.iter().map(|_| AtomicBool::new(false)).collect();
        Self { classes, joins: found.joins, slots, filled }
    }

    /// Copies the contents into the store, from other guests where homes fail. A phase of its own,
    /// or several.
    pub(crate) fn fill(&mut self, domain: &Domain, workers: &Workers) {
        if self.slots.is_empty() {
            return;
        }
        let affordable = self.slots.len().min(pages_to_spare());
        let mut missing: Vec<usize> = (0..affordable).collect();
        for _ in 0..HOMES_MAX {
            let homes = missing.chunk_by(|a, b| self.home_of(*a) == self.home_of(*b));
            let requests: Vec<&[usize]> =
                homes.flat_map(|home| home.chunks(FETCH_PAGES_MAX)).collect();
            workers.each(&requests, Fetched::default, |fetched, classes| {
                self.fill_some(domain, classes, fetched);
            });
            missing.retain(|class| !self.is_filled(*class));
            missing.retain(|class| self.try_next_home(*class));
            missing.sort_by_key(|class| self.home_of(*class));
        }
        if affordable < self.slots.len() {
            tracing::debug!("memory for canonical pages is short: merging pauses");
            domain.note_shortage(Shortage::Memory);
        }
    }

    fn home_of(&self, class: usize) -> u32 {
        self.classes[class].home.0
    }

    fn is_filled(&self, class: usize) -> bool {
        // Relaxed: read after the phase's threads were joined.
        self.filled[class].load(Ordering::Relaxed)
    }

    /// Makes the next guest that has the content its home. False if there is none.
    fn try_next_home(&mut self, class: usize) -> bool {
        let class = &mut self.classes[class];
        let joins = &self.joins[class.joins.0 as usize..class.joins.1 as usize];
        let next = joins.iter().find(|join| join.member > class.home.0);
        if let Some(join) = next {
            class.home = (join.member, join.page);
        }
        next.is_some()
    }

    /// Fetches the contents of classes with one home, and writes those that are as digested.
    fn fill_some(&self, domain: &Domain, classes: &[usize], fetched: &mut Fetched) {
        let Some(member) = domain.members.get(&self.home_of(classes[0])) else { return };
        if domain.shortage() == Some(Shortage::Memory) {
            return;
        }
        let Some(mut lane) = member.lane() else { return };
        let pages: Vec<u32> = classes.iter().map(|class| self.classes[*class].home.1.0).collect();
        let result = lane.fetch(&pages, fetched);
        member.take_gauges(&mut lane, &mut member.state());
        drop(lane);
        if let Err(error) = result {
            return member.note(&error);
        }
        let good: Vec<usize> = (0..classes.len())
            .filter(|at| {
                fetched.page(*at).is_some_and(|page| {
                    let digest = bindery_page::digest(page, &domain.key);
                    digest.to_words() == self.classes[classes[*at]].seed.digest
                })
            })
            .collect();
        let slot = |at: usize| self.slots[classes[at]];
        for run in good.chunk_by(|a, b| *b == a + 1 && slot(*b).0 == slot(*a).0 + 1) {
            let bytes = fetched.bytes(run[0], run.len());
            if let Err(error) = domain.grant.store.write(slot(run[0]), bytes) {
                tracing::warn!(%error, "no memory for canonical pages: merging pauses");
                return domain.note_shortage(Shortage::Memory);
            }
            for at in run {
                // Relaxed: read after the phase's threads were joined.
                self.filled[classes[*at]].store(true, Ordering::Relaxed);
            }
        }
    }

    /// Makes filled classes canonical and enters the merges of their pages; gives up the others.
    pub(crate) fn commit(self, domain: &mut Domain) {
        let guard = pin();
        let mut empty = Vec::new();
        let memory_is_short = domain.shortage() == Some(Shortage::Memory);
        for (at, class) in self.classes.iter().enumerate() {
            let slot = self.slots.get(at).copied();
            let joins = &self.joins[class.joins.0 as usize..class.joins.1 as usize];
            // Their links led to the leaf as a candidate's, which it is no more.
            for join in joins {
                if let Some(member) = domain.members.get(&join.member)
                    && matches!(member.links.get(join.page), Link::Candidate(_))
                {
                    member.link(join.page, Link::None);
                }
            }
            match slot.filter(|_| self.is_filled(at)) {
                Some(slot) => make_canonical(domain, class, slot, joins),
                None => {
                    domain.delete(class.seed.leaf, &guard);
                    empty.extend(slot);
                    give_up(domain, joins, slot.is_none() || memory_is_short);
                }
            }
        }
        empty.sort_unstable();
        for run in runs_of(&empty) {
            domain.release(run);
        }
    }
}

fn make_canonical(domain: &mut Domain, class: &Class, slot: Slot, joins: &[Join]) {
    let planned = Entry::Planned { class: class.seed.class }.to_bits();
    let canonical = Entry::Canonical { slot }.to_bits();
    let leaf = Handle::from_bits(class.seed.leaf);
    let exchanged = domain.index.exchange_value(leaf, planned, canonical);
    assert!(exchanged.is_ok(), "a planned leaf is changed by its planner alone");
    domain.slots.set_leaf(slot, Some(class.seed.leaf));
    // As for any slot: a reference for each page that is to map it, before it is asked to.
    for join in joins {
        if let Some(member) = domain.members.get_mut(&join.member) {
            domain.slots.take(slot);
            member.state_mut().merges.push(Merge { page: join.page, slot });
        }
    }
}

/// Pages of a class that is given up are looked at again: later if there was no room, ever later
/// if nobody had what was digested.
fn give_up(domain: &mut Domain, joins: &[Join], no_room: bool) {
    for join in joins {
        let Some(member) = domain.members.get_mut(&join.member) else { continue };
        let stable = &mut member.state_mut().stable;
        if no_room {
            stable.tell_again(join.page, BACK_OFF_MAX);
        } else {
            if domain.backs_off {
                stable.note_break(join.page);
            }
            stable.tell_after_back_off(join.page);
        }
    }
}
