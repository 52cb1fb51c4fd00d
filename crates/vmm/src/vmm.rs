//! The traits of a VMM: one that saves its guest, and one that loads it.

use std::time::{Duration, SystemTime};

use crate::{DeviceState, GuestDescription, Overlay, VmmError};

/// Outcome of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The guest ran, and stands now.
    Stopped {
        /// Time by the VMM's wall clock at which its virtual CPUs stood.
        at: SystemTime,
    },
    /// Somebody else had paused it before. It is not to be resumed.
    WasPaused,
}

/// Purpose of saving device state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The guest runs on here.
    Checkpoint,
    /// The guest goes on elsewhere: disks are let go of. [`Vmm::resume`] takes them back.
    HandOver,
}

/// A VMM with a guest that can be saved.
///
/// Callers go through [`Paused`](crate::Paused), which keeps the order and resumes the guest whatever
/// happens. Calls block; none may block without a limit.
pub trait Vmm {
    /// Describes the guest, and finds what forbids saving it. Does not disturb it.
    ///
    /// # Errors
    /// [`VmmError`] if the VMM cannot be asked.
    fn describe(&mut self) -> Result<GuestDescription, VmmError>;

    /// Makes overlays while the guest runs, so that putting them over disks takes a shorter pause. A VMM that
    /// makes them in the pause has nothing to do here.
    ///
    /// # Errors
    /// [`VmmError`] if one cannot be made; none is left then.
    fn prepare_overlays(&mut self, _overlays: &[Overlay]) -> Result<(), VmmError> {
        Ok(())
    }

    /// Removes overlays that were prepared and are not in use. Failures are logged.
    fn discard_overlays(&mut self, _overlays: &[Overlay]) {}

    /// Looks for what forbids saving the guest, and stops it if there is nothing: no virtual CPU runs and
    /// no device writes memory once this returns.
    ///
    /// # Errors
    /// [`VmmError::Obstructed`] before anything is touched. After any error the guest is as it was, unless
    /// that is [`VmmError::Interrupted`], which says how it is.
    fn pause(&mut self) -> Result<Pause, VmmError>;

    /// Puts overlays over disks of the paused guest: all of them, or none. Those that were not prepared are
    /// made now.
    ///
    /// # Errors
    /// [`VmmError::OverlaysInDoubt`] if that is not known; any other [`VmmError`] if none was put over a disk.
    fn snapshot_disks(&mut self, overlays: &[Overlay]) -> Result<(), VmmError>;

    /// Saves the state of the paused guest's devices.
    ///
    /// # Errors
    /// [`VmmError`] if that failed; the guest can be resumed.
    fn save_device_state(&mut self, purpose: Purpose) -> Result<DeviceState, VmmError>;

    /// Makes sure that the guest has stood still since it was paused. A VMM that nobody else can resume has
    /// nothing to look at.
    ///
    /// # Errors
    /// [`VmmError::Disturbed`] if somebody else has let it run.
    fn check_paused(&mut self) -> Result<(), VmmError> {
        Ok(())
    }

    /// Lets the paused guest run, and returns the time by the VMM's wall clock at which it did.
    ///
    /// # Errors
    /// [`VmmError::Disturbed`] if it runs already; any other [`VmmError`] if it cannot be told to run.
    fn resume(&mut self) -> Result<SystemTime, VmmError>;
}

/// A VMM that waits for device state.
pub trait IncomingVmm {
    /// Loads device state, and returns how long that took. The guest's memory is there already, or is served
    /// on demand from its last state. The guest does not run yet.
    ///
    /// # Errors
    /// [`VmmError`]; the VMM is of no further use then, unless nothing was loaded.
    fn load_device_state(&mut self, state: &DeviceState) -> Result<Duration, VmmError>;

    /// Lets the loaded guest run, and returns the time by the VMM's wall clock at which it did.
    ///
    /// # Errors
    /// [`VmmError`] if it cannot be told to run.
    fn resume(&mut self) -> Result<SystemTime, VmmError>;
}
