//! Time of a thread, less what it waited for a CPU that others had.
//!
//! CPU time of merging is a figure of its own, and other programs' is nobody's here. A thread that waits
//! for its memory does not wait for a CPU: that counts.

use std::{
    fs,
    time::{Duration, Instant},
};

/// A running stopwatch of the calling thread.
pub(super) struct Stopwatch {
    start: Instant,
    waited: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self { waited: waited_for_cpu(), start: Instant::now() }
    }

    /// Returns the time since the start as the clock has it.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the time since the start in which the thread had a CPU or waited for something else.
    pub(super) fn stop(self) -> Duration {
        let elapsed = self.start.elapsed();
        elapsed.saturating_sub(waited_for_cpu().saturating_sub(self.waited))
    }
}

/// Time that this thread has waited for a CPU; nothing where the kernel does not say.
fn waited_for_cpu() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(second_field(&text).unwrap_or(0))
}

/// Nanoseconds on a run queue (`Documentation/scheduler/sched-stats.rst`).
fn second_field(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_counts_and_run_queues_do_not() {
        assert_eq!(second_field("843979 828323 9\n"), Some(828_323));
        let watch = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(20));
        let clock = watch.elapsed();
        let time = watch.stop();
        assert!(clock >= Duration::from_millis(20) && time > Duration::ZERO, "{clock:?} {time:?}");
    }
}
