//! Bringing all pages of a guest back, on request.

use bindery_guest::{GuestError, Lane};
use bindery_index::pin;
use bindery_units::{ByteCount, PageCount, PageRange};

use crate::domain::Domain;
use crate::headroom::headroom_bytes;
use crate::links::Link;
use crate::member::{Member, State};
use crate::observe::{settle_losses, take_losses};
use crate::patience::TimedLane;

/// Why a guest was not unmerged.
#[derive(Debug, thiserror::Error)]
pub enum UnmergeError {
    /// There is no such guest.
    #[error("there is no guest {0}")]
    Unknown(u32),
    /// Its pages would not fit.
    #[error(
        "bringing {pages} pages back takes {needed}, and its process can get {available}: free \
         memory, or raise the limit of its cgroup, first"
    )]
    Memory {
        /// Pages that are merged.
        pages: u64,
        /// Memory that they need as private pages.
        needed: ByteCount,
        /// Memory that there is.
        available: ByteCount,
    },
    /// The guest does not answer.
    #[error("the guest is stopped or does not answer: resume it first")]
    Stalled,
    /// It failed on the way. It is left alone from now on; repeat to bring back the rest.
    #[error(transparent)]
    Guest(#[from] GuestError),
}

/// What an unmerge came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmerging {
    /// Pages that are private again.
    pub pages: u64,
    /// Pages that are still merged, for want of mappings or memory in the guest's process.
    pub left: u64,
}

/// Brings all pages of a guest back and leaves it alone from then on. Zero pages stay: a write
/// brings each of them back.
pub(crate) fn unmerge(domain: &Domain, member: &Member) -> Result<Unmerging, UnmergeError> {
    let mut lane = member.lane().ok_or(UnmergeError::Stalled)?;
    let mut guard = member.state();
    let state = &mut *guard;
    // Of a guest that has just come, only its report says what is merged.
    let settled = settle_losses(domain, member, &mut lane, state, &mut Vec::new());
    if settled.is_ok() {
        check_memory(member, still_merged(member, state))?;
    }
    leave_alone(domain, member, state);
    let brought_back = settled.and_then(|()| bring_back(domain, member, &mut lane, state));
    member.take_gauges_unmetered(&mut lane, state);
    let pages = brought_back.inspect_err(|error| member.note(error))?;
    Ok(Unmerging { pages, left: still_merged(member, state) })
}

fn still_merged(member: &Member, state: &State) -> u64 {
    member.merged() + state.foreign.len() as u64
}

/// Nothing more is asked of the guest, and none of its pages is found by others: whatever has a
/// candidate's content would be merged with it.
fn leave_alone(domain: &Domain, member: &Member, state: &mut State) {
    state.unmerged = true;
    let epoch = pin();
    for (page, link) in member.links.linked(member.links.range()) {
        if matches!(link, Link::Candidate(_)) {
            domain.unlink(member, page, &epoch);
        }
    }
}

/// Has all pages made private. Returns how many were.
fn bring_back(
    domain: &Domain,
    member: &Member,
    lane: &mut TimedLane<'_>,
    state: &mut State,
) -> Result<u64, GuestError> {
    let mut pages = 0;
    for region in state.managed.clone() {
        let mut rest = region;
        while !rest.is_empty() {
            let done = lane.unmerge(rest)?;
            pages += u64::from(done.pages);
            let at = done.resume.unwrap_or(rest.end());
            rest = PageRange::new(at, rest.end().0 - at.0);
        }
    }
    take_losses(domain, member, lane, state, &mut Vec::new())?;
    Ok(pages)
}

fn check_memory(member: &Member, pages: u64) -> Result<(), UnmergeError> {
    let needed = PageCount(pages).bytes();
    match headroom_bytes(member.connection.identity().pid) {
        Some(available) if available < needed.0 => {
            Err(UnmergeError::Memory { pages, needed, available: ByteCount(available) })
        }
        _ => Ok(()),
    }
}

/// Merges a guest again that was unmerged: all that it has is looked at anew.
pub(crate) fn merge_again(_domain: &Domain, member: &Member) {
    let mut state = member.state();
    state.doubt.present |= std::mem::take(&mut state.unmerged);
}
