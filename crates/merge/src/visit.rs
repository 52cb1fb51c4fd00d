//! A worker with one guest: a lane to ask over, and the state that answers change.

use crate::domain::Domain;
use crate::guest::{Guest, State};
use crate::patience::TimedLane;

/// Visit of one worker to one guest.
pub(crate) struct Visit<'a> {
    pub(crate) domain: &'a Domain,
    pub(crate) guest: &'a Guest,
    pub(crate) lane: TimedLane<'a>,
    pub(crate) state: &'a mut State,
}

impl<'a> Visit<'a> {
    /// Begins a visit. `None` if the guest has no lane to be had: it is done with for this period.
    pub(crate) fn begin(
        domain: &'a Domain,
        guest: &'a Guest,
        state: &'a mut State,
    ) -> Option<Self> {
        let lane = guest.lane()?;
        Some(Self { domain, guest, lane, state })
    }

    /// Takes in what the answers so far said about the process, and meters what they cost.
    pub(crate) fn note_gauges(&mut self) {
        self.guest.note_gauges(&mut self.lane, &mut self.state.usage);
    }
}
