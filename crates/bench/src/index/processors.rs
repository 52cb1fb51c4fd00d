//! Which processors threads run on, and how far apart those are.
//!
//! What two threads write in turn goes from one processor's cache to the other's. How long that
//! takes says more about how they scale than anything else: between cores that have a cache in
//! common it is some 75 ns there and back, between others 350. A virtual machine's host may move it
//! from the one to the other at any time, whatever topology it shows; so it is measured in each run
//! and printed beside the rates.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Round trips that are timed: under a millisecond.
const ROUND_TRIPS: u64 = 2000;

/// Processors that this thread may use.
fn allowed() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Has the calling thread stay on one of the processors that it may use: the next one for each
/// `thread`. Where that is not allowed, it runs where the kernel puts it.
pub(super) fn stay(thread: u64) {
    let allowed = allowed();
    let Some(own) = allowed.get(thread as usize % allowed.len().max(1)) else { return };
    let mut processors = CpuSet::new();
    processors.set(*own);
    let _ = sched_setaffinity(None, &processors);
}

/// Nanoseconds that a line takes from the first thread's processor to the second's and back. `None`
/// if there is one processor only.
pub(super) fn line_round_trip_ns() -> Option<f64> {
    if allowed().len() < 2 {
        return None;
    }
    let line = CachePadded::new(AtomicU64::new(0));
    // Each makes the count one that is the other's to raise.
    let pass = |thread: u64| {
        stay(thread);
        // The first one is lost in starting.
        let mut start = Instant::now();
        for turn in 0..=ROUND_TRIPS {
            while line.load(Ordering::Acquire) != 2 * turn + thread {
                std::hint::spin_loop();
            }
            if turn == 1 {
                start = Instant::now();
            }
            line.store(2 * turn + thread + 1, Ordering::Release);
        }
        start.elapsed()
    };
    let elapsed = std::thread::scope(|scope| {
        let first = scope.spawn(|| pass(0));
        scope.spawn(|| pass(1));
        first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    Some(elapsed.as_secs_f64() * 1e9 / (ROUND_TRIPS - 1) as f64)
}
