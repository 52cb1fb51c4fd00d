//! The reaper: takes objects that nobody accesses out of memory before the kernel must.
//!
//! It follows mpool's law ([`Law`]), and differs from mpool's reaper where that was blind: accesses are
//! found by probes and not by faults alone, memory is what is *available* and not what is free, an explicit
//! budget and the limits of cgroups count, and what was evicted is counted afterwards and not believed.
//!
//! It evicts whole objects, as mpool did, or the pages that are accessed least ([`Grain`]). The kernel can do
//! the latter only where it looks at accesses, and it does not look at those of a mapping that is advised
//! `MADV_RANDOM` (`vma_has_recency`, Linux 6.3): there the page that came first goes first.
//!
//! It is a choice: without a [`Reaper`], the kernel reclaims the file back end's pages as it does any
//! file's, and the memfd back end's stay until their map goes.

mod cell;
mod cut;
mod gain;
mod hand;
mod law;
mod objects;
mod owners;
mod paged_object;
mod pages;
mod reaper_settings;
mod replay;
mod room;
mod suspects;
mod sweep;
mod work;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use self::law::{Law, Marks, Pressure, WHOLE, memory_percent_of};
pub use self::reaper_settings::{Grain, ReaperSettings};
pub use self::replay::Replay;
pub use self::room::{Limit, Memory};
pub use self::sweep::{Sweep, Ticked};
pub use self::work::ReaperStatistics;
use bindery_sys::process::Origin;

use crate::map::Maps;

/// Sleep between two evictions; mpool's workers sleep 300 to 700 µs.
const PAUSE: Duration = Duration::from_micros(500);

/// While memory is short and nothing can go, it works at most this part of the time.
const IDLE_PARTS: u32 = 19;

/// A thread that evicts. Dropping it ends the thread and lifts what it imposed. A child of fork(2) has no such
/// thread, and to drop this there does nothing.
#[derive(Debug)]
pub struct Reaper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    origin: Origin,
    statistics: Mutex<ReaperStatistics>,
    /// Locked while it looks and evicts.
    enabled: Mutex<bool>,
    ended: AtomicBool,
}

impl Reaper {
    /// Starts to look after all of `maps`, those that come later too. Of reapers that evict pages there may be one
    /// for the same maps: two would count the same pages.
    ///
    /// # Errors
    /// If `/proc/self/pagemap` cannot be opened, or no thread can be had.
    pub fn start(maps: &Maps, settings: ReaperSettings) -> io::Result<Self> {
        let sweep = Sweep::new(maps, settings)?;
        let shared = Arc::new(Shared {
            origin: Origin::here(),
            statistics: Mutex::default(),
            enabled: Mutex::new(true),
            ended: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let name = thread::Builder::new().name("bindery-reaper".into());
        let thread = Some(name.spawn(move || theirs.run(sweep))?);
        Ok(Self { shared, thread })
    }

    /// Returns the reaper's counts, and what it saw last.
    #[must_use]
    pub fn statistics(&self) -> ReaperStatistics {
        self.shared.lock().clone()
    }

    /// Switches it off or on again. Off, it evicts nothing from now on, and soon slows nobody. Blocks
    /// while it evicts.
    pub fn set_enabled(&self, enabled: bool) {
        *self.shared.enabled() = enabled;
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Shared {
    fn run(&self, mut sweep: Sweep) {
        let began = Instant::now();
        let interval = sweep.settings().interval;
        while !self.ended.load(Ordering::Relaxed) {
            let enabled = self.enabled();
            if !*enabled {
                drop(enabled);
                sweep.relent();
                thread::park_timeout(interval);
                continue;
            }
            let start = began.elapsed();
            let ticked = sweep.tick(start, &Memory::read());
            drop(enabled);
            self.lock().clone_from(sweep.statistics());
            thread::park_timeout(pause(ticked, began.elapsed() - start, interval));
        }
        sweep.relent();
    }

    fn enabled(&self) -> MutexGuard<'_, bool> {
        // A flag is whole at any time.
        self.enabled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, ReaperStatistics> {
        // Replaced as a whole.
        self.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the wait after a look that took so long.
fn pause(ticked: Ticked, took: Duration, interval: Duration) -> Duration {
    match ticked {
        Ticked { again_in: Some(again_in), .. } => again_in,
        Ticked { pressed: false, .. } => interval,
        Ticked { pages_evicted: 0, .. } => (took * IDLE_PARTS).clamp(PAUSE, interval.max(PAUSE)),
        Ticked { .. } => PAUSE,
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        if !self.shared.origin.is_here() {
            // The thread is the parent's.
            return std::mem::forget(self.thread.take());
        }
        self.shared.ended.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported, and must not become one here.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_hurries_only_while_that_helps() {
        let (took, interval) = (Duration::from_millis(5), Duration::from_millis(333));
        let calm = Ticked::default();
        let stuck = Ticked { pressed: true, ..calm };
        let busy = Ticked { pages_evicted: 9, ..stuck };
        let alert = Ticked { again_in: Some(took), ..calm };
        assert_eq!(pause(alert, took, interval), took);
        assert_eq!(pause(calm, took, interval), interval);
        assert_eq!(pause(stuck, took, interval), took * 19);
        assert_eq!(pause(stuck, Duration::ZERO, interval), PAUSE);
        assert_eq!(pause(stuck, interval, interval), interval);
        assert_eq!(pause(busy, took, interval), PAUSE);
    }
}
