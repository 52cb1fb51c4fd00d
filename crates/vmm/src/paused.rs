//! A pause of a guest, which ends whatever happens.

use std::time::{Duration, Instant, SystemTime};

use crate::{DeviceState, GuestAfter, Overlay, Pause, Purpose, Vmm, VmmError};

/// Durations of a pause and of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseTimes {
    /// Time by the VMM's clock at which the guest stood. `None` if it was paused before.
    pub stopped_at: Option<SystemTime>,
    /// Time from STOP to RESUME by the VMM's own clock. `None` if the guest was paused before, was left
    /// paused, or the host's clock was set back meanwhile.
    pub outage: Option<Duration>,
    /// Time to pause, the look for obstacles before it included.
    pub stop: Duration,
    /// Time to put overlays over disks. Making them is not part of the pause.
    pub disks: Duration,
    /// Time to save device state.
    pub save: Duration,
    /// Time to resume.
    pub resume: Duration,
    /// Time of the whole pause, what the caller did with memory included.
    pub total: Duration,
}

/// A paused guest. Dropping it resumes the guest.
///
/// After any error of [`Self::save`] the guest runs on, or is paused as it was before: the error says so
/// ([`VmmError::Interrupted`]).
#[must_use = "dropping it resumes the guest"]
pub struct Paused<'vmm> {
    vmm: &'vmm mut dyn Vmm,
    /// Time of STOP by the VMM's clock; `None` if somebody else had paused the guest.
    stopped_at: Option<SystemTime>,
    begun: Instant,
    times: PauseTimes,
    overlays: &'vmm [Overlay],
    /// True if the overlays are in use, or may be.
    has_overlays: bool,
    is_over: bool,
}

impl<'vmm> Paused<'vmm> {
    /// Pauses a guest, whose disks are to get `overlays`. One that is paused already stays so to the end.
    ///
    /// # Errors
    /// As [`Vmm::prepare_overlays`] and [`Vmm::pause`].
    pub fn begin(vmm: &'vmm mut dyn Vmm, overlays: &'vmm [Overlay]) -> Result<Self, VmmError> {
        vmm.prepare_overlays(overlays)?;
        let begun = Instant::now();
        let stopped_at = match vmm.pause() {
            Ok(Pause::Stopped { at }) => Some(at),
            Ok(Pause::WasPaused) => None,
            Err(error) => {
                vmm.discard_overlays(overlays);
                return Err(error);
            }
        };
        let times = PauseTimes { stopped_at, stop: begun.elapsed(), ..PauseTimes::default() };
        Ok(Self { vmm, stopped_at, begun, times, overlays, has_overlays: false, is_over: false })
    }

    /// Returns true if this pause stopped the guest; false if it stood before.
    #[must_use]
    pub const fn has_stopped(&self) -> bool {
        self.stopped_at.is_some()
    }

    /// Puts the overlays over the disks, then saves device state. At most once a pause: what is saved last is
    /// what belongs to the memory that is read afterwards.
    ///
    /// # Errors
    /// [`VmmError::Interrupted`]: the pause is over.
    ///
    /// # Panics
    /// If the pause is over because this failed before.
    pub fn save(&mut self, purpose: Purpose) -> Result<DeviceState, VmmError> {
        assert!(!self.is_over, "a pause that failed is over");
        match self.snapshot_and_save(purpose) {
            Ok(state) => Ok(state),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn snapshot_and_save(&mut self, purpose: Purpose) -> Result<DeviceState, VmmError> {
        if !self.overlays.is_empty() && !self.has_overlays {
            let start = Instant::now();
            let taken = self.vmm.snapshot_disks(self.overlays);
            self.has_overlays = matches!(taken, Ok(()) | Err(VmmError::OverlaysInDoubt(_)));
            taken?;
            self.times.disks = start.elapsed();
        }
        let start = Instant::now();
        let state = self.vmm.save_device_state(purpose)?;
        self.times.save = start.elapsed();
        Ok(state)
    }

    /// Resumes the guest.
    ///
    /// # Errors
    /// [`VmmError::Interrupted`] by [`VmmError::Disturbed`] if somebody else did that before, or if the guest
    /// could not be looked at or resumed.
    ///
    /// # Panics
    /// If the pause is over because [`Self::save`] failed.
    pub fn resume(mut self) -> Result<PauseTimes, VmmError> {
        self.check()?;
        self.is_over = true;
        let start = Instant::now();
        if let Some(stopped_at) = self.stopped_at {
            match self.vmm.resume() {
                Ok(at) => self.times.outage = at.duration_since(stopped_at).ok(),
                Err(VmmError::Disturbed) => {
                    return Err(self.interrupted(VmmError::Disturbed, GuestAfter::Theirs));
                }
                Err(error) => return Err(self.interrupted(error, GuestAfter::Stuck(None))),
            }
        }
        self.times.resume = start.elapsed();
        self.times.total = self.begun.elapsed();
        self.discard_unused();
        Ok(self.times)
    }

    /// Resumes the guest because of an error of the caller's own, and returns that with how the guest is.
    #[must_use]
    pub fn abandon(mut self, error: VmmError) -> VmmError {
        self.fail(error)
    }

    /// Leaves the guest paused: it goes on elsewhere. [`Vmm::resume`] is the way back, and only as long as it
    /// does not run there.
    ///
    /// # Errors
    /// [`VmmError::Interrupted`] by [`VmmError::Disturbed`] if somebody else has resumed it, or if it could not
    /// be looked at, and was resumed.
    ///
    /// # Panics
    /// If the pause is over because [`Self::save`] failed.
    pub fn leave_paused(mut self) -> Result<PauseTimes, VmmError> {
        self.check()?;
        self.is_over = true;
        self.times.total = self.begun.elapsed();
        self.discard_unused();
        Ok(self.times)
    }

    /// Makes sure that the pause has lasted until now.
    fn check(&mut self) -> Result<(), VmmError> {
        assert!(!self.is_over, "a pause that failed is over");
        match self.vmm.check_paused() {
            Ok(()) => Ok(()),
            Err(VmmError::Disturbed) => {
                self.is_over = true;
                Err(self.interrupted(VmmError::Disturbed, GuestAfter::Theirs))
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Ends the pause, and returns `error` with how the guest is.
    fn fail(&mut self, error: VmmError) -> VmmError {
        self.is_over = true;
        let guest = match self.stopped_at {
            None => GuestAfter::StaysPaused,
            Some(_) => GuestAfter::of_resuming(self.vmm.resume()),
        };
        self.interrupted(error, guest)
    }

    fn interrupted(&mut self, error: VmmError, guest: GuestAfter) -> VmmError {
        self.discard_unused();
        let used = if self.has_overlays { self.overlays } else { &[] };
        let overlays = used.iter().map(|overlay| overlay.path.clone()).collect();
        VmmError::Interrupted { error: Box::new(error), guest, overlays }
    }

    /// Removes overlays that no disk got.
    fn discard_unused(&mut self) {
        if !self.has_overlays && !self.overlays.is_empty() {
            self.vmm.discard_overlays(self.overlays);
        }
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.stopped_at.is_some()
            && let GuestAfter::Stuck(Some(error)) = GuestAfter::of_resuming(self.vmm.resume())
        {
            tracing::error!("a guest could not be resumed and may stand still: {error}");
        }
        self.discard_unused();
    }
}

impl std::fmt::Debug for Paused<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Paused");
        shown.field("stopped_at", &self.stopped_at).field("is_over", &self.is_over);
        shown.finish_non_exhaustive()
    }
}
