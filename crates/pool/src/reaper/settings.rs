//! What can be set about the reaper.

use std::time::Duration;

use super::law::Law;

/// What can be set about the reaper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The most that maps may hold, in bytes; without one, only the machine's and the cgroup's limits
    /// count. The memfd back end's memory cannot be reclaimed by the kernel: give it one.
    pub budget_bytes: Option<u64>,
    /// The part of the budget that is used, in percent.
    pub budget_percent: u32,
    /// The part of the machine's or the cgroup's memory that maps may use, in percent; by default
    /// mpool's, which grows with the machine ([`memory_percent_of`](super::memory_percent_of)).
    pub memory_percent: Option<u32>,
    /// The part of the last ten seconds in which some task waited for memory that counts as being short
    /// of it, in hundredths of a percent (`/proc/pressure/memory`).
    pub stall_mark: u32,
    /// How often it looks while there is room.
    pub interval: Duration,
    /// How many objects it looks at each time: whether they are in memory, and whether they were touched.
    /// It takes 3 to 9 µs an object, and whoever uses it some 2 µs for the fault that tells.
    pub visits: usize,
    /// The most objects that are evicted before it looks again.
    pub evictions: usize,
    /// The constants of the law.
    pub law: Law,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            budget_percent: 95,
            memory_percent: None,
            stall_mark: 1_000,
            interval: Duration::from_millis(333),
            visits: 1_024,
            evictions: 512,
            law: Law::default(),
        }
    }
}
