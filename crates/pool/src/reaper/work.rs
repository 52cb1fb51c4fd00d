//! Tools of those who look at maps and evict, and counts of what they did.

use std::io;
use std::time::Duration;

use bindery_sys::pagemap::Pagemap;

use super::law::Pressure;
use super::room::Limit;
use crate::map::EvictError;
use crate::pace::Pace;

/// Counts of the reaper, and what it sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReaperStatistics {
    /// Pages that the maps hold, as last seen.
    pub resident_pages: u64,
    /// The part of memory that is free, in hundredths of a percent, by the limit that binds first.
    pub free: Option<u32>,
    /// Limit that binds first.
    pub limit: Option<Limit>,
    /// Shortage of memory now; none while there is none.
    pub pressure: Option<Pressure>,
    /// Time that a cold object stays unaccessed now.
    pub time_to_live: Duration,
    /// Least time that each fault of the memfd back end waits now.
    pub fault_delay: Duration,
    /// Number of looks at objects.
    pub visits: u64,
    /// Objects that had been idle for too long, and were touched at the last moment.
    pub objects_spared: u64,
    /// Objects evicted.
    pub objects_evicted: u64,
    /// Pages that went.
    pub pages_evicted: u64,
    /// Pages that were evicted and did not go when they should have: others map them, they share a huge
    /// page, or the kernel is about to migrate them.
    pub pages_stuck: u64,
    /// Objects of which the kernel would not say or do what was asked.
    pub errors: u64,
    /// CPU time that it has taken.
    pub busy: Duration,
    /// Accesses to pages that were not in memory, where maps report accesses and pages are evicted.
    pub misses: u64,
    /// Misses that there would have been besides without the reaper, by a sample; less than none if the kernel would have
    /// chosen better.
    pub misses_saved: i64,
    /// True while it leaves eviction to the kernel, because it saved less time than it took.
    pub steps_back: bool,
}

/// Page tables, pace and counts.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) pagemap: Pagemap,
    pub(super) pace: Pace,
    pub(super) statistics: ReaperStatistics,
}

impl Work {
    pub(super) fn new() -> io::Result<Self> {
        let (pagemap, pace) = (Pagemap::of_self()?, Pace::begin());
        Ok(Self { pagemap, pace, statistics: ReaperStatistics::default() })
    }

    /// Counts what the kernel would not do.
    pub(super) fn note(&mut self, result: Result<(), EvictError>) {
        if let Err(error) = result {
            self.statistics.errors += 1;
            tracing::debug!(%error, "an object could not be looked after");
        }
    }
}
