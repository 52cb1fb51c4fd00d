//! Meter of a period's phases: how long each took, and how much of that its longest task did.
//!
//! A phase whose longest task is as long as the whole cannot end sooner with more workers. That is what the
//! figures are for: `time` is what it took, `work` what its tasks took together, and `longest` what it would take
//! with a worker for each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Phase of a period: see [`period`](crate::period).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PhaseName {
    Admit,
    Observe,
    Rehome,
    Compact,
    Gather,
    Examine,
    Zeros,
    Plan,
    Fill,
    Commit,
    Spread,
    Cut,
    Apply,
    Sweep,
    Publish,
}

impl PhaseName {
    const ALL: [(Self, &'static str); 15] = [
        (Self::Admit, "admit"),
        (Self::Observe, "observe"),
        (Self::Rehome, "rehome"),
        (Self::Compact, "compact"),
        (Self::Gather, "gather"),
        (Self::Examine, "examine"),
        (Self::Zeros, "zeros"),
        (Self::Plan, "plan"),
        (Self::Fill, "fill"),
        (Self::Commit, "commit"),
        (Self::Spread, "spread"),
        (Self::Cut, "cut"),
        (Self::Apply, "apply"),
        (Self::Sweep, "sweep"),
        (Self::Publish, "publish"),
    ];
}

/// Figures of a phase so far, rests below a CPU ceiling left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseStatus {
    /// Name of the phase.
    pub name: String,
    /// Times that it ran.
    pub runs: u64,
    /// Time from its beginning to its end, summed over its runs, in microseconds.
    pub time_us: u64,
    /// Tasks that it was divided into.
    pub tasks: u64,
    /// Time of all tasks together, in microseconds: what it would take one worker.
    pub work_us: u64,
    /// Time of the longest task of each run, summed, in microseconds: what it would take workers without number.
    pub longest_us: u64,
}

/// Figures of one run of a phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PhaseRun {
    pub(crate) time: Duration,
    pub(crate) tasks: usize,
    pub(crate) work: Duration,
    pub(crate) longest: Duration,
}

impl PhaseRun {
    /// A run of a phase that is one task.
    pub(crate) const fn of_one(time: Duration) -> Self {
        Self { time, tasks: 1, work: time, longest: time }
    }
}

/// Sums over the runs of each phase.
///
/// Relaxed everywhere: sums that order nothing.
#[derive(Debug, Default)]
pub(crate) struct Phases([PhaseMeter; PhaseName::ALL.len()]);

#[derive(Debug, Default)]
struct PhaseMeter {
    runs: AtomicU64,
    time_ns: AtomicU64,
    tasks: AtomicU64,
    work_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl Phases {
    /// Takes in a run of a phase.
    pub(crate) fn note(&self, phase: PhaseName, run: PhaseRun) {
        let PhaseMeter { runs, time_ns, tasks, work_ns, longest_ns } = &self.0[phase as usize];
        runs.fetch_add(1, Ordering::Relaxed);
        tasks.fetch_add(run.tasks as u64, Ordering::Relaxed);
        for (sum, time) in [(time_ns, run.time), (work_ns, run.work), (longest_ns, run.longest)] {
            sum.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the sums of the phases that ran, in the order of a period.
    pub(crate) fn status(&self) -> Vec<PhaseStatus> {
        let status = |(phase, name): &(PhaseName, &str)| {
            let meter = &self.0[*phase as usize];
            let get = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
            PhaseStatus {
                name: (*name).to_owned(),
                runs: get(&meter.runs),
                time_us: get(&meter.time_ns) / 1000,
                tasks: get(&meter.tasks),
                work_us: get(&meter.work_ns) / 1000,
                longest_us: get(&meter.longest_ns) / 1000,
            }
        };
        PhaseName::ALL.iter().map(status).filter(|phase| phase.runs > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_phase_add_up() {
        assert!(PhaseName::ALL.iter().enumerate().all(|(at, (phase, _))| *phase as usize == at));
        let phases = Phases::default();
        let ms = Duration::from_millis;
        phases.note(PhaseName::Apply, PhaseRun::of_one(ms(3)));
        let run = PhaseRun { time: ms(6), tasks: 4, work: ms(10), longest: ms(5) };
        phases.note(PhaseName::Apply, run);
        phases.note(PhaseName::Plan, PhaseRun::of_one(ms(1)));
        let [plan, apply] = &phases.status()[..] else { panic!("two ran: {phases:?}") };
        assert_eq!((&*plan.name, plan.runs, plan.time_us), ("plan", 1, 1000));
        assert_eq!((apply.runs, apply.tasks, apply.time_us), (2, 5, 9000));
        assert_eq!((apply.work_us, apply.longest_us), (13_000, 8000));
    }
}
