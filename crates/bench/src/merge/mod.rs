//! `bindery-bench merge`: PageONE's own measurement, beside kernel KSM on the same memory.
//!
//! Several processes fill memory with one of PageONE's two data sets ([`dataset`]); two thirds of
//! each process's pages stand in the others too. Then they give it up for merging, by the same
//! `madvise(MADV_MERGEABLE)`, either to the kernel with `sleep_millisecs=0 pages_to_scan=1000000`
//! or to a Bindery daemon. Measured: the time and CPU time until 98% of all duplicates are merged,
//! and the memory then used by the whole machine.
//!
//! CPU time is that of ksmd's thread, or of the daemon's process and of everything that happens in
//! the guests' processes, which do nothing else meanwhile. It is read from the kernel, not asked of
//! the contender. Contenders take turns round by round; every page is verified after every run.

mod contender;
pub mod dataset;
pub mod latency;
mod memory;
pub mod phases;
pub mod process;

use std::{fmt, path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use serde::Serialize;

pub(crate) use self::contender::wait_until_merged;
use self::dataset::{Content, Dataset};
use self::phases::Breakdown;
use crate::engine::{Engine, KsmPace};
use crate::harness::{SampleSet, Table, significant, take_turns};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved rounds; medians are shown.
    pub rounds: usize,
    /// How many processes.
    pub processes: u32,
    /// Memory of each, in MiB.
    pub process_mib: u32,
    /// The mean length of the runs in which duplicates come, in pages: 1 scatters them.
    pub extent_pages: Vec<u32>,
    /// Worker counts of Bindery to compare.
    pub workers: Vec<u32>,
    /// The data sets.
    pub contents: Vec<Content>,
    /// Bindery's merge period.
    pub period: Duration,
    /// The `bindery` program to run.
    pub program: PathBuf,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One for each data set and run length.
    pub cases: Vec<Case>,
}

/// One data set.
#[derive(Debug, Serialize)]
pub struct Case {
    /// Its name.
    pub content: Content,
    /// The mean length of runs of duplicates.
    pub extent_pages: u32,
    /// Pages that are duplicates of others: the most that can be saved.
    pub duplicates: u64,
    /// The contenders' figures, KSM first.
    pub samples: Vec<SampleSet>,
    /// Where the time of each daemon went.
    pub phases: Vec<Breakdown>,
}

/// Measures.
///
/// # Errors
/// If a process cannot be started, KSM is not there, a contender does not converge within two
/// minutes, or a page does not hold what was written to it.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(options.processes >= 2, "duplicates in other processes need at least two");
    let mut cases = Vec::new();
    for &extent_pages in &options.extent_pages {
        cases.extend(measure(options, extent_pages)?);
    }
    Ok(Report { cases })
}

/// All data sets with runs of one length. An engine has its turns with all of them one after the
/// other, so that data sets are comparable too.
fn measure(options: &Options, extent_pages: u32) -> Result<Vec<Case>> {
    let mut engines = vec![Engine::Ksm(KsmPace::FullSpeed)];
    engines.extend(options.workers.iter().map(|&workers| Engine::Bindery {
        workers,
        period: options.period,
        program: options.program.clone(),
    }));
    let dataset = |content| Dataset {
        content,
        pages: options.process_mib << 8,
        extent_pages,
        processes: options.processes,
    };
    let turns: Vec<(&Engine, Content)> = engines
        .iter()
        .flat_map(|engine| options.contents.iter().map(move |&content| (engine, content)))
        .collect();
    let names: Vec<String> =
        turns.iter().map(|(engine, content)| format!("{engine}, {content}")).collect();
    let mut phases = vec![Vec::new(); turns.len()];
    let sets = take_turns(&format!("runs of {extent_pages}"), options.rounds, &names, |turn| {
        let (engine, content) = turns[turn];
        let run = contender::converge(engine, &dataset(content))?;
        phases[turn].push(run.phases);
        Ok(run.measured)
    })?;
    let cases = options.contents.iter().map(|&content| {
        let own = turns.iter().zip(&sets).filter(|((_, other), _)| *other == content);
        let samples = own
            .map(|((engine, _), set)| SampleSet { name: engine.to_string(), ..set.clone() })
            .collect();
        let breakdowns = turns
            .iter()
            .zip(&phases)
            .filter(|((engine, other), _)| *other == content && !matches!(engine, Engine::Ksm(_)));
        let phases = breakdowns
            .map(|((engine, _), rounds)| Breakdown::new(engine.to_string(), rounds.clone()))
            .collect();
        Case { content, extent_pages, duplicates: dataset(content).duplicates(), samples, phases }
    });
    Ok(cases.collect())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            let title = format!(
                "{}, duplicates in runs of about {} pages, {} duplicates",
                case.content, case.extent_pages, case.duplicates
            );
            writeln!(f, "{}", Table::of_samples(title, &case.samples, 0))?;
            for breakdown in &case.phases {
                writeln!(f, "{}", breakdown.table())?;
            }
        }
        self.cases.chunk_by(|a, b| a.extent_pages == b.extent_pages).try_for_each(|cases| {
            let [first, others @ ..] = cases else { return Ok(()) };
            others.iter().try_for_each(|other| other.write_beside(first, f))
        })
    }
}

impl Case {
    /// Says what each contender's CPU time is beside that with another data set.
    fn write_beside(&self, base: &Self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU time, {} ÷ {}", self.content, base.content)?;
        for (own, other) in self.samples.iter().zip(&base.samples) {
            let (Some(own_cpu), Some(other_cpu)) = (own.figure("CPU"), other.figure("CPU")) else {
                continue;
            };
            write!(f, "; {}: {}", own.name, significant(own_cpu.ratio_to(other_cpu)))?;
        }
        writeln!(f)
    }
}
