//! What the courses come to.

use std::fmt;

use serde::Serialize;

use super::{Contender, Course, Options, Phase, fixed_rate::FixedRate};
use crate::harness::{Table, median, significant};

/// How far from the target a scan may be that still counts as on target.
const TOLERANCE: f64 = 0.1;

/// How the contenders paced.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The target, in seconds.
    pub target_scan_time_s: u64,
    /// The ceiling, in percent of one CPU.
    pub max_cpu_percent: u64,
    /// Memory when all processes are there, in MiB.
    pub memory_mib: u64,
    /// How long each phase was, in seconds.
    pub phase_s: f64,
    /// What `pages_to_scan` was fixed at, every 20 ms.
    pub fixed_pages_to_scan: u64,
    /// Medians over the rounds, for each contender and phase.
    pub phases: Vec<Summary>,
    /// CPU time of all phases, in seconds: the median of the rounds.
    pub cpu_s: Vec<(Contender, f64)>,
    /// Everything that was seen, round by round.
    pub courses: Vec<(Contender, Phase, Course)>,
}

/// A contender in a phase.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Who.
    pub contender: Contender,
    /// In which phase.
    pub phase: Phase,
    /// Scans until one was on its target: within a tenth, or, by Bindery's engine, done before. `None`
    /// if none was, or none ended.
    pub scans_to_target: Option<f64>,
    /// The longest scan, in targets.
    pub longest: Option<f64>,
    /// The shortest scan that began and ended in it, in targets, which used CPU time for nothing if it
    /// is short. `None` if none did, and for Bindery's engine, which waits when all is looked at.
    pub shortest: Option<f64>,
    /// The share of the time of all scans that was spent in scans on their target, in percent.
    pub on_target_percent: Option<f64>,
    /// CPU time, in percent of one CPU.
    pub cpu_percent: f64,
    /// CPU time for each scan that ended, in milliseconds: who is late scans less and uses less. `None` if
    /// none ended.
    pub cpu_ms_per_scan: Option<f64>,
    /// The largest share of a CPU in any second, less the ceiling, in points.
    pub over_ceiling: f64,
    /// Memory saved at the end, in MiB.
    pub saved_mib: f64,
}

impl Report {
    pub(super) fn of(
        options: &Options,
        rate: FixedRate,
        courses: &[(Contender, Vec<(Phase, Course)>)],
    ) -> Self {
        let of = |contender: Contender| {
            let own = courses.iter().filter(move |(other, _)| *other == contender);
            own.map(|(_, phases)| phases)
        };
        let summaries = options.contenders.iter().flat_map(|&contender| {
            Phase::ALL.into_iter().map(move |phase| {
                let courses: Vec<&Course> = of(contender)
                    .flat_map(|phases| phases.iter().filter(|(other, _)| *other == phase))
                    .map(|(_, course)| course)
                    .collect();
                Summary::of(contender, phase, &courses, options)
            })
        });
        let cpu_s = options.contenders.iter().map(|&contender| {
            let sums = of(contender)
                .map(|phases| phases.iter().map(|(_, course)| course.cpu_s).sum::<f64>());
            (contender, median(&sums.collect::<Vec<_>>()))
        });
        Self {
            target_scan_time_s: options.target_scan_time_s,
            max_cpu_percent: options.max_cpu_percent,
            memory_mib: options.pages_max() >> 8,
            phase_s: options.phase_time().as_secs_f64(),
            fixed_pages_to_scan: rate.pages_to_scan,
            phases: summaries.collect(),
            cpu_s: cpu_s.collect(),
            courses: courses
                .iter()
                .flat_map(|(contender, phases)| {
                    phases.iter().map(|(phase, course)| (*contender, *phase, course.clone()))
                })
                .collect(),
        }
    }
}

impl Summary {
    fn of(contender: Contender, phase: Phase, courses: &[&Course], options: &Options) -> Self {
        let target_s = options.target().as_secs_f64();
        let is_on_target = |scan_s: f64| {
            // The engine scans what there is to look at and waits; KSM begins anew at once.
            let is_early = scan_s < target_s * (1.0 - TOLERANCE) && contender != Contender::Engine;
            !is_early && scan_s <= target_s * (1.0 + TOLERANCE)
        };
        let of_scans = |figure: &dyn Fn(&[f64]) -> Option<f64>| -> Vec<f64> {
            courses.iter().filter_map(|course| figure(&course.scans_s)).collect()
        };
        let to_target = of_scans(&|scans_s| scans_to_target(scans_s, is_on_target));
        let on_target = of_scans(&|scans_s| on_target_percent(scans_s, is_on_target));
        let longest = of_scans(&longest);
        // The first began in the phase before.
        let shortest = match contender {
            Contender::Engine => Vec::new(),
            _ => of_scans(&|scans_s| shortest(scans_s.get(1..)?)),
        };
        let cpu_per_scan = courses.iter().filter(|course| !course.scans_s.is_empty());
        let cpu_per_scan: Vec<f64> =
            cpu_per_scan.map(|course| 1e3 * course.cpu_s / course.scans_s.len() as f64).collect();
        let of_all = |figure: &dyn Fn(&Course) -> f64| {
            median(&courses.iter().map(|course| figure(course)).collect::<Vec<_>>())
        };
        let phase_s = options.phase_time().as_secs_f64();
        Self {
            contender,
            phase,
            // In more than half of the rounds, or not at all.
            scans_to_target: (to_target.len() * 2 > courses.len()).then(|| median(&to_target)),
            longest: (!longest.is_empty()).then(|| median(&longest) / target_s),
            shortest: (!shortest.is_empty()).then(|| median(&shortest) / target_s),
            on_target_percent: (!on_target.is_empty()).then(|| median(&on_target)),
            cpu_percent: of_all(&|course| 100.0 * course.cpu_s / phase_s),
            cpu_ms_per_scan: (!cpu_per_scan.is_empty()).then(|| median(&cpu_per_scan)),
            over_ceiling: of_all(&|course| {
                (course.cpu_peak_percent - options.max_cpu_percent as f64).max(0.0)
            }),
            saved_mib: of_all(&|course| course.pages_saved as f64 / 256.0),
        }
    }
}

fn scans_to_target(scans_s: &[f64], is_on_target: impl Fn(f64) -> bool) -> Option<f64> {
    scans_s.iter().position(|scan_s| is_on_target(*scan_s)).map(|at| (at + 1) as f64)
}

fn on_target_percent(scans_s: &[f64], is_on_target: impl Fn(f64) -> bool) -> Option<f64> {
    let all: f64 = scans_s.iter().sum();
    let on_target: f64 = scans_s.iter().filter(|scan_s| is_on_target(**scan_s)).sum();
    (all > 0.0).then(|| 100.0 * on_target / all)
}

pub(super) fn longest(scans_s: &[f64]) -> Option<f64> {
    scans_s.iter().copied().reduce(f64::max)
}

fn shortest(scans_s: &[f64]) -> Option<f64> {
    scans_s.iter().copied().reduce(f64::min)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!(
            "{} MiB, a quarter of it in steady and shrink; target {} s, ceiling {}% of a CPU, \
             phases of {} s; fixed: {} pages every 20 ms",
            self.memory_mib,
            self.target_scan_time_s,
            self.max_cpu_percent,
            self.phase_s,
            self.fixed_pages_to_scan
        );
        let headings = [
            "",
            "phase",
            "scans to target",
            "on target (%)",
            "longest (targets)",
            "shortest",
            "CPU (%)",
            "a scan (ms)",
            "over ceiling",
            "saved (MiB)",
        ];
        let mut table = Table::new(title, &headings);
        let or_none = |figure: Option<f64>| figure.map_or_else(|| "-".into(), significant);
        for summary in &self.phases {
            table.push(vec![
                summary.contender.to_string(),
                summary.phase.name().into(),
                or_none(summary.scans_to_target),
                or_none(summary.on_target_percent),
                or_none(summary.longest),
                or_none(summary.shortest),
                significant(summary.cpu_percent),
                or_none(summary.cpu_ms_per_scan),
                significant(summary.over_ceiling),
                significant(summary.saved_mib),
            ]);
        }
        writeln!(f, "{table}")?;
        let fixed = self.cpu_s.iter().find(|(contender, _)| *contender == Contender::Fixed);
        for (contender, cpu_s) in &self.cpu_s {
            write!(f, "{contender:<22} {:>8} CPU-s", significant(*cpu_s))?;
            match fixed {
                Some((_, fixed_s)) if *contender != Contender::Fixed => {
                    let less = 100.0 * (1.0 - cpu_s / fixed_s);
                    writeln!(f, ", {} % less than the fixed rate", significant(less))?;
                }
                _ => writeln!(f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_are_counted_up_to_the_first_on_target_and_weighed_by_their_time() {
        let near_five = |scan_s: f64| (4.5..=5.5).contains(&scan_s);
        assert_eq!(scans_to_target(&[20.0, 5.2, 5.0], near_five), Some(2.0));
        assert_eq!(scans_to_target(&[0.1, 5.6], near_five), None);
        assert_eq!(on_target_percent(&[15.0, 5.0], near_five), Some(25.0));
        assert_eq!(on_target_percent(&[], near_five), None);
    }
}
