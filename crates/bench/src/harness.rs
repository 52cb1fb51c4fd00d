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

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

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
    fn new(name: &'static str, unit: &'static str, samples: Vec<f64>) -> Self {
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

/// Runs every contender once a round for `rounds` rounds, after one round that is thrown away
/// (it faults memory in and wakes the clock up). The sample sets come in the contenders' order.
///
/// # Errors
/// If there is no round or no contender, if two contenders give different check values, or if a
/// run reports other figures than the first one did.
pub fn interleave(rounds: usize, contenders: &mut [Contender<'_>]) -> Result<Vec<SampleSet>> {
    ensure!(rounds > 0, "a measurement needs at least one round");
    ensure!(!contenders.is_empty(), "a measurement needs at least one contender");
    let mut runs: Vec<Vec<Measured>> = vec![Vec::with_capacity(rounds); contenders.len()];
    for contender in contenders.iter_mut() {
        (contender.run)();
    }
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let who = (round + turn) % contenders.len();
            runs[who].push((contenders[who].run)());
        }
    }
    ensure_comparable(contenders, &runs)?;
    Ok(contenders.iter().zip(&runs).map(|(contender, runs)| collect(contender, runs)).collect())
}

fn ensure_comparable(contenders: &[Contender<'_>], runs: &[Vec<Measured>]) -> Result<()> {
    let labels = |run: &Measured| -> Vec<(&str, &str)> {
        run.figures.iter().map(|figure| (figure.name, figure.unit)).collect()
    };
    let expected = labels(&runs[0][0]);
    let mut agreed: Option<(&str, u64)> = None;
    for (contender, runs) in contenders.iter().zip(runs) {
        for run in runs {
            let found = labels(run);
            ensure!(found == expected, "{} reports {found:?}, not {expected:?}", contender.name);
            let Some(check) = run.check else { continue };
            let (name, value) = *agreed.get_or_insert((&contender.name, check));
            ensure!(
                value == check,
                "{name} and {} computed different results: {value:#x} and {check:#x}",
                contender.name
            );
        }
    }
    Ok(())
}

fn collect(contender: &Contender<'_>, runs: &[Measured]) -> SampleSet {
    let figures = runs[0].figures.iter().enumerate().map(|(at, figure)| {
        let samples = runs.iter().map(|run| run.figures[at].value).collect();
        Samples::new(figure.name, figure.unit, samples)
    });
    SampleSet { name: contender.name.clone(), figures: figures.collect() }
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

/// A table for people. The first column is set to the left, the others to the right.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// Printed above the table.
    pub title: String,
    /// One heading a column.
    pub headings: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, headings: &[&str]) -> Self {
        let headings = headings.iter().map(ToString::to_string).collect();
        Self { title: title.into(), headings, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the row has not one cell a column.
    pub fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.headings.len(), "a row has one cell a column");
        self.rows.push(row);
    }

    /// A table of `sets`: for every figure its median and range, and for the first figure the ratio
    /// to the contender at `base`.
    ///
    /// # Panics
    /// If `base` is not the position of a set.
    pub fn of_samples(title: impl Into<String>, sets: &[SampleSet], base: usize) -> Self {
        let mut headings = vec![String::new()];
        for figure in &sets[base].figures {
            headings.push(format!("{} ({})", figure.name, figure.unit));
            headings.push("min..max".to_owned());
        }
        headings.push(format!("× {}", sets[base].name));
        let rows = sets.iter().map(|set| sample_row(set, &sets[base])).collect();
        Self { title: title.into(), headings, rows }
    }
}

fn sample_row(set: &SampleSet, base: &SampleSet) -> Vec<String> {
    let mut row = vec![set.name.clone()];
    for figure in &set.figures {
        row.push(significant(figure.median));
        row.push(format!("{}..{}", significant(figure.min), significant(figure.max)));
    }
    let ratio = set.figures.first().zip(base.figures.first()).map(|(own, base)| own.ratio_to(base));
    row.push(ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
    row
}

/// `value` with about three significant digits, as tables print it.
#[must_use]
pub fn significant(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| &row[column]);
            cells.chain([&self.headings[column]]).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> =
            (0..self.headings.len()).map(|column| width(column).unwrap_or(0)).collect();
        writeln!(f, "{}", self.title)?;
        for row in std::iter::once(&self.headings).chain(&self.rows) {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "{cell:width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
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
    fn every_contender_runs_once_a_round_and_the_first_turn_rotates() {
        let order = std::cell::RefCell::new(Vec::new());
        let run = |who: u32| {
            let order = &order;
            move || {
                order.borrow_mut().push(who);
                Measured::new("time", "ns", 1.0)
            }
        };
        let (mut a, mut b) = (run(0), run(1));
        let mut contenders = [Contender::new("a", &mut a), Contender::new("b", &mut b)];
        let sets = interleave(2, &mut contenders).unwrap();
        assert_eq!(*order.borrow(), [0, 1, 0, 1, 1, 0]);
        assert_eq!(sets[1].figure("time").unwrap().samples.len(), 2);
    }

    #[test]
    fn contenders_that_compute_different_things_are_refused() {
        let (mut a, mut b) = (constant(1.0, 7), constant(2.0, 8));
        let mut contenders = [Contender::new("a", &mut a), Contender::new("b", &mut b)];
        let refusal = interleave(3, &mut contenders).unwrap_err().to_string();
        assert!(refusal.contains("different results"), "{refusal}");
    }

    #[test]
    fn contenders_that_report_different_figures_are_refused() {
        let mut a = constant(1.0, 7);
        let mut b = || Measured::new("cpu", "s", 1.0);
        let mut contenders = [Contender::new("a", &mut a), Contender::new("b", &mut b)];
        assert!(interleave(1, &mut contenders).is_err());
        assert!(interleave(0, &mut contenders).is_err());
    }

    #[test]
    fn tables_line_up() {
        let (mut a, mut b) = (constant(2.0, 7), constant(123.4, 7));
        let mut contenders = [Contender::new("naive", &mut a), Contender::new("b", &mut b)];
        let sets = interleave(3, &mut contenders).unwrap();
        let text = Table::of_samples("times", &sets, 0).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "times");
        assert!(lines[2].starts_with("naive") && lines[2].ends_with("1.00"), "{text}");
        assert!(lines[3].contains("123..123") && lines[3].ends_with("61.70"), "{text}");
        assert_eq!(lines[1].chars().count(), lines[3].chars().count(), "{text}");
    }
}
