//! How well a law did.

use serde::Serialize;

use super::{Load, Run, ScanRecord};
use crate::AdvisorSettings;

/// What counts as being at the target: a scan time within so many percent of it.
const NEAR_PERCENT: f64 = 10.0;

/// The figures of one simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Full scans.
    pub scans: usize,
    /// How many scans it took to come within 10% of the target after the start and after each jump of
    /// the load, at worst: the scan that was under way is not counted, the first that is near is.
    /// `None`: it never came there before the next jump, or the end.
    pub scans_to_target: Option<usize>,
    /// How many of all scans were within 10% of the target, in percent.
    pub near_percent: f64,
    /// How much faster than the target the fastest scan was, in percent of the speed that was wanted;
    /// scans into which a jump of the load fell are not counted.
    pub overshoot_percent: f64,
    /// The longest scan, as a multiple of the target; those into which a jump fell are counted.
    pub longest_targets: f64,
    /// CPU time, in seconds.
    pub cpu_s: f64,
    /// The most that any second had, in percent of one CPU.
    pub most_cpu_percent: f64,
    /// CPU time above the ceiling, second by second, in seconds.
    pub cpu_over_ceiling_s: f64,
    /// How often the batch got larger after it had got smaller, or the other way round.
    pub turns: usize,
}

impl Verdict {
    /// Judges what `settings` made of `load`.
    #[must_use]
    pub fn of(settings: &AdvisorSettings, load: &Load, run: &Run) -> Self {
        let target_s = settings.target_scan_time_s as f64;
        let ceiling_s = settings.max_cpu_percent as f64 / 100.0;
        let near = run.scans.iter().filter(|scan| is_near(scan.time_s(), target_s)).count();
        let jumps: Vec<f64> = load.jumps().collect();
        let has_jump =
            |scan: &ScanRecord| jumps.iter().any(|at| (scan.start_s..scan.end_s).contains(at));
        let times = || run.scans.iter().filter(|scan| !has_jump(scan)).map(ScanRecord::time_s);
        let over = run.seconds().into_iter().map(|cpu_s| (cpu_s - ceiling_s).max(0.0));
        Self {
            scans: run.scans.len(),
            scans_to_target: scans_to_target(load, run, target_s),
            near_percent: 100.0 * near as f64 / run.scans.len().max(1) as f64,
            overshoot_percent: (target_s / times().fold(target_s, f64::min) - 1.0) * 100.0,
            longest_targets: run.scans.iter().map(ScanRecord::time_s).fold(0.0, f64::max)
                / target_s,
            cpu_s: run.cpu_s(),
            most_cpu_percent: run.most_in_a_second(0.0) * 100.0,
            cpu_over_ceiling_s: over.sum(),
            turns: turns(&run.scans),
        }
    }
}

fn is_near(time_s: f64, target_s: f64) -> bool {
    (time_s - target_s).abs() <= target_s * NEAR_PERCENT / 100.0
}

fn scans_to_target(load: &Load, run: &Run, target_s: f64) -> Option<usize> {
    let changes: Vec<f64> = std::iter::once(0.0).chain(load.jumps()).collect();
    let ends = changes.iter().copied().skip(1).chain([f64::INFINITY]);
    let of_changes = changes.iter().zip(ends).map(|(start_s, end_s)| {
        let within = |scan: &&ScanRecord| scan.start_s >= *start_s && scan.end_s <= end_s;
        let mut scans = run.scans.iter().filter(within);
        scans.position(|scan| is_near(scan.time_s(), target_s)).map(|position| position + 1)
    });
    of_changes.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// How often the batch changed its direction.
#[must_use]
fn turns(scans: &[ScanRecord]) -> usize {
    let batches = scans.iter().map(|scan| scan.pace.pages_to_scan);
    let pairs = batches.clone().zip(batches.skip(1));
    let directions: Vec<_> =
        pairs.map(|(before, after)| after.cmp(&before)).filter(|order| order.is_ne()).collect();
    directions.windows(2).filter(|pair| pair[0] != pair[1]).count()
}
