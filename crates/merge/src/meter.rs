//! What merging costs: the CPU time of the engine's threads, and of guests' threads that work for it.

use std::sync::atomic::{AtomicU64, Ordering};

/// CPU time so far, in nanoseconds.
///
/// Relaxed everywhere: sums that order nothing.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    threads_ns: AtomicU64,
    lanes_ns: AtomicU64,
}

impl Meter {
    /// Takes in CPU time of one of the engine's threads.
    pub(crate) fn add_thread(&self, ns: u64) {
        self.threads_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Takes in CPU time of a guest's thread.
    pub(crate) fn add_lane(&self, ns: u64) {
        self.lanes_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn threads_us(&self) -> u64 {
        self.threads_ns.load(Ordering::Relaxed) / 1000
    }

    pub(crate) fn lanes_us(&self) -> u64 {
        self.lanes_ns.load(Ordering::Relaxed) / 1000
    }

    /// All of it.
    pub(crate) fn total_us(&self) -> u64 {
        self.threads_us() + self.lanes_us()
    }
}
