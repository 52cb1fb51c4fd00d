//! What a measurement looks like to people.

use std::fmt;

use serde::Serialize;

use super::SampleSet;

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

    /// A table of `sets` for many figures: one a row, with each set's median, and how many times
    /// that of the set at `base` the others have, within rounds.
    ///
    /// # Panics
    /// If `base` is not the position of a set, or the sets have different figures.
    pub fn by_figure(title: impl Into<String>, sets: &[SampleSet], base: usize) -> Self {
        let others = || sets.iter().enumerate().filter(|(at, _)| *at != base).map(|(_, set)| set);
        let mut headings = vec![String::new()];
        headings.extend(sets.iter().map(|set| set.name.clone()));
        headings.extend(others().map(|set| format!("{} ÷ {}", set.name, sets[base].name)));
        let rows = sets[base].figures.iter().enumerate().map(|(at, figure)| {
            let mut row = vec![format!("{} ({})", figure.name, figure.unit)];
            row.extend(sets.iter().map(|set| significant(set.figures[at].median)));
            row.extend(others().map(|set| significant(set.figures[at].ratio_to(figure))));
            row
        });
        Self { title: title.into(), headings, rows: rows.collect() }
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

/// `value` with about three significant digits, as tables print it; a dash for what is not a finite
/// number, as a ratio to zero.
#[must_use]
pub fn significant(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
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
    use super::super::{Contender, Measured, interleave};
    use super::*;

    fn constant(value: f64) -> impl FnMut() -> Measured {
        move || Measured::new("time", "ns", value).checked(7)
    }

    #[test]
    fn tables_line_up() {
        let (mut a, mut b) = (constant(2.0), constant(123.4));
        let mut contenders = [Contender::new("naive", &mut a), Contender::new("b", &mut b)];
        let sets = interleave("", 3, &mut contenders).unwrap();
        let text = Table::of_samples("times", &sets, 0).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "times");
        assert!(lines[2].starts_with("naive") && lines[2].ends_with("1.00"), "{text}");
        assert!(lines[3].contains("123..123") && lines[3].ends_with("61.70"), "{text}");
        assert_eq!(lines[1].chars().count(), lines[3].chars().count(), "{text}");
    }

    #[test]
    fn ratios_stand_beside_each_figure() {
        let (mut a, mut b) = (constant(2.0), constant(5.0));
        let mut contenders = [Contender::new("a", &mut a), Contender::new("b", &mut b)];
        let table = Table::by_figure("", &interleave("", 3, &mut contenders).unwrap(), 0);
        assert_eq!(table.headings, ["", "a", "b", "b ÷ a"]);
        assert_eq!(table.rows, [["time (ns)", "2.00", "5.00", "2.50"]]);
    }
}
