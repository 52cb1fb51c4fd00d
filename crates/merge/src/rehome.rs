//! Pages that are merged with the store of a daemon that ended, and that nobody else has: they are made
//! private, because each of them keeps that whole store in memory.
//!
//! That takes memory before it gives any back. So it waits until everybody's pages have been looked at:
//! as long as they have not, most such pages are to be merged with the domain's own store, which costs
//! next to nothing. Nor is it done while merging waits, or beyond the memory that there is.

use bindery_guest::Lane;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use crate::domain::{Domain, Domains};
use crate::guest::Guest;
use crate::headroom::headroom_bytes;
use crate::links::Link;
use crate::phases::PhaseName;
use crate::settings::{REHOME_LAPS, REHOME_PAGES};
use crate::workers::Workers;

/// Unmerges a bounded number of each guest's unduplicated pages that still map a dead daemon's store.
pub(crate) fn rehome_all(domains: &Domains, workers: &Workers) {
    let settled = domains.values().filter(|domain| is_looked_at(domain));
    let guests = settled.flat_map(|domain| domain.guests.values());
    let tasks: Vec<&Guest> = guests.filter(|guest| guest.is_well()).collect();
    workers.each(PhaseName::Rehome, &tasks, || (), |(), guest| rehome(guest));
}

/// Returns true if a domain merges, and all that its guests had when they came has been looked at.
fn is_looked_at(domain: &Domain) -> bool {
    let mut guests = domain.guests.values().filter(|guest| guest.is_well());
    domain.pressure.merges()
        && guests.all(|guest| {
            let state = guest.state();
            state.is_unmerged || state.foreign.laps() >= REHOME_LAPS
        })
}

fn rehome(guest: &Guest) {
    let mut state = guest.state();
    if state.foreign.is_empty() || state.is_unmerged {
        return;
    }
    // A candidate was looked at, and is the only page with its content.
    let is_alone = |page: &PageIndex| matches!(guest.links.get(*page), Link::Candidate(_));
    let alone = state.foreign.pages().filter(is_alone);
    let pages: Vec<PageIndex> = alone.take(affordable(guest)).collect();
    if pages.is_empty() {
        return;
    }
    let Some(mut lane) = guest.lane() else { return };
    for run in pages.chunk_by(|a, b| *b == a.plus(1)) {
        // What this leaves out for want of time comes next time; what it does shows as lost.
        if let Err(error) = lane.unmerge(PageRange::new(run[0], run.len() as u32)) {
            guest.note(&error);
            break;
        }
    }
    guest.note_gauges(&mut lane, &mut state.usage);
}

/// Returns how many pages are brought back in this period, at most.
fn affordable(guest: &Guest) -> usize {
    let room = headroom_bytes(guest.connection.identity().pid).unwrap_or(u64::MAX);
    (room / PAGE_BYTES as u64).min(u64::from(REHOME_PAGES)) as usize
}
