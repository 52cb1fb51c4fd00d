//! The third phase: newly shared contents get slots, and the slots their contents.
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
use crate::links::Link;
use crate::plan::{self, Class, Join};
use crate::pressure::Shortage;
use crate::runs::Merge;
use crate::slots::runs_of;
use crate::stable::BACK_OFF_MAX;
use crate::workers::Workers;

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

    /// The requests that fetch the contents: classes with one home, and their place in the plan.
    fn requests(&self) -> Vec<(usize, &[Class])> {
        let mut at = 0;
        let with_slots = &self.classes[..self.slots.len()];
        let homes = with_slots.chunk_by(|a, b| a.home.0 == b.home.0);
        homes
            .flat_map(|home| home.chunks(FETCH_PAGES_MAX))
            .map(|request| {
                at += request.len();
                (at - request.len(), request)
            })
            .collect()
    }

    /// Copies the contents into the store. A phase of its own.
    pub(crate) fn fill(&self, domain: &Domain, workers: &Workers) {
        let requests = self.requests();
        workers.each(&requests, Fetched::default, |fetched, (first, classes)| {
            self.fill_some(domain, *first, classes, fetched);
        });
    }

    fn fill_some(&self, domain: &Domain, first: usize, classes: &[Class], fetched: &mut Fetched) {
        let Some(member) = domain.members.get(&classes[0].home.0) else { return };
        if domain.is_short() {
            return;
        }
        let Some(mut lane) = member.lane() else { return };
        let pages: Vec<u32> = classes.iter().map(|class| class.home.1.0).collect();
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
                    digest.to_words() == classes[*at].seed.digest
                })
            })
            .collect();
        let slot = |at: usize| self.slots[first + at];
        for run in good.chunk_by(|a, b| *b == a + 1 && slot(*b).0 == slot(*a).0 + 1) {
            let bytes = fetched.bytes(run[0], run.len());
            if let Err(error) = domain.grant.store.write(slot(run[0]), bytes) {
                tracing::warn!(%error, "no memory for canonical pages: merging pauses");
                return domain.note_shortage(Shortage::Memory);
            }
            for at in run {
                // Relaxed: read after the phase's threads were joined.
                self.filled[first + at].store(true, Ordering::Relaxed);
            }
        }
    }

    /// Makes filled classes canonical and enters the merges of their pages; gives up the others.
    pub(crate) fn commit(self, domain: &mut Domain) {
        let guard = pin();
        let mut empty = Vec::new();
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
            match slot.filter(|_| self.filled[at].load(Ordering::Relaxed)) {
                Some(slot) => make_canonical(domain, class, slot, joins),
                None => {
                    domain.delete(class.seed.leaf, &guard);
                    empty.extend(slot);
                    // With a slot, its home failed: try another. Without, there is no room.
                    let periods = if slot.is_some() { 0 } else { BACK_OFF_MAX };
                    tell_again(domain, joins, periods);
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
    domain.slots.set_leaf(slot, class.seed.leaf);
    // As for any slot: a reference for each page that is to map it, before it is asked to.
    for join in joins {
        if let Some(member) = domain.members.get_mut(&join.member) {
            domain.slots.take(slot);
            member.state_mut().merges.push(Merge { page: join.page, slot });
        }
    }
}

fn tell_again(domain: &mut Domain, joins: &[Join], periods: u8) {
    for join in joins {
        if let Some(member) = domain.members.get_mut(&join.member) {
            member.state_mut().stable.tell_again(join.page, periods);
        }
    }
}
