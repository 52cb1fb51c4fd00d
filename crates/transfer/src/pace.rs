//! Decides when the last pause comes. Pure.

use std::time::Duration;

use bindery_units::PAGE_BYTES;

use crate::outcome::{Ending, Limits};

/// Speed that is reckoned with until one was measured, in bytes a second.
const SPEED: u64 = 400 << 20;

/// Pages that are read at least before their time says anything.
const MEASURED_PAGES: u64 = 1024;

/// Part of a pause that copying may take at least, whatever the rest costs.
const COPYING_MIN: u32 = 2;

/// Time of a pause without any copying, about.
const PAUSE_ALONE: Duration = Duration::from_millis(4);

/// Number of rounds after each other that leave no less than nine tenths of what was there before.
const STUCK_ROUNDS: u32 = 2;

/// Rounds that follow when pages are tracked otherwise.
const ROUNDS_ANEW: u32 = 3;

/// Measurements so far, and the limits.
#[derive(Debug)]
pub(crate) struct Pace {
    limits: Limits,
    measured: Option<u64>,
    /// Pages that were left before the last round.
    left_before: Option<u64>,
    stuck: u32,
    rounds: u32,
}

impl Pace {
    pub(crate) const fn new(limits: Limits) -> Self {
        Self { limits, measured: limits.bytes_per_second, left_before: None, stuck: 0, rounds: 0 }
    }

    /// Returns the speed that was measured, in bytes a second.
    pub(crate) const fn measured(&self) -> Option<u64> {
        self.measured
    }

    /// Takes in that so many pages were read in so much time.
    pub(crate) fn note_read(&mut self, pages: u64, took: Duration) {
        if pages >= MEASURED_PAGES && !took.is_zero() {
            self.measured = Some((bytes(pages) as f64 / took.as_secs_f64()) as u64);
        }
    }

    /// Returns the reason to take the last pause now, with so many pages left, or none for another round.
    pub(crate) fn ends(&mut self, left: u64) -> Option<Ending> {
        if self.time_of(left) <= self.copying_max() {
            return Some(Ending::Fits);
        }
        if self.rounds >= self.limits.rounds_max {
            return Some(Ending::RoundsSpent);
        }
        let is_stuck = self.left_before.is_some_and(|before| left.saturating_mul(10) >= before * 9);
        self.stuck = if is_stuck { self.stuck + 1 } else { 0 };
        if self.stuck >= STUCK_ROUNDS {
            return Some(Ending::NotConverging);
        }
        self.left_before = Some(left);
        self.rounds += 1;
        None
    }

    /// Returns about how many pages can be read in the last pause.
    pub(crate) fn fits(&self) -> u64 {
        (self.copying_max().as_secs_f64() * self.speed() as f64 / PAGE_BYTES as f64) as u64
    }

    /// Allows as many more rounds as it takes for pages that are tracked otherwise: one in which all of them
    /// are taken, and one for what changed meanwhile.
    pub(crate) const fn begin_anew(&mut self) {
        self.limits.rounds_max = self.rounds + ROUNDS_ANEW;
        self.stuck = 0;
        self.left_before = None;
    }

    /// Returns the time that reading so many pages is expected to take, if no pause may be as long.
    pub(crate) fn too_long(&self, left: u64) -> Option<Duration> {
        let limit = self.limits.pause_limit?;
        Some(self.time_of(left)).filter(|expected| *expected > limit)
    }

    fn time_of(&self, pages: u64) -> Duration {
        Duration::from_secs_f64(bytes(pages) as f64 / self.speed() as f64)
    }

    fn speed(&self) -> u64 {
        self.measured.unwrap_or(SPEED).max(1)
    }

    fn copying_max(&self) -> Duration {
        let pause = self.limits.pause_max;
        pause.saturating_sub(PAUSE_ALONE).max(pause / COPYING_MIN)
    }
}

const fn bytes(pages: u64) -> u64 {
    pages * PAGE_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rounds_max: u32) -> Pace {
        let pause_max = Duration::from_millis(14);
        Pace::new(Limits { pause_max, rounds_max, ..Limits::default() })
    }

    #[test]
    fn what_fits_ends_at_once() {
        // 10 ms at 400 MiB/s are 1024 pages.
        assert_eq!(pace(5).ends(1000), Some(Ending::Fits));
        assert_eq!(pace(5).ends(1100), None);
        let mut slow = pace(5);
        slow.note_read(2048, Duration::from_secs(1));
        assert_eq!((slow.ends(1000), slow.ends(20)), (None, Some(Ending::Fits)));
        slow.note_read(10, Duration::from_secs(1));
        assert_eq!(slow.measured(), Some(2048 * 4096));
    }

    #[test]
    fn rounds_end_when_they_are_spent() {
        let mut pace = pace(3);
        for left in [1 << 20, 1 << 19, 1 << 18] {
            assert_eq!(pace.ends(left), None);
        }
        assert_eq!(pace.ends(1 << 17), Some(Ending::RoundsSpent));
        assert_eq!(self::pace(0).ends(1 << 20), Some(Ending::RoundsSpent));
    }

    #[test]
    fn rounds_that_gain_nothing_twice_are_given_up() {
        let mut pace = pace(100);
        let left = [1_000_000, 500_000, 490_000, 300_000, 299_000];
        assert!(left.into_iter().all(|left| pace.ends(left).is_none()));
        assert_eq!(pace.ends(310_000), Some(Ending::NotConverging));
    }

    #[test]
    fn rounds_go_on_once_pages_are_tracked_otherwise() {
        let mut pace = pace(0);
        assert_eq!(pace.fits(), 1024);
        assert_eq!(pace.ends(1 << 20), Some(Ending::RoundsSpent));
        pace.begin_anew();
        let left = [1 << 20, 1 << 20, 1 << 20].map(|left| pace.ends(left));
        assert_eq!(left, [None, None, Some(Ending::NotConverging)]);
        pace.begin_anew();
        assert_eq!(pace.ends(1 << 20), None);
        assert_eq!(pace.ends(1000), Some(Ending::Fits));
    }

    #[test]
    fn a_pause_has_a_limit_where_one_is_set() {
        assert_eq!(pace(5).too_long(u64::MAX >> 20), None);
        let pause_limit = Some(Duration::from_secs(1));
        let pace = Pace::new(Limits { pause_limit, ..Limits::default() });
        // One second at 400 MiB/s are 102,400 pages.
        assert_eq!(pace.too_long(102_400), None);
        assert_eq!(pace.too_long(204_800), Some(Duration::from_secs(2)));
    }

    #[test]
    fn a_short_pause_is_half_for_copying() {
        let limits = Limits { pause_max: Duration::from_millis(4), ..Limits::default() };
        assert_eq!(Pace::new(limits).copying_max(), Duration::from_millis(2));
    }
}
