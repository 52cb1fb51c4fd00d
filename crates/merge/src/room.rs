//! Room for mappings: contents that guests cannot map are left out before they take memory.
//!
//! A run of merged pages takes two mappings of its process, which may have no more than `vm.max_map_count`. A page
//! that is merged while the other one with its content is not gains nothing. So before contents get slots, each
//! guest that may be short chooses what it has room for, longest runs first, and a content is left out
//! unless two pages of it are chosen. Of runs of one length, guests choose the contents that come first: the
//! same ones in all of them.

use std::collections::{BTreeMap, BTreeSet};

use bindery_units::{PageIndex, Slot};

use crate::domain::Domain;
use crate::links::Link;
use crate::plan::{Class, Join};
use crate::runs::{Merge, cut, fit, mappings};

/// Stands for the slot of a page that is merged already, and lies beside no other.
const ELSEWHERE: Slot = Slot(u32::MAX);

/// Stands for the slot of the first content of a round: above all that a store has.
const FIRST: u32 = 1 << 30;

/// Takes the classes that guests have no room for out of `classes`, which are in order of their homes, and returns
/// them. Guests that had to leave some out are short of mappings.
pub(crate) fn leave_out(
    domain: &mut Domain,
    classes: &mut Vec<Class>,
    joins: &[Join],
) -> Vec<Class> {
    let unmapped = choose(domain, classes, joins);
    if unmapped.is_empty() {
        return Vec::new();
    }
    let is_chosen = |class: &Class| {
        let chosen = class.joins(joins).iter().filter(|join| !unmapped.contains(&place(join)));
        chosen.count() > 1
    };
    let (kept, left_out) = std::mem::take(classes).into_iter().partition(is_chosen);
    *classes = kept;
    left_out
}

fn place(join: &Join) -> (u32, PageIndex) {
    (join.guest, join.page)
}

/// Returns the pages that their guests have no room for mappings for.
fn choose(domain: &mut Domain, classes: &[Class], joins: &[Join]) -> BTreeSet<(u32, PageIndex)> {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    joins.iter().for_each(|join| *counts.entry(join.guest).or_default() += 1);
    let is_tight = |(guest, pages): (&u32, &u32)| {
        let state = domain.guests.get(guest)?.state();
        // What the store has already needs mappings as well.
        let merges = state.round.merges();
        let pages = *pages as usize + merges.len();
        let is_tight = pages > state.usage.mappings_left() as usize / 2;
        is_tight.then(|| (*guest, merges.to_vec()))
    };
    let mut merges: BTreeMap<u32, Vec<Merge>> = counts.iter().filter_map(is_tight).collect();
    if merges.is_empty() {
        return BTreeSet::new();
    }
    for (at, class) in classes.iter().enumerate() {
        for join in class.joins(joins) {
            if let Some(merges) = merges.get_mut(&join.guest) {
                merges.push(Merge { page: join.page, slot: Slot(FIRST + at as u32) });
            }
        }
    }
    let mut unmapped = BTreeSet::new();
    for (number, merges) in merges {
        let pages = pages_without_room(domain, number, merges);
        unmapped.extend(pages.into_iter().map(|page| (number, page)));
    }
    unmapped
}

/// Returns the pages of `merges`, which are of one guest, that it has no room for.
fn pages_without_room(domain: &mut Domain, number: u32, mut merges: Vec<Merge>) -> Vec<PageIndex> {
    merges.sort_unstable();
    let mut runs = cut(&merges);
    let guest = domain.guests.get_mut(&number).expect("it was found a moment ago");
    let links = &guest.links;
    let slot_at = |page| matches!(links.get(page), Link::Merged(_)).then_some(ELSEWHERE);
    let room = guest.state().usage.mappings_left();
    let rest = fit(&mut runs, room, |run| mappings(run, slot_at));
    if !rest.is_empty() {
        guest.state_mut().round.note_left_out();
    }
    rest.iter().flat_map(|run| (run.page..run.page + run.count).map(PageIndex)).collect()
}
