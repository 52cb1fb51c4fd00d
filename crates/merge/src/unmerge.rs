//! Bringing all pages of a guest back, on request.

use bindery_guest::{GuestError, Lane};
use bindery_index::pin;
use bindery_units::{ByteCount, PageCount, PageRange};

use crate::domain::Domain;
use crate::guest::Guest;
use crate::headroom::headroom_bytes;
use crate::links::Link;
use crate::visit::Visit;

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
pub(crate) fn unmerge(domain: &Domain, guest: &Guest) -> Result<Unmerging, UnmergeError> {
    let mut state = guest.state();
    let mut visit = Visit::begin(domain, guest, &mut state).ok_or(UnmergeError::Stalled)?;
    // Of a guest that has just come, only its report says what is merged.
    let settled = visit.settle_losses(&mut Vec::new());
    if settled.is_ok() {
        check_memory(guest, visit.still_merged())?;
    }
    visit.leave_alone();
    let brought_back = settled.and_then(|()| visit.bring_back());
    // An operator asked for it: what it costs is not metered as merging's.
    visit.state.usage.note_gauges(&visit.lane.gauges());
    let pages = brought_back.inspect_err(|error| guest.note(error))?;
    Ok(Unmerging { pages, left: visit.still_merged() })
}

impl Visit<'_> {
    fn still_merged(&self) -> u64 {
        self.guest.merged() + self.state.foreign.len()
    }

    /// Marks the guest as unmerged and unlinks its candidates: whatever has their content would be
    /// merged with them.
    fn leave_alone(&mut self) {
        self.state.is_unmerged = true;
        let epoch = pin();
        for (page, link) in self.guest.links.linked(self.guest.links.range()) {
            if matches!(link, Link::Candidate(_)) {
                self.domain.unlink(self.guest, page, &epoch);
            }
        }
    }

    /// Unmerges all pages. Returns how many.
    fn bring_back(&mut self) -> Result<u64, GuestError> {
        let mut pages = 0;
        for region in &self.state.managed {
            let mut rest = *region;
            while !rest.is_empty() {
                let silence = self.guest.connection.written().silence();
                let done = self.lane.unmerge(rest)?;
                drop(silence);
                pages += u64::from(done.pages);
                let at = done.resume.unwrap_or(rest.end());
                rest = PageRange::new(at, rest.end().0 - at.0);
            }
        }
        self.take_losses(&mut Vec::new())?;
        Ok(pages)
    }
}

fn check_memory(guest: &Guest, pages: u64) -> Result<(), UnmergeError> {
    let needed = PageCount(pages).bytes();
    match headroom_bytes(guest.connection.identity().pid) {
        Some(available) if available < needed.0 => {
            Err(UnmergeError::Memory { pages, needed, available: ByteCount(available) })
        }
        _ => Ok(()),
    }
}

/// Merges a guest again that was unmerged: all that it has is looked at anew.
pub(crate) fn merge_again(_domain: &Domain, guest: &Guest) {
    let mut state = guest.state();
    if std::mem::take(&mut state.is_unmerged) {
        let state = &mut *state;
        state.tracking.require_survey();
        state.managed.iter().for_each(|range| state.blocks.forget(*range));
    }
}
