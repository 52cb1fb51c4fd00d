//! The time after a scan that passed over nearly everything.
//!
//! `smart_scan` passes over pages within a batch, however many they are, and does not count them: a
//! scan of nothing else takes one batch. ksmd then goes through the same pages again and again, and
//! where they would have been left alone for eight scans, they are looked at every few seconds. So such
//! a scan is followed by a pause, for as long as it was short of its target.
//!
//! ksmd pauses when `sleep_millisecs` is long, and it goes on at once when that is changed (mm/ksm.c,
//! `ksm_iter_wait`): it does one batch and sleeps again. When that ends the next scan too, the pause
//! goes on; else the scan has something to look at, and goes on at its pace.

/// How long ksmd is looked at closely after it was woken, in microseconds: until its batch is over.
const WAKING_US: u64 = 100_000;

/// A pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    until_us: u64,
    woken_us: u64,
    target_us: u64,
    /// Whether the rest is a millisecond longer: to change it wakes ksmd.
    is_odd: bool,
}

impl Pause {
    /// From `now_us` on, for `time_us`.
    pub(crate) fn new(now_us: u64, target_us: u64, time_us: u64) -> Self {
        Self { until_us: now_us + time_us, woken_us: now_us, target_us, is_odd: false }
    }

    /// A scan has ended within the pause, or at its end.
    pub(crate) fn after_scan(self, now_us: u64) -> Self {
        let until_us = if self.until_us > now_us { self.until_us } else { now_us + self.target_us };
        Self { until_us, ..self }
    }

    /// How long it still is, in microseconds.
    pub(crate) fn left_us(&self, now_us: u64) -> u64 {
        self.until_us.saturating_sub(now_us)
    }

    /// For how long nothing is to be expected, in microseconds.
    pub(crate) fn quiet_us(&self, now_us: u64) -> u64 {
        if now_us < self.woken_us + WAKING_US { 0 } else { self.left_us(now_us) }
    }

    /// It is over: ksmd is to try the next scan.
    pub(crate) fn probe(&mut self, now_us: u64) {
        self.is_odd = !self.is_odd;
        self.woken_us = now_us;
        self.until_us = now_us + self.target_us;
    }

    /// The rest that keeps ksmd asleep: longer than it is to pause.
    pub(crate) fn sleep_ms(&self) -> u64 {
        self.target_us / 1000 * 2 + u64::from(self.is_odd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_once_and_each_probe_changes_the_rest() {
        let mut pause = Pause::new(1_000_000, 2_000_000, 1_500_000);
        assert_eq!(pause.quiet_us(1_000_000), 0, "ksmd is woken as it begins");
        assert_eq!(pause.quiet_us(1_200_000), 1_300_000);
        // The next scan was as short: it does not begin anew.
        pause = pause.after_scan(1_050_000);
        assert_eq!(pause.left_us(2_400_000), 100_000);
        let sleep_ms = pause.sleep_ms();
        pause.probe(2_500_000);
        assert_ne!(pause.sleep_ms(), sleep_ms);
        assert_eq!(pause.left_us(2_500_000), 2_000_000);
        assert!(pause.sleep_ms() * 1000 > 2_000_000);
    }
}
