//! Noise that comes again with its seed.

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Evenly from 0 to 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Evenly within so many percent of 1.
    pub(super) fn around_one(&mut self, percent: u64) -> f64 {
        1.0 + (2.0 * self.unit() - 1.0) * percent as f64 / 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_within_its_bounds_and_comes_again() {
        let draw = || {
            let mut random = Random::new(7);
            (0..1000).map(|_| random.around_one(20)).collect::<Vec<_>>()
        };
        let drawn = draw();
        assert!(drawn.iter().all(|value| (0.8..=1.2).contains(value)));
        assert!(drawn.iter().any(|value| *value > 1.15) && drawn.iter().any(|value| *value < 0.85));
        assert_eq!(drawn, draw());
    }
}
