//! Interleaved measurement: contenders take turns, so that drift of the machine hits all alike.
//!
//! Timings on a shared machine drift by a quarter within minutes, so two numbers are only
//! comparable when they were taken side by side. One *round* runs every contender once; the
//! contender that goes first changes from round to round. A ratio is the median of the ratios
//! *within* rounds, never the ratio of two medians.
//!
//! A contender reports what its run cost as named [`Figure`]s, and a check value that all
//! contenders which give one must agree on: a benchmark whose rivals compute different things is
//! refused rather than printed.
//!
//! Everything here runs on the caller's thread; a contender may start threads of its own.

mod bar;
pub mod ledger;
mod table;
mod turns;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

pub use self::bar::Bar;
pub use self::table::{Table, significant};
pub use self::turns::{interleave, take_turns};

/// One number that a run cost, for example `("time", "ns/page", 141.0)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What was measured; the heading of its column.
    pub name: &'static str,
    /// The unit of `value`.
    pub unit: &'static str,
    /// The number itself.
    pub value: f64,
}

/// What one run of a contender reports.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    figures: Vec<Figure>,
    check: Option<u64>,
}

impl Measured {
    /// A run with one figure.
    #[must_use]
    pub fn new(name: &'static str, unit: &'static str, value: f64) -> Self {
        Self::default().and(name, unit, value)
    }

    /// Times `work` and reports nanoseconds per item as the figure `time`. What `work` returns
    /// becomes the check value.
    ///
    /// # Panics
    /// If `items` is zero.
    pub fn time_per_item(unit: &'static str, items: u64, work: impl FnOnce() -> u64) -> Self {
        assert!(items > 0, "a time per item needs an item");
        let (elapsed, check) = timed(work);
        Self::new("time", unit, elapsed.as_secs_f64() * 1e9 / items as f64).checked(check)
    }

    /// The same run with one more figure. All runs of all contenders of one [`interleave`] report
    /// the same figures in the same order.
    #[must_use]
    pub fn and(mut self, name: &'static str, unit: &'static str, value: f64) -> Self {
        self.figures.push(Figure { name, unit, value });
        self
    }

    /// The same run with the value that proves what it computed.
    #[must_use]
    pub fn checked(mut self, check: u64) -> Self {
        self.check = Some(check);
        self
    }

    /// The same run with nothing to prove: its result is comparable to no other contender's.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.check = None;
        self
    }
}

/// Runs `work` and says how long it took by the monotonic clock.
pub fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// Something to measure.
pub struct Contender<'a> {
    /// The name of its row.
    pub name: String,
    /// Does the work once and reports what it cost. Set-up belongs outside what it measures.
    pub run: &'a mut dyn FnMut() -> Measured,
}

impl<'a> Contender<'a> {
    /// A contender named `name`.
    pub fn new(name: impl Into<String>, run: &'a mut dyn FnMut() -> Measured) -> Self {
        Self { name: name.into(), run }
    }
}

/// All samples of one figure of one contender, in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Samples {
    /// What was measured.
    pub name: &'static str,
    /// The unit of the samples.
    pub unit: &'static str,
    /// One sample a round.
    pub samples: Vec<f64>,
    /// The middle sample.
    pub median: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
}

impl Samples {
    pub(crate) fn new(name: &'static str, unit: &'static str, samples: Vec<f64>) -> Self {
        let sorted = sorted(&samples);
        let (min, max) = (sorted[0], sorted[sorted.len() - 1]);
        Self { name, unit, median: middle(&sorted), min, max, samples }
    }

    /// The median over the rounds of this sample divided by `base`'s of the same round: below one
    /// where this contender is cheaper.
    ///
    /// # Panics
    /// If the two were not measured in the same rounds.
    #[must_use]
    pub fn ratio_to(&self, base: &Self) -> f64 {
        assert_eq!(self.samples.len(), base.samples.len(), "a ratio is taken within rounds");
        let ratios: Vec<f64> = self.samples.iter().zip(&base.samples).map(|(a, b)| a / b).collect();
        median(&ratios)
    }
}

/// All samples of one contender.
#[derive(Clone, Debug, Serialize)]
pub struct SampleSet {
    /// The contender's name.
    pub name: String,
    /// One entry a figure, in the order in which the contender reported them.
    pub figures: Vec<Samples>,
}

impl SampleSet {
    /// The samples of the figure called `name`.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<&Samples> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

fn ensure_comparable(names: &[String], runs: &[Vec<Measured>]) -> Result<()> {
    let labels = |run: &Measured| -> Vec<(&str, &str)> {
        run.figures.iter().map(|figure| (figure.name, figure.unit)).collect()
    };
    let expected = labels(&runs[0][0]);
    let mut agreed: Option<(&str, u64)> = None;
    for (own, runs) in names.iter().zip(runs) {
        for run in runs {
            let found = labels(run);
            ensure!(found == expected, "{own} reports {found:?}, not {expected:?}");
            let Some(check) = run.check else { continue };
            let (name, value) = *agreed.get_or_insert((own, check));
            ensure!(
                value == check,
                "{name} and {own} computed different results: {value:#x} and {check:#x}"
            );
        }
    }
    Ok(())
}

fn collect(name: &str, runs: &[Measured]) -> SampleSet {
    let figures = runs[0].figures.iter().enumerate().map(|(at, figure)| {
        let samples = runs.iter().map(|run| run.figures[at].value).collect();
        Samples::new(figure.name, figure.unit, samples)
    });
    SampleSet { name: name.to_owned(), figures: figures.collect() }
}

/// The middle of `values`; the mean of the two middle ones where their number is even.
///
/// # Panics
/// If there are no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    middle(&sorted(values))
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    assert!(!sorted.is_empty(), "a median needs a value");
    if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(value: f64, check: u64) -> impl FnMut() -> Measured {
        move || Measured::new("time", "ns", value).checked(check)
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let slow = Samples::new("time", "ns", vec![10.0, 200.0, 30.0]);
        let fast = Samples::new("time", "ns", vec![5.0, 100.0, 3.0]);
        assert_eq!(slow.ratio_to(&fast), 2.0);
        assert_eq!((slow.median, slow.min, slow.max), (30.0, 10.0, 200.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn contenders_that_compute_different_things_are_refused() {
        let (mut a, mut b) = (constant(1.0, 7), constant(2.0, 8));
        let mut contenders = [Contender::new("a", &mut a), Contender::new("b", &mut b)];
        let refusal = interleave("", 3, &mut contenders).unwrap_err().to_string();
        assert!(refusal.contains("different results"), "{refusal}");
    }

    #[test]
    fn contenders_that_report_different_figures_are_refused() {
        let mut a = constant(1.0, 7);
        let mut b = || Measured::new("cpu", "s", 1.0);
        let mut contenders = [Contender::new("a", &mut a), Contender::new("b", &mut b)];
        assert!(interleave("", 1, &mut contenders).is_err());
        assert!(interleave("", 0, &mut contenders).is_err());
    }
}
