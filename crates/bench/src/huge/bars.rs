//! Bars of layouts of duplicates, as ratios of medians and within rounds.

use super::{
    contender::{KSM, Mode, NOBODY},
    duplicates::{HOT_READ, Point, READ},
    layout::Hot,
};
use crate::harness::Bar;

/// Runs from this length on are long enough to be worth a huge page.
const LONG_RUN_PAGES: u32 = 64;

/// Share of KSM's saving that the automatic mode must reach in quiet blocks.
const AUTO_SHARE: f64 = 0.9;

/// Time that an access to a hot block may take, in times nobody's.
const TIME_RATIO: f64 = 1.05;

/// Difference below which two figures are the same: memory and times vary by as much from run to run.
const NOISE: f64 = 0.01;

/// Bars for which the point has the figures.
pub(super) fn of(point: &Point) -> Vec<Bar> {
    let found = [saves_with_ksm(point), auto_saves(point), hot_reads(point), never_worse(point)];
    found.into_iter().flatten().collect()
}

fn saves_with_ksm(point: &Point) -> Option<Bar> {
    let found = point.saving(&Mode::Break.to_string())? / point.saving(KSM)?;
    Some(Bar::at_least(name(point, "break's saving ÷ KSM's"), found, 1.0 - NOISE))
}

/// KSM is only charged with the part of its saving that lies in quiet blocks.
fn auto_saves(point: &Point) -> Option<Bar> {
    let quiet = point.quiet_duplicates_mib / point.duplicates_mib;
    if point.run_pages < LONG_RUN_PAGES || point.hot == Hot::All {
        return None;
    }
    let found = point.saving(&Mode::Auto.to_string())? / (point.saving(KSM)? * quiet);
    Some(Bar::at_least(name(point, "auto's saving ÷ KSM's in quiet blocks"), found, AUTO_SHARE))
}

fn hot_reads(point: &Point) -> Option<Bar> {
    let found = point.ratio(HOT_READ[1], &Mode::Auto.to_string(), NOBODY)?;
    Some(Bar::at_most(name(point, "auto's reads of hot blocks ÷ nobody's"), found, TIME_RATIO))
}

/// Holds if either the saving or the access time is as good as KSM's.
fn never_worse(point: &Point) -> Option<Bar> {
    let auto = Mode::Auto.to_string();
    let saving = point.saving(&auto)? / point.saving(KSM)?;
    let speed = point.ratio(READ[1], KSM, &auto)?;
    let name = name(point, "auto's better one of saving and speed ÷ KSM's");
    Some(Bar::at_least(name, saving.max(speed), 1.0 - NOISE))
}

fn name(point: &Point, compared: &str) -> String {
    format!("{}: {compared}", point.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        harness::{SampleSet, Samples},
        huge::duplicates::{MEMORY, savings},
    };

    /// A point of which each contender has a memory, a time of reads and one of reads of hot blocks, both in times of the
    /// program beside.
    fn point(run_pages: u32, hot: Hot, figures: &[(&str, [f64; 3])]) -> Point {
        let set = |&(name, [memory, read, hot_read]): &(&str, [f64; 3])| SampleSet {
            name: name.to_owned(),
            figures: vec![
                Samples::new(MEMORY, "MiB", vec![memory]),
                Samples::new(READ[1], "×", vec![read]),
                Samples::new(HOT_READ[1], "×", vec![hot_read]),
            ],
        };
        let samples: Vec<SampleSet> = figures.iter().map(set).collect();
        let savings = savings(&samples).unwrap();
        let (duplicates_mib, quiet_duplicates_mib) = (500.0, 250.0);
        Point {
            share_percent: 50,
            run_pages,
            hot,
            duplicates_mib,
            quiet_duplicates_mib,
            samples,
            savings,
        }
    }

    fn met(point: &Point) -> Vec<(f64, bool)> {
        of(point).iter().map(|bar| (bar.found, bar.is_met())).collect()
    }

    #[test]
    fn auto_is_charged_with_quiet_blocks_alone() {
        let figures = [
            ("nobody", [1000.0, 100.0, 100.0]),
            ("KSM", [500.0, 200.0, 200.0]),
            ("auto", [770.0, 120.0, 104.0]),
            ("break", [510.0, 210.0, 210.0]),
        ];
        let bars = met(&point(64, Hot::Half, &figures));
        assert_eq!(bars[0], (0.98, false));
        assert_eq!(bars[1], (0.92, true), "230 of 250");
        assert_eq!(bars[2], (1.04, true));
        assert!(bars[3].1, "it is faster than KSM");
        assert_eq!(met(&point(1, Hot::Half, &figures)).len(), 3, "short runs are kept");
        assert_eq!(met(&point(64, Hot::All, &figures)).len(), 3);
    }

    #[test]
    fn worse_in_both_is_worse() {
        let figures = [
            ("nobody", [1000.0, 100.0, 100.0]),
            ("KSM", [500.0, 200.0, 200.0]),
            ("auto", [600.0, 220.0, 220.0]),
        ];
        let bars = of(&point(1, Hot::All, &figures));
        assert_eq!(bars.len(), 2);
        assert!(bars.iter().all(|bar| !bar.is_met()), "{bars:?}");
        assert!(bars[1].name.starts_with("50% in runs of 1, hot all: auto's better one"));
    }
}
