//! Pages that are merged with the store of a daemon that ended, and that nobody else has: they are made
//! private, because each of them keeps that whole store in memory.
//!
//! That takes memory before it gives any back. So it waits until everybody's pages have been looked at:
//! as long as they have not, most such pages are to be merged with the domain's own store, which costs
//! next to nothing. Nor is it done while merging waits, or beyond the memory that there is.

use bindery_guest::Lane;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use crate::domain::Domain;
use crate::headroom::headroom_bytes;
use crate::links::Link;
use crate::member::Member;
use crate::period::Domains;
use crate::settings::{REHOME_LAPS, REHOME_PAGES};
use crate::workers::Workers;

/// Has some pages of each guest made private for which no more can be hoped.
pub(crate) fn rehome_all(domains: &Domains, workers: &Workers) {
    let settled = domains.values().filter(|domain| is_looked_at(domain));
    let members = settled.flat_map(|domain| domain.members.values());
    let tasks: Vec<&Member> = members.filter(|member| member.is_well()).collect();
    workers.each(&tasks, || (), |(), member| rehome(member));
}

/// Whether a domain merges, and all that its guests had when they came has been looked at.
fn is_looked_at(domain: &Domain) -> bool {
    let mut members = domain.members.values().filter(|member| member.is_well());
    domain.pressure.merges()
        && members.all(|member| {
            let state = member.state();
            state.unmerged || state.laps >= REHOME_LAPS
        })
}

fn rehome(member: &Member) {
    let mut state = member.state();
    if state.foreign.is_empty() || state.unmerged {
        return;
    }
    // A candidate was looked at, and is the only page with its content.
    let alone = |page: &&u32| matches!(member.links.get(PageIndex(**page)), Link::Candidate(_));
    let pages: Vec<u32> =
        state.foreign.iter().filter(alone).take(affordable(member)).copied().collect();
    if pages.is_empty() {
        return;
    }
    let Some(mut lane) = member.lane() else { return };
    for run in pages.chunk_by(|a, b| *b == a + 1) {
        // What this leaves out for want of time comes next time; what it does shows as lost.
        if let Err(error) = lane.unmerge(PageRange::new(PageIndex(run[0]), run.len() as u32)) {
            member.note(&error);
            break;
        }
    }
    member.take_gauges(&mut lane, &mut state);
}

/// How many pages are brought back in this period, at most.
fn affordable(member: &Member) -> usize {
    let room = headroom_bytes(member.connection.identity().pid).unwrap_or(u64::MAX);
    (room / PAGE_BYTES as u64).min(u64::from(REHOME_PAGES)) as usize
}
