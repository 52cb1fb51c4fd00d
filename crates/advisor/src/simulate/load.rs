//! What there is to scan, and what it costs.

/// What holds at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Since the start, in seconds.
    pub time_s: f64,
    /// Pages to look at.
    pub candidates: f64,
    /// What one costs, in nanoseconds.
    pub page_ns: f64,
}

/// How one point leads to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// What a point says holds until the next.
    Steps,
    /// What holds between two points is on the line between them.
    Lines,
}

/// Pages that lie together and cost more, or less, than others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// Where they end, as a share of all pages in the order of a scan.
    pub until: f64,
    /// What they cost, as a multiple of what the load says.
    pub factor: f64,
}

/// What is not the same each time: each evenly within so many percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noise {
    /// What a batch costs.
    pub batch_percent: u64,
    /// What all pages of a scan cost.
    pub scan_percent: u64,
    /// How much later than asked a rest ends; never sooner. At most this, for each rest.
    pub late_percent: u64,
    /// The same for all rests of a scan.
    pub late_scan_percent: u64,
}

/// Candidates and their costs over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    points: Vec<Point>,
    shape: Shape,
    kinds: Vec<Kind>,
    /// What is not the same each time.
    pub noise: Noise,
}

impl Load {
    /// # Panics
    /// Without points, or with points that are not in the order of time.
    #[must_use]
    pub fn new(points: Vec<Point>, shape: Shape) -> Self {
        assert!(!points.is_empty(), "a load has points");
        assert!(points.is_sorted_by_key(|point| point.time_s), "points are in order");
        Self { points, shape, kinds: Vec::new(), noise: Noise::default() }
    }

    /// The same number of pages at the same cost, for ever.
    #[must_use]
    pub fn constant(candidates: f64, page_ns: f64) -> Self {
        Self::new(vec![Point { time_s: 0.0, candidates, page_ns }], Shape::Steps)
    }

    /// The same with pages of several kinds, in the order of a scan; what is behind the last is of the
    /// ordinary kind.
    ///
    /// # Panics
    /// If the kinds are not in order.
    #[must_use]
    pub fn with_kinds(self, kinds: Vec<Kind>) -> Self {
        assert!(kinds.is_sorted_by_key(|kind| kind.until), "kinds are in order");
        Self { kinds, ..self }
    }

    /// The same with noise.
    #[must_use]
    pub fn with_noise(self, noise: Noise) -> Self {
        Self { noise, ..self }
    }

    /// When candidates or costs jump, in seconds.
    pub fn jumps(&self) -> impl Iterator<Item = f64> + '_ {
        let points = self.points.iter().skip(1).filter(|_| self.shape == Shape::Steps);
        points.map(|point| point.time_s)
    }

    /// Pages to look at, `time_s` seconds after the start.
    #[must_use]
    pub fn candidates(&self, time_s: f64) -> f64 {
        self.at(time_s).candidates
    }

    /// What it costs to look at the pages from `from` to `to`, as shares of all in the order of a scan,
    /// in seconds.
    pub(super) fn cost_s(&self, time_s: f64, from: f64, to: f64) -> f64 {
        let Point { candidates, page_ns, .. } = self.at(time_s);
        let mut share = 0.0;
        let mut at = from;
        for kind in &self.kinds {
            let end = kind.until.min(to);
            share += (end - at).max(0.0) * kind.factor;
            at = at.max(end);
        }
        (share + (to - at).max(0.0)) * candidates * page_ns / 1e9
    }

    fn at(&self, time_s: f64) -> Point {
        let next = self.points.partition_point(|point| point.time_s <= time_s);
        let before = self.points[next.max(1) - 1];
        match (self.shape, self.points.get(next)) {
            (Shape::Lines, Some(after)) if next > 0 => {
                let part = (time_s - before.time_s) / (after.time_s - before.time_s);
                let between = |a: f64, b: f64| a + (b - a) * part;
                Point {
                    time_s,
                    candidates: between(before.candidates, after.candidates).round(),
                    page_ns: between(before.page_ns, after.page_ns),
                }
            }
            _ => before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<Point> {
        vec![
            Point { time_s: 0.0, candidates: 100.0, page_ns: 1000.0 },
            Point { time_s: 10.0, candidates: 400.0, page_ns: 2000.0 },
        ]
    }

    #[test]
    fn steps_hold_and_lines_lead_over() {
        let steps = Load::new(points(), Shape::Steps);
        assert_eq!(steps.candidates(9.9), 100.0);
        assert_eq!(steps.candidates(10.0), 400.0);
        assert_eq!(steps.jumps().collect::<Vec<_>>(), [10.0]);
        let lines = Load::new(points(), Shape::Lines);
        assert_eq!(lines.candidates(5.0), 250.0);
        assert_eq!(lines.candidates(50.0), 400.0);
        assert_eq!(lines.jumps().count(), 0);
    }

    #[test]
    fn each_page_costs_what_its_kind_does() {
        let kinds = vec![Kind { until: 0.25, factor: 2.0 }, Kind { until: 0.5, factor: 4.0 }];
        let load = Load::constant(100.0, 1e9).with_kinds(kinds);
        assert_eq!(load.cost_s(0.0, 0.0, 1.0), 50.0 + 100.0 + 50.0);
        assert_eq!(load.cost_s(0.0, 0.125, 0.375), 25.0 + 50.0);
        assert_eq!(load.cost_s(0.0, 0.75, 1.0), 25.0);
    }
}
