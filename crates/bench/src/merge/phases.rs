//! Where a daemon's time went, and what more workers could make of it.

use std::cmp::Reverse;

use bindery_host::status::PhaseStatus;
use serde::Serialize;

use crate::harness::{Table, significant};

/// Worker counts that a [`Breakdown`] is extrapolated to.
const EXTRAPOLATED: [u32; 5] = [1, 2, 4, 8, 16];

/// Phases of the runs of one contender.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// Name of the contender.
    pub name: String,
    /// Phases of each round, in the order of a merge period.
    pub rounds: Vec<Vec<PhaseStatus>>,
    /// Bounds for more workers, if each had a CPU of its own.
    pub bounds: Vec<Bound>,
}

/// Time that the phases take with so many workers on as many CPUs, at least.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bound {
    /// Number of workers.
    pub workers: u32,
    /// Seconds, the mean of all rounds.
    pub seconds: f64,
}

impl Breakdown {
    pub(super) fn new(name: String, rounds: Vec<Vec<PhaseStatus>>) -> Self {
        let mean = |workers| rounds.iter().map(|phases| bound(phases, workers)).sum::<f64>();
        let bounds = EXTRAPOLATED
            .map(|workers| Bound { workers, seconds: mean(workers) / rounds.len().max(1) as f64 });
        Self { name, bounds: bounds.into(), rounds }
    }

    /// Returns a table of the phases, means of all rounds, longest first.
    pub(super) fn table(&self) -> Table {
        let bounds = self.bounds.iter().map(|Bound { workers, seconds }| {
            format!("{} s with {workers}", significant(*seconds))
        });
        let title = format!(
            "{}: phases, in ms; at least {}",
            self.name,
            bounds.collect::<Vec<_>>().join(", ")
        );
        let headings = ["", "time", "tasks' time", "longest tasks'", "runs", "tasks"];
        let mut table = Table::new(title, &headings);
        let mut phases = self.means();
        phases.sort_by_key(|phase| Reverse(phase.time_us));
        for phase in phases {
            let ms = |us: u64| significant(us as f64 / 1e3);
            table.push(vec![
                phase.name,
                ms(phase.time_us),
                ms(phase.work_us),
                ms(phase.longest_us),
                phase.runs.to_string(),
                phase.tasks.to_string(),
            ]);
        }
        table
    }

    fn means(&self) -> Vec<PhaseStatus> {
        let mut sums: Vec<PhaseStatus> = Vec::new();
        for phase in self.rounds.iter().flatten() {
            let sum = match sums.iter_mut().position(|sum| sum.name == phase.name) {
                Some(at) => &mut sums[at],
                None => {
                    sums.push(PhaseStatus { name: phase.name.clone(), ..PhaseStatus::default() });
                    sums.last_mut().expect("it was just pushed")
                }
            };
            sum.runs += phase.runs;
            sum.time_us += phase.time_us;
            sum.tasks += phase.tasks;
            sum.work_us += phase.work_us;
            sum.longest_us += phase.longest_us;
        }
        let rounds = self.rounds.len().max(1) as u64;
        for sum in &mut sums {
            let PhaseStatus { name: _, runs, time_us, tasks, work_us, longest_us } = sum;
            for value in [runs, time_us, tasks, work_us, longest_us] {
                *value /= rounds;
            }
        }
        sums
    }
}

/// Returns the seconds that phases take with so many workers on as many CPUs, at least: each as long as its
/// longest task, and as long as its tasks take when they are divided evenly.
fn bound(phases: &[PhaseStatus], workers: u32) -> f64 {
    let of_phase = |phase: &PhaseStatus| {
        let share = phase.work_us / u64::from(workers);
        share.max(phase.longest_us)
    };
    phases.iter().map(of_phase).sum::<u64>() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, work_us: u64, longest_us: u64) -> PhaseStatus {
        let (runs, time_us, tasks) = (2, work_us, 4);
        PhaseStatus { name: name.into(), runs, time_us, tasks, work_us, longest_us }
    }

    #[test]
    fn more_workers_shorten_a_phase_to_its_longest_task() {
        let phases =
            vec![phase("plan", 1_000_000, 1_000_000), phase("apply", 8_000_000, 1_500_000)];
        let breakdown = Breakdown::new("b".into(), vec![phases.clone(), phases]);
        let seconds: Vec<f64> = breakdown.bounds.iter().map(|bound| bound.seconds).collect();
        assert_eq!(seconds, [9.0, 5.0, 3.0, 2.5, 2.5]);
        let means = breakdown.means();
        assert_eq!((means[1].work_us, means[1].runs), (8_000_000, 2));
        assert_eq!(breakdown.table().rows[0][0], "apply");
    }
}
