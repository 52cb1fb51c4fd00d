//! Settings of the reaper.

use std::time::Duration;

use super::law::Law;

/// Unit of eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grain {
    /// Whole objects that were idle for longer than the law lets them, as mpool does: for objects that go cold as
    /// a whole, and where nothing is known of single pages.
    #[default]
    Object,
    /// The pages that are accessed least, of whatever object, until enough is free: for objects whose popular
    /// parts lie all over them, such as the tables of a key-value store, and best where maps
    /// [report accesses](crate::map::MapOptions::accesses_are_reported). Takes a byte a page, and some 3 µs of CPU a
    /// page that goes. Where maps do not report them: also 5 ns a page and [`page_interval`](ReaperSettings::page_interval),
    /// and a fault that does not read for a page that was about to go and is accessed. Pages of the memfd back end are
    /// told apart by sixteens only then.
    Page,
}

/// Settings of the reaper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaperSettings {
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
    /// Interval between looks while there is room.
    pub interval: Duration,
    /// Number of objects that are looked at each time: whether they are in memory, and whether they were touched.
    /// It takes 3 to 9 µs an object, and whoever uses it some 2 µs for the fault that tells.
    pub visits: usize,
    /// Unit of eviction.
    pub grain: Grain,
    /// Time for which a page that is about to go is watched, where pages are evicted and maps do not report
    /// accesses.
    pub page_interval: Duration,
    /// The most objects that are evicted before it looks again.
    pub evictions: usize,
    /// The constants of the law.
    pub law: Law,
}

impl Default for ReaperSettings {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            budget_percent: 95,
            memory_percent: None,
            stall_mark: 1_000,
            interval: Duration::from_millis(333),
            visits: 1_024,
            grain: Grain::default(),
            page_interval: Duration::from_millis(250),
            evictions: 512,
            law: Law::default(),
        }
    }
}
