//! What was measured scan after scan, without the noise.

/// Two measurements that differ by no more than this, in percent, may be of the same thing.
pub const NOISE_PERCENT: f64 = 12.0;

/// How many scans the mean is over, at most.
const SCANS: f64 = 8.0;

/// The mean of the last scans, until one is too far from it to be noise: then that one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    value: f64,
    /// How many scans it is the mean of.
    scans: f64,
}

impl Mean {
    pub(super) fn get(&self) -> Option<f64> {
        (self.scans > 0.0).then_some(self.value)
    }

    pub(super) fn take(&mut self, measured: f64) {
        let is_noise = (measured - self.value).abs() <= self.value * NOISE_PERCENT / 100.0;
        self.scans = if is_noise { (self.scans + 1.0).min(SCANS) } else { 1.0 };
        self.value += (measured - self.value) / self.scans;
    }
}

/// The highest of the last scans, until one is too far below it to be noise: then that one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Highest(Option<f64>);

impl Highest {
    pub(super) fn get(&self) -> Option<f64> {
        self.0
    }

    pub(super) fn take(&mut self, measured: f64) {
        let is_noise =
            |highest: f64| (highest * (1.0 - NOISE_PERCENT / 100.0)..=highest).contains(&measured);
        if !self.0.is_some_and(is_noise) {
            self.0 = Some(measured);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_averages_noise_and_believes_changes() {
        let mut mean = Mean::default();
        assert_eq!(mean.get(), None);
        for measured in [104.0, 96.0, 104.0, 96.0] {
            mean.take(measured);
        }
        assert_eq!(mean.get(), Some(100.0));
        mean.take(400.0);
        assert_eq!(mean.get(), Some(400.0));
        mean.take(90.0);
        assert_eq!(mean.get(), Some(90.0));
    }

    #[test]
    fn the_highest_stays_until_all_is_lower() {
        let mut highest = Highest::default();
        for (measured, expected) in [(100.0, 100.0), (95.0, 100.0), (103.0, 103.0), (60.0, 60.0)] {
            highest.take(measured);
            assert_eq!(highest.get(), Some(expected));
        }
    }
}
