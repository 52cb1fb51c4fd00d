//! From values to pixels, and round numbers to write beside them.

use embedded_graphics::prelude::Point;

/// Where a panel is, in pixels, and which values its edges are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The upper left corner.
    pub(super) corner: Point,
    pub(super) width: i32,
    pub(super) height: i32,
    /// Seconds at the right edge; the left is 0.
    pub(super) end_s: f64,
    /// The value at the upper edge; the lower is 0.
    pub(super) top: f64,
}

impl Frame {
    /// Where a value is; at the edge if it is beyond.
    pub(super) fn point(&self, time_s: f64, value: f64) -> Point {
        let across = (time_s / self.end_s).clamp(0.0, 1.0) * f64::from(self.width);
        let up = (value / self.top).clamp(0.0, 1.0) * f64::from(self.height);
        self.corner + Point::new(across.round() as i32, self.height - up.round() as i32)
    }
}

/// Round numbers from 0 to `top`: 1, 2 or 5 times a power of ten apart, four to nine of them.
pub(super) fn ticks(top: f64) -> Vec<f64> {
    let rough = top / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factors = [5.0, 2.0, 1.0];
    let factor = factors.into_iter().find(|factor| factor * power <= rough).unwrap_or(1.0);
    let step = factor * power;
    (0..=(top / step + 1e-9) as u32).map(|count| f64::from(count) * step).collect()
}

/// A number in as few characters as tell it from its neighbours: 500, 20k, 8.5M.
pub(super) fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let decimals = usize::from((scaled - scaled.round()).abs() > 0.01);
    format!("{scaled:.decimals$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(37.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0]);
        assert_eq!(ticks(4.0), [0.0, 1.0, 2.0, 3.0, 4.0]);
        for top in 1..5000 {
            assert!((5..=10).contains(&ticks(f64::from(top)).len()), "{top}");
        }
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.5, 500.0, 9000.0, 20_000.0, 8_500_000.0, 2e9].map(short);
        assert_eq!(numbers, ["0", "0.5", "500", "9000", "20k", "8.5M", "2G"]);
    }

    #[test]
    fn values_have_their_places() {
        let frame =
            Frame { corner: Point::new(10, 20), width: 100, height: 50, end_s: 10.0, top: 5.0 };
        assert_eq!(frame.point(0.0, 0.0), Point::new(10, 70));
        assert_eq!(frame.point(10.0, 5.0), Point::new(110, 20));
        assert_eq!(frame.point(5.0, 99.0), Point::new(60, 20));
    }
}
