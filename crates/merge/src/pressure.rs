//! When a domain's merging pauses: nowhere to put pages, or pages that will not stay merged.
//!
//! Pure: what happened in a period goes in, whether to merge in the next one comes out. While
//! merging pauses, guests go on, losses and writes are still taken in, and stable pages wait.

use serde::{Deserialize, Serialize};

/// A period has a storm of breaks when more than one in this many merged pages broke...
pub const STORM_SHARE: u64 = 16;

/// ...and at least so many.
pub const STORM_BREAKS_MIN: u64 = 1024;

/// A storm pauses merging for one period, the next one for two, then four, at most so many.
pub const STORM_PAUSE_MAX: u32 = 16;

/// Periods until merging is tried again after the store, the index or the memory was full.
pub const FULL_PAUSE: u32 = 4;

/// Why pages could not be put into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shortage {
    /// All slots of the store are in use.
    Store,
    /// The index has no room for more contents.
    Index,
    /// No memory for canonical pages: the machine's or the daemon's cgroup's.
    Memory,
    /// No descriptor for another segment of the store.
    Descriptors,
}

/// What a domain does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DomainState {
    /// Merging goes on.
    #[default]
    Merging,
    /// Too many merged pages were written to: merging slows down.
    Storm,
    /// Every slot of the store is in use: merging pauses until some are free.
    StoreFull,
    /// The index is full: merging pauses.
    IndexFull,
    /// There is no memory for the store: merging pauses.
    MemoryShort,
    /// The daemon has no descriptor for another segment of the store: merging pauses.
    DescriptorsShort,
}

/// The pauses of one domain.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    state: DomainState,
    /// Periods left to pause.
    pause: u32,
    /// How long the last storm's pause was.
    storm_pause: u32,
}

impl Pressure {
    pub(crate) fn state(&self) -> DomainState {
        self.state
    }

    /// Whether to merge now.
    pub(crate) fn merges(&self) -> bool {
        self.pause == 0
    }

    /// Takes in how a period went: how many pages broke, of how many that were merged, and what
    /// was short.
    pub(crate) fn end_period(&mut self, breaks: u64, merged: u64, shortage: Option<Shortage>) {
        let storm = breaks >= STORM_BREAKS_MIN && breaks > merged / STORM_SHARE;
        if let Some(shortage) = shortage {
            self.pause = FULL_PAUSE;
            self.state = match shortage {
                Shortage::Store => DomainState::StoreFull,
                Shortage::Index => DomainState::IndexFull,
                Shortage::Memory => DomainState::MemoryShort,
                Shortage::Descriptors => DomainState::DescriptorsShort,
            };
        } else if self.pause > 0 {
            // What breaks during a pause was merged before it: it says nothing new.
            self.pause -= 1;
        } else if storm {
            self.storm_pause = (self.storm_pause * 2).clamp(1, STORM_PAUSE_MAX);
            self.pause = self.storm_pause;
            self.state = DomainState::Storm;
        } else {
            self.storm_pause /= 2;
            self.state = DomainState::Merging;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Periods paused after one in which `breaks` pages broke.
    fn pause_after(pressure: &mut Pressure, breaks: u64) -> u32 {
        pressure.end_period(breaks, 100_000, None);
        let mut periods = 0;
        while !pressure.merges() {
            pressure.end_period(breaks, 100_000, None);
            periods += 1;
        }
        periods
    }

    #[test]
    fn storms_pause_longer_and_longer_and_are_forgotten_slowly() {
        let mut pressure = Pressure::default();
        let pauses: Vec<u32> = (0..7).map(|_| pause_after(&mut pressure, 50_000)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(pressure.state(), DomainState::Storm);
        assert_eq!(pause_after(&mut pressure, 10), 0);
        assert_eq!(pressure.state(), DomainState::Merging);
        assert_eq!(pause_after(&mut pressure, 50_000), 16);
        (0..5).for_each(|_| assert_eq!(pause_after(&mut pressure, 10), 0));
        assert_eq!(pause_after(&mut pressure, 50_000), 1);
    }

    #[test]
    fn ordinary_breaks_are_no_storm() {
        let mut pressure = Pressure::default();
        assert_eq!(pause_after(&mut pressure, 100_000 / STORM_SHARE), 0);
        pressure.end_period(STORM_BREAKS_MIN - 1, 10, None);
        assert!(pressure.merges());
    }

    #[test]
    fn a_shortage_pauses_and_is_tried_again() {
        let mut pressure = Pressure::default();
        pressure.end_period(0, 100, Some(Shortage::Store));
        assert_eq!(pressure.state(), DomainState::StoreFull);
        let mut periods = 0;
        while !pressure.merges() {
            pressure.end_period(0, 100, None);
            periods += 1;
        }
        assert_eq!(periods, FULL_PAUSE);
        assert_eq!(pressure.state(), DomainState::StoreFull);
        pressure.end_period(0, 100, None);
        assert_eq!(pressure.state(), DomainState::Merging);
    }
}
