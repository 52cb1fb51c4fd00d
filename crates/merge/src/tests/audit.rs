//! What must hold between periods, counted naively.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bindery_index::Handle;
use bindery_units::{PageIndex, PageRange, Slot};

use super::model::ModelGuest;
use super::process::{Line, Page};
use crate::domain::Domain;
use crate::engine::Engine;
use crate::guest::Guest;
use crate::index_entry::IndexEntry;
use crate::links::Link;
use crate::tally::{LinkCounts, TALLY_PAGES};

/// Checks all domains of an engine against its guests.
pub(crate) fn audit(engine: &Engine, guests: &[Arc<ModelGuest>]) {
    guests.iter().for_each(|guest| guest.process().check());
    engine.with_domains(|domains| {
        for domain in domains.values() {
            audit_references(domain);
            audit_index(domain);
            for guest in domain.guests.values() {
                let id = guest.connection.identity().id;
                let model = guests.iter().find(|model| guest_id(model) == id);
                audit_guest(guest, model.expect("every guest has a model"));
            }
        }
    });
}

fn guest_id(model: &ModelGuest) -> u32 {
    bindery_guest::Connection::identity(model).id
}

fn links(guest: &Guest) -> impl Iterator<Item = (PageIndex, Link)> + '_ {
    guest.links.linked(guest.links.range())
}

/// Every slot has as many references as pages are linked to it or may be, and is in use exactly
/// if that is not none.
fn audit_references(domain: &Domain) {
    let mut counts: BTreeMap<Slot, u32> = BTreeMap::new();
    for guest in domain.guests.values().chain(&domain.departed) {
        for (_, link) in links(guest) {
            if let Link::Merged(slot) = link {
                *counts.entry(slot).or_insert(0) += 1;
            }
        }
        let state = guest.state();
        assert!(
            state.round.merges().is_empty() && state.round.zeros().is_empty(),
            "a round leaves nothing over"
        );
        for merge in state.doubt.in_flight() {
            *counts.entry(merge.slot).or_insert(0) += 1;
        }
    }
    for (slot, count) in &counts {
        assert_eq!(domain.slots.references(*slot), *count, "{slot:?}");
    }
    let mut used: BTreeSet<Slot> = counts.keys().copied().collect();
    for (row, head) in domain.rows.rows() {
        let slots: Vec<Slot> = (row.first.0..row.end().0).map(Slot).collect();
        assert!(slots.iter().any(|slot| counts.contains_key(slot)), "{row:?} serves nobody");
        assert_eq!((head_of(domain, head), domain.rows.has_rows(head)), (head, true));
        used.extend(slots);
        used.insert(head);
    }
    let said = domain.slots.used() as usize;
    assert_eq!(said, used.len(), "slots in use are those referenced, rows, and heads of rows");
    let stored = domain.store.allocated_bytes() as usize / 4096;
    let held = said..=said + domain.slots.vacant() as usize;
    assert!(
        held.contains(&stored),
        "the store holds {stored}: what is in use, or vacant: {held:?}"
    );
    let segments: BTreeSet<Slot> =
        used.iter().map(|slot| domain.slots.segment_of(*slot).first).collect();
    let most = segments.len() * domain.store.segment_slots() as usize;
    assert!(*held.end() <= most, "what is vacant is in segments that are in use: {held:?}, {most}");
}

/// Every leaf belongs to one candidate or to one slot that is no copy, and says so. A slot has one, or stayed
/// when others moved to a slot that has.
fn audit_index(domain: &Domain) {
    let mut heads: BTreeSet<Slot> = domain.rows.rows().map(|(_, head)| head).collect();
    let mut keys = 0;
    for guest in domain.guests.values().chain(&domain.departed) {
        let mut counted = [0; 3];
        for (page, link) in links(guest) {
            match link {
                Link::Candidate(leaf) => {
                    let value = domain.index.value(Handle::from_bits(leaf));
                    let IndexEntry::Candidate { guest: number, page: other, .. } =
                        IndexEntry::from_bits(value)
                    else {
                        panic!("page {page:?} is linked to {value:#x}")
                    };
                    assert_eq!((number, other), (guest.number, page));
                    keys += 1;
                    counted[0] += 1;
                }
                Link::Merged(slot) => {
                    heads.insert(head_of(domain, slot));
                    counted[1] += 1;
                }
                Link::Zero => counted[2] += 1,
                Link::None => {}
            }
        }
        let in_flight: Vec<Slot> =
            guest.state().doubt.in_flight().iter().map(|merge| merge.slot).collect();
        heads.extend(in_flight.into_iter().map(|slot| head_of(domain, slot)));
        let counts = guest.counts();
        let shown = [counts.pages_unshared, counts.pages_merged, counts.zero_pages];
        assert_eq!(shown, counted, "figures agree with links");
        audit_map(guest);
    }
    for slot in &heads {
        let Some(leaf) = domain.slots.leaf(*slot) else {
            let leader = domain.stayed.leader(*slot).expect("a slot has a leaf, or stayed");
            assert!(domain.slots.leaf(leader).is_some(), "the leader of {slot:?} has the leaf");
            continue;
        };
        assert_eq!(domain.stayed.leader(*slot), None, "{slot:?} has a leaf: it leads");
        let value = IndexEntry::from_bits(domain.index.value(Handle::from_bits(leaf)));
        assert_eq!(value, IndexEntry::Canonical { slot: *slot });
        keys += 1;
    }
    assert_eq!(domain.index.len(), keys);
}

/// Each block's counts are those of its pages' links.
fn audit_map(guest: &Guest) {
    let mut expected: BTreeMap<u32, LinkCounts> = BTreeMap::new();
    for (page, link) in links(guest) {
        let counts = expected.entry(page.0 / TALLY_PAGES).or_default();
        match link {
            Link::Candidate(_) => counts.unshared += 1,
            Link::Merged(_) => counts.merged += 1,
            Link::Zero => counts.zero += 1,
            Link::None => {}
        }
    }
    let blocks = 0..guest.links.range().count / TALLY_PAGES;
    for block in blocks {
        let range = PageRange::new(PageIndex(block * TALLY_PAGES), TALLY_PAGES);
        let counted = guest.tally.shown().count(&[range])[0];
        assert_eq!(counted, expected.get(&block).copied().unwrap_or_default(), "{range:?}");
    }
}

/// The slot that the index leads to for what is in `slot`.
fn head_of(domain: &Domain, slot: Slot) -> Slot {
    domain.rows.row_of(slot).map_or(slot, |(_, head)| head)
}

/// What a guest maps has references; what is linked, a guest maps or is about to report as lost.
fn audit_guest(guest: &Guest, model: &ModelGuest) {
    let state = guest.state();
    let in_flight = |page: u32, slot: Slot| {
        state.doubt.in_flight().iter().any(|merge| (merge.page.0, merge.slot) == (page, slot))
    };
    let merged = model.merged();
    for (page, slot) in &merged {
        let linked = guest.links.get(PageIndex(*page)) == Link::Merged(*slot);
        assert!(linked || in_flight(*page, *slot), "page {page} maps {slot:?} unreferenced");
    }
    if model.line() != Line::Open || state.doubt.is_raised() {
        return;
    }
    for (page, link) in links(guest) {
        if let Link::Merged(slot) = link {
            let mapped = merged.get(&page.0) == Some(&slot);
            let gone = || !model.process().pages.contains_key(&page.0);
            assert!(mapped || gone() || model.has_lost(page.0, slot), "{page:?} is not merged");
        }
    }
}

/// Once guests have been quiet for long, every content that two pages have is merged, and every
/// zero page is zero.
pub(crate) fn assert_converged(guests: &[Arc<ModelGuest>]) {
    /// A guest, and a page of it.
    type Found = (u32, u32, Page);
    let mut pages_of: BTreeMap<(String, u64), Vec<Found>> = BTreeMap::new();
    for guest in guests {
        let domain = bindery_guest::Connection::identity(&**guest).domain.clone();
        for (number, page) in &guest.process().pages {
            let content = match page {
                Page::Absent => continue,
                Page::Zero => 0,
                Page::Private(content) | Page::Merged(_, _, content) => *content,
            };
            let found = (guest_id(guest), *number, *page);
            pages_of.entry((domain.clone(), content)).or_default().push(found);
        }
    }
    for ((domain, content), pages) in pages_of {
        let shared = match content {
            0 => pages.iter().all(|(.., page)| *page == Page::Zero),
            _ if pages.len() == 1 => true,
            _ => pages.iter().all(|(.., page)| matches!(page, Page::Merged(..))),
        };
        assert!(shared, "content {content} of {domain} is left private: {pages:?}");
    }
}
