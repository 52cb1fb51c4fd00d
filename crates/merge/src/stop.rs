//! Telling the engine's threads to stop, wherever they rest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Set once.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: AtomicBool,
    lock: Mutex<()>,
    bell: Condvar,
}

impl Stop {
    pub(crate) fn set(&self) {
        // Relaxed, here and below: a flag; the lock orders it before the bell.
        self.is_set.store(true, Ordering::Relaxed);
        drop(self.lock.lock().expect("no thread panics with it"));
        self.bell.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Blocks for `time`, or until it is set.
    pub(crate) fn sleep(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut guard = self.lock.lock().expect("no thread panics with it");
        while !self.is_set() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            guard = self.bell.wait_timeout(guard, left).expect("no thread panics with it").0;
        }
    }
}
