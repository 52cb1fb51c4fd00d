//! What work costs this process's threads.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::harness::timed;

/// Wall-clock time and this process's CPU time of `work`.
pub(super) fn with_cpu<T>(work: impl FnOnce() -> T) -> (Duration, Duration, T) {
    let now = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = now();
    let (elapsed, result) = timed(work);
    (elapsed, now() - before, result)
}
