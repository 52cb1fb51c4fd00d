//! Intensity of the reaper's work: pure arithmetic, after mpool's `reaper.c`.
//!
//! Memory is measured as the part of it that is free, in hundredths of a percent: free ÷ (free + what
//! the maps hold). Above the high mark nothing happens. Below the low mark, and from there until it is
//! above the high mark again, objects go that nobody accessed for longer than their time to live, which
//! shrinks with the square of the pressure.

use std::time::Duration;

use crate::map::Temperature;

/// All of memory, in hundredths of a percent.
pub const WHOLE: u32 = 10_000;

/// The constants of the law; by default mpool's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Law {
    /// Time that a cold object stays unaccessed before pressure shortens it.
    pub time_to_live: Duration,
    /// By how much longer a warm one stays.
    pub warm_factor: u32,
    /// By how much longer a hot one stays.
    pub hot_factor: u32,
    /// The pressure up to which the time to live is whole: beyond, it is divided by the square of the
    /// pressure in units of this.
    pub shortens_from: u32,
    /// The high mark over the low one, in percent.
    pub high_mark_percent: u32,
    /// The high mark at most.
    pub high_mark_max: u32,
    /// The pressure from which faults wait.
    pub delays_from: u32,
    /// A fault waits for this, divided by what the pressure leaves of [`WHOLE`], in microseconds …
    pub delay_scale_us: u32,
    /// … less this.
    pub delay_offset_us: u32,
    /// And no longer than this; twice that with what is added at random.
    pub delay_max: Duration,
    /// Pages that are read ahead at once while memory is short.
    pub readahead_pages: u64,
    /// The pressure beyond which that holds for warm maps; hot and pinned ones are never cut.
    pub readahead_warm_from: u32,
    /// The pressure from which it holds for cold maps.
    pub readahead_cold_from: u32,
}

impl Default for Law {
    fn default() -> Self {
        Self {
            time_to_live: Duration::from_secs(10),
            warm_factor: 10,
            hot_factor: 100,
            shortens_from: 500,
            high_mark_percent: 103,
            high_mark_max: 9_700,
            delays_from: 3_333,
            delay_scale_us: 500_000,
            delay_offset_us: 49,
            delay_max: Duration::from_millis(3),
            readahead_pages: 8,
            readahead_warm_from: 3_000,
            readahead_cold_from: 1_500,
        }
    }
}

/// Between what the reaper keeps the free part of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Below it, it begins.
    pub low: u32,
    /// Above it, it ends.
    pub high: u32,
}

/// Distance of memory below the high mark: 0 at the mark, [`WHOLE`] where none is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pressure(pub u32);

/// The part of memory that maps may use by default, in percent: the more there is, the more.
#[must_use]
pub const fn memory_percent_of(available_bytes: u64) -> u32 {
    match available_bytes >> 30 {
        0..=32 => 40,
        33..=64 => 60,
        65..=128 => 75,
        129..=256 => 87,
        _ => 90,
    }
}

impl Law {
    /// The marks where maps may use so many percent of memory: 5 to 100, and what is beyond counts as
    /// the nearest of these.
    #[must_use]
    pub fn marks(&self, memory_percent: u32) -> Marks {
        let low = (100 - memory_percent.clamp(5, 100)) * (WHOLE / 100);
        let high = (low * self.high_mark_percent / 100).min(self.high_mark_max);
        Marks { low, high: high.max(low) }
    }

    /// The pressure where so much is free; none where there is nothing to do. `active`: whether there
    /// was some before.
    #[must_use]
    pub fn pressure(&self, free: u32, marks: Marks, active: bool) -> Option<Pressure> {
        let begins = free < marks.low || (active && free < marks.high);
        let left = (WHOLE * free).checked_div(marks.high).unwrap_or(WHOLE);
        begins.then(|| Pressure(WHOLE - left))
    }

    /// Returns the time that an object stays unaccessed; none stays for ever.
    #[must_use]
    pub fn time_to_live(&self, temperature: Temperature, pressure: Pressure) -> Option<Duration> {
        let factor = match temperature {
            Temperature::Pinned => return None,
            Temperature::Hot => self.hot_factor,
            Temperature::Warm => self.warm_factor,
            Temperature::Cold => 1,
        };
        Some(self.shortened(pressure) * factor)
    }

    /// The time to live of a cold object.
    #[must_use]
    pub fn shortened(&self, Pressure(pressure): Pressure) -> Duration {
        if pressure <= self.shortens_from {
            return self.time_to_live;
        }
        let (part, whole) = (u128::from(self.shortens_from).pow(2), u128::from(pressure).pow(2));
        let shortened = self.time_to_live.as_nanos() * part / whole;
        Duration::from_nanos(u64::try_from(shortened).unwrap_or(u64::MAX))
    }

    /// Returns the least time that a fault waits before it is served.
    #[must_use]
    pub fn fault_delay(&self, Pressure(pressure): Pressure) -> Duration {
        if pressure < self.delays_from {
            return Duration::ZERO;
        }
        let delay_us = self.delay_scale_us / (WHOLE + 1 - pressure.min(WHOLE));
        let delay_us = delay_us.saturating_sub(self.delay_offset_us);
        Duration::from_micros(delay_us.into()).min(self.delay_max)
    }

    /// Returns the number of pages that are read ahead at once.
    #[must_use]
    pub fn readahead_pages(&self, temperature: Temperature, Pressure(pressure): Pressure) -> u64 {
        let cut = match temperature {
            Temperature::Pinned | Temperature::Hot => false,
            Temperature::Warm => pressure > self.readahead_warm_from,
            Temperature::Cold => pressure >= self.readahead_cold_from,
        };
        if cut { self.readahead_pages } else { u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAW: fn() -> Law = Law::default;

    #[test]
    fn marks_are_mpools() {
        assert_eq!(LAW().marks(40), Marks { low: 6000, high: 6180 });
        assert_eq!(LAW().marks(90), Marks { low: 1000, high: 1030 });
        assert_eq!(LAW().marks(5), Marks { low: 9500, high: 9700 });
        assert_eq!(LAW().marks(100), Marks { low: 0, high: 0 });
        let gib = |count: u64| memory_percent_of(count << 30);
        assert_eq!([1, 32, 33, 64, 128, 256, 257].map(gib), [40, 40, 60, 60, 75, 87, 90]);
    }

    #[test]
    fn it_begins_below_the_low_mark_and_ends_at_the_high_one() {
        let (law, marks) = (LAW(), Marks { low: 2000, high: 2060 });
        assert_eq!(law.pressure(2030, marks, false), None);
        assert_eq!(law.pressure(1999, marks, false), Some(Pressure(297)));
        assert_eq!(law.pressure(2030, marks, true), Some(Pressure(146)));
        assert_eq!(law.pressure(2060, marks, true), None);
        assert_eq!(law.pressure(0, marks, false), Some(Pressure(WHOLE)));
        assert_eq!(law.pressure(0, law.marks(100), true), None);
    }

    #[test]
    fn the_time_to_live_shrinks_with_the_square_of_the_pressure() {
        let of = |temperature, pressure| LAW().time_to_live(temperature, Pressure(pressure));
        let seconds = |seconds: f64| Some(Duration::from_secs_f64(seconds));
        assert_eq!(of(Temperature::Cold, 0), seconds(10.0));
        assert_eq!(of(Temperature::Cold, 500), seconds(10.0));
        assert_eq!(of(Temperature::Cold, 1000), seconds(2.5));
        assert_eq!(of(Temperature::Warm, 1000), seconds(25.0));
        assert_eq!(of(Temperature::Hot, 10_000), seconds(2.5));
        assert_eq!(of(Temperature::Pinned, 10_000), None);
    }

    #[test]
    fn faults_wait_as_long_as_mpools() {
        let us = |pressure| LAW().fault_delay(Pressure(pressure)).as_micros();
        assert_eq!([0, 3332, 3333, 6667, 9900, 10_000].map(us), [0, 0, 25, 100, 3000, 3000]);
    }

    #[test]
    fn reading_ahead_is_cut_where_it_is_cold_first() {
        use Temperature::{Cold, Hot, Pinned, Warm};
        let all = u64::MAX;
        let of = |pressure| {
            [Cold, Warm, Hot, Pinned]
                .map(|warmth| LAW().readahead_pages(warmth, Pressure(pressure)))
        };
        assert_eq!(of(1499), [all; 4]);
        assert_eq!(of(1500), [8, all, all, all]);
        assert_eq!(of(3000), [8, all, all, all]);
        assert_eq!(of(3001), [8, 8, all, all]);
    }

    proptest! {
        #[test]
        fn less_memory_never_means_less_work(
            percent in 0u32..=120,
            free in 0u32..WHOLE,
            active in any::<bool>(),
        ) {
            let law = LAW();
            let marks = law.marks(percent);
            prop_assert!(marks.low <= marks.high);
            let (less, more) = (law.pressure(free, marks, active), law.pressure(free + 1, marks, active));
            prop_assert!(less >= more);
            if let (Some(less), Some(more)) = (less, more) {
                prop_assert!(less.0 <= WHOLE);
                prop_assert!(law.shortened(less) <= law.shortened(more));
                prop_assert!(law.fault_delay(less) >= law.fault_delay(more));
            }
        }
    }
}
