//! Figures of huge pages, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::{
    contender::NOBODY,
    duplicates::{CPU, CPU_AFTER, HOT_READ, HUGE, Point, READ, TIME},
    guests,
};
use crate::harness::{Bar, SampleSet, Table, significant};

/// Figures of all parts; nothing of parts that were not asked for.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// A program with nothing to merge, by contender, nobody first.
    pub plain: Vec<SampleSet>,
    /// Programs with duplicates, by layout.
    pub duplicates: Vec<Point>,
    /// QEMU guests.
    pub guests: Option<guests::Report>,
    /// CPU time of keeping memory in which nothing happens, KSM first.
    pub keeping: Vec<SampleSet>,
    /// Bars that the parts have.
    pub bars: Vec<Bar>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_figure = |title, sets: &[SampleSet]| match sets {
            [] => None,
            sets => Some(Table::by_figure(title, sets, 0)),
        };
        let tables = [
            by_figure("a program with huge pages, nothing to merge", &self.plain),
            (!self.duplicates.is_empty()).then(|| duplicates(&self.duplicates)),
            self.guests.as_ref().map(guests_table),
            by_figure("huge pages that nobody writes, kept", &self.keeping),
            (!self.bars.is_empty()).then(|| Bar::table(&self.bars)),
        ];
        tables.into_iter().flatten().try_for_each(|table| writeln!(f, "{table}"))
    }
}

const HEADINGS: [&str; 11] = [
    "layout",
    "",
    "saving (MiB)",
    "of duplicates",
    "read (ns)",
    "× nobody",
    "hot (ns)",
    "× nobody",
    "huge (MiB)",
    "CPU, time to settle (s)",
    "CPU afterwards (%)",
];

/// One row for each layout and contender.
fn duplicates(points: &[Point]) -> Table {
    let mut table = Table::new("programs with duplicates in huge pages", &HEADINGS);
    for point in points {
        for set in &point.samples {
            table.push(row(point, &set.name));
        }
    }
    table
}

fn row(point: &Point, who: &str) -> Vec<String> {
    let of = |figure| point.figure(who, figure).map_or(f64::NAN, |samples| samples.median);
    let beside = |figure| significant(point.ratio(figure, who, NOBODY).unwrap_or(f64::NAN));
    let saving = point.saving(who).unwrap_or(f64::NAN);
    vec![
        point.name(),
        who.to_owned(),
        significant(saving),
        format!("{:.1}%", 100.0 * saving / point.duplicates_mib),
        significant(of(READ[0])),
        beside(READ[1]),
        significant(of(HOT_READ[0])),
        beside(HOT_READ[1]),
        significant(of(HUGE)),
        format!("{}, {}", significant(of(CPU)), significant(of(TIME))),
        significant(of(CPU_AFTER)),
    ]
}

fn guests_table(report: &guests::Report) -> Table {
    let mut table = Table::by_figure("guests of one image", &report.samples, 0);
    let mut row = vec!["net saving (MiB)".to_owned()];
    row.extend(report.savings.iter().map(|saving| significant(saving.median)));
    row.resize(table.headings.len(), String::new());
    table.push(row);
    table
}
