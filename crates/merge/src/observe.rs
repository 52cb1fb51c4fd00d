//! The first phase: what did each guest lose and write since the last period?
//!
//! Losses first, then writes: a page that broke is reported as lost, and as written by the scan
//! that follows or by the next one. In steady state these two requests are all that a guest is
//! asked, and not one of its pages is read. A guest in which all is quiet is not asked anything in most
//! periods ([`rhythm`](crate::rhythm)), and one that keeps all of its huge pages not until one of them is to be sampled again.

use bindery_guest::{GuestError, Lane};
use bindery_wire::lane::Lost;

use crate::domain::Domain;
use crate::guest::{Guest, State};
use crate::look::Samples;
use crate::scan::Harvest;
use crate::settings::{LOOKED_AT_BLOCKS, MEND_PAGES};
use crate::visit::Visit;
use crate::workers::Workers;

/// Room for answers, used again for every guest.
#[derive(Default)]
pub(crate) struct Scratch {
    lost: Vec<Lost>,
    harvest: Harvest,
    samples: Samples,
}

/// Takes in what a guest lost and wrote, and settles which of its pages are stable.
pub(crate) fn observe(domain: &Domain, guest: &Guest, workers: &Workers, scratch: &mut Scratch) {
    let mut state = guest.state();
    state.tracking.hold_back();
    state.usage.begin_period();
    if workers.are_stopping() {
        return;
    }
    if !state.is_unmerged {
        scratch.samples.due = begin_looking(domain, guest, &mut state);
        if scratch.samples.due.is_empty() && is_at_rest(guest, &state) {
            state.tracking.begin_period();
            state.counts.pages_volatile = state.tracking.end_period();
            state.breaks.note_rest();
            if state.tracking.ready() == 0 {
                state.foreign.end_lap();
            }
            return;
        }
    }
    let Some(mut visit) = Visit::begin(domain, guest, &mut state) else { return };
    let observed = if visit.state.is_unmerged {
        // What could not be brought back may still be lost.
        visit.settle_losses(&mut scratch.lost)
    } else {
        visit.observe(workers, scratch)
    };
    if let Err(error) = observed {
        guest.note(&error);
    }
    drop(visit);
    let breaks = state.counts.breaks;
    state.breaks.note_asked(breaks);
}

/// Starts the next period of a guest's blocks. Returns the first pages of those that are to be sampled in it.
fn begin_looking(domain: &Domain, guest: &Guest, state: &mut State) -> Vec<u32> {
    state.blocks.begin_period(&domain.huge);
    if !domain.looks {
        return Vec::new();
    }
    let mut due = state.blocks.due(&state.managed, &domain.huge, |page| guest.gains.of(page));
    // The others are due in the next period still.
    due.truncate(LOOKED_AT_BLOCKS);
    due
}

/// Returns true if there is nothing to ask the guest in the period that begins.
fn is_at_rest(guest: &Guest, state: &State) -> bool {
    let written = guest.connection.written();
    let is_known = state.doubt.is_clear()
        && state.foreign.is_empty()
        && state.stale.is_empty()
        && !state.tracking.needs_survey()
        && !written.is_in_doubt()
        && !written.is_watched();
    is_known && (has_nothing_to_lose(guest, state) || !state.tracking.is_due_next(&state.managed))
}

/// Returns true if no page of the guest is merged, and none of its writes are tracked.
fn has_nothing_to_lose(guest: &Guest, state: &State) -> bool {
    guest.merged() == 0 && !state.blocks.has_split(&state.managed)
}

impl Visit<'_> {
    fn observe(&mut self, workers: &Workers, scratch: &mut Scratch) -> Result<(), GuestError> {
        self.state.tracking.begin_period();
        let looked = self.look(workers, scratch);
        self.note_gauges();
        self.state.counts.pages_volatile = self.state.tracking.end_period();
        looked?;
        if self.state.tracking.ready() == 0 {
            self.state.foreign.end_lap();
        }
        Ok(())
    }

    fn look(&mut self, workers: &Workers, scratch: &mut Scratch) -> Result<(), GuestError> {
        self.forget_stale();
        self.settle_losses(&mut scratch.lost)?;
        self.look_at_blocks(workers, &mut scratch.samples)?;
        self.scan(workers, &mut scratch.harvest)?;
        // Blocks are judged after the scan, which says what was written lately and may be merged again. One that
        // was given up says too little.
        if self.guest.is_well() && !workers.are_stopping() {
            self.make_whole(workers, &mut scratch.samples, &mut scratch.lost)?;
        }
        self.count_blocks();
        self.mend()
    }

    /// Joins mappings that breaks left apart, if they are many and mappings get short.
    fn mend(&mut self) -> Result<(), GuestError> {
        if !self.state.mending.is_due(&self.state.usage) {
            return Ok(());
        }
        let mut saved = 0;
        let written = self.guest.connection.written();
        for piece in self.state.managed.iter().flat_map(|region| region.pieces(MEND_PAGES)) {
            if written.is_hushed() {
                break;
            }
            // Pages are moved aside meanwhile, which nobody is to take for absent ones.
            let _silence = written.silence();
            saved += u64::from(self.lane.mend(piece)?);
        }
        self.state.mending.note_mended(saved);
        Ok(())
    }
}
