//! A machine whose power fails, and its devices, which then keep, drop, reorder, tear and repeat what was
//! not synced; and which fail, fill up, rot and vanish when told to.
//!
//! All of it happens in memory, and from seeds, so that whatever a test found happens again.
#![allow(dead_code, unused_imports, reason = "not every test program needs all of it")]

mod device;
mod places;
mod wreck;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) use device::{Fault, Simulated};
pub(crate) use places::{place, places};

use rand::SeedableRng;
use rand::rngs::StdRng;

/// A machine with its devices. Clones are the same machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    power: Arc<Power>,
    devices: Vec<Arc<Simulated>>,
}

/// What all devices of a machine have in common.
#[derive(Debug)]
struct Power {
    /// Writes, syncs and whatever else changes a device, on all devices together.
    operations: AtomicU64,
    /// In the middle of which of them the power fails.
    fails_at: AtomicU64,
    off: AtomicBool,
}

impl Default for Power {
    fn default() -> Self {
        Self {
            operations: AtomicU64::new(0),
            fails_at: AtomicU64::new(u64::MAX),
            off: AtomicBool::new(false),
        }
    }
}

/// What becomes of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Supply {
    On,
    /// It is being done when the power fails.
    Fails,
    Off,
}

impl Power {
    fn count(&self) -> Supply {
        if self.off.load(Ordering::SeqCst) {
            return Supply::Off;
        }
        let number = self.operations.fetch_add(1, Ordering::SeqCst);
        if number < self.fails_at.load(Ordering::SeqCst) {
            return Supply::On;
        }
        self.off.store(true, Ordering::SeqCst);
        Supply::Fails
    }
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A device more, of zeros.
    pub(crate) fn device(&mut self, bytes: u64) -> Arc<Simulated> {
        let device = Arc::new(Simulated::new(Arc::clone(&self.power), bytes));
        self.devices.push(Arc::clone(&device));
        device
    }

    /// Its devices, in the order in which they were added.
    pub(crate) fn devices(&self) -> &[Arc<Simulated>] {
        &self.devices
    }

    /// How many operations there were that change a device, on all devices together.
    pub(crate) fn operations(&self) -> u64 {
        self.power.operations.load(Ordering::SeqCst)
    }

    /// Has the power fail in the middle of the operation before which there are `more` from now on.
    pub(crate) fn fail_power_after(&self, more: u64) {
        self.power.fails_at.store(self.operations() + more, Ordering::SeqCst);
    }

    /// Has the power not fail after all.
    pub(crate) fn keep_power(&self) {
        self.power.fails_at.store(u64::MAX, Ordering::SeqCst);
    }

    /// Whether the power has failed.
    pub(crate) fn is_off(&self) -> bool {
        self.power.off.load(Ordering::SeqCst)
    }

    /// The power fails if it has not, and comes back; what was not synced is as `seed` has it.
    pub(crate) fn restart(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        self.keep_power();
        for device in &self.devices {
            device.wreck(&mut random);
        }
        self.power.off.store(false, Ordering::SeqCst);
    }
}
