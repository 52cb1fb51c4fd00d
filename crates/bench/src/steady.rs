//! `bindery-bench steady`: what it costs to keep merged memory that nobody writes up to date.
//!
//! The memory is merged first; then the CPU time of so many full scans is measured and divided.
//! KSM runs with `smart_scan`, which passes over pages that did not merge before. Bindery asks the
//! kernel what was written, and reads nothing.

use std::{
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::{
    crowd::Crowd,
    engine::{Engine, KsmPace, Merger},
    harness::{Measured, median, significant, take_turns},
    interrupt,
    merge::{
        dataset::{Content, Dataset},
        wait_until_merged,
    },
};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved rounds.
    pub rounds: usize,
    /// How many processes.
    pub processes: u32,
    /// Memory of each, in MiB.
    pub process_mib: u32,
    /// Full scans measured a round.
    pub scans: u64,
    /// The `bindery` program to run.
    pub program: PathBuf,
}

/// CPU time of a full scan of memory that is merged and not written.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Memory kept, in MiB.
    pub memory_mib: u32,
    /// KSM's, in microseconds, one for each round.
    pub ksm_scan_cpu_us: Vec<f64>,
    /// Bindery's, in microseconds, one for each round.
    pub bindery_scan_cpu_us: Vec<f64>,
    /// KSM's over Bindery's: the median of the rounds' ratios.
    pub ratio: f64,
}

/// Measures.
///
/// # Errors
/// As [`merge::run`](crate::merge::run).
pub fn run(options: &Options) -> Result<Report> {
    let dataset = Dataset {
        content: Content::Easy,
        pages: options.process_mib << 8,
        extent_pages: 64,
        processes: options.processes,
    };
    let bindery = Engine::Bindery { workers: 1, period: PERIOD, program: options.program.clone() };
    let engines = [Engine::Ksm(KsmPace::FullSpeed), bindery];
    let names = engines.each_ref().map(ToString::to_string);
    let sets = take_turns("a full scan", options.rounds, &names, |who| {
        Ok(Measured::new("CPU", "µs/scan", scan_cpu_us(&engines[who], &dataset, options)?))
    })?;
    let [ksm, bindery] = [&sets[0].figures[0], &sets[1].figures[0]];
    Ok(Report {
        memory_mib: options.process_mib * options.processes,
        ratio: ksm.ratio_to(bindery),
        ksm_scan_cpu_us: ksm.samples.clone(),
        bindery_scan_cpu_us: bindery.samples.clone(),
    })
}

/// The daemon's merge period while it is measured.
const PERIOD: Duration = Duration::from_millis(100);

/// Scans after which both pass over as much as they ever will.
const SETTLING_SCANS: u64 = 48;

/// Between two looks how far a scan is, which cost the daemon CPU time as well.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Scans that end so late are given up.
const PATIENCE: Duration = Duration::from_secs(120);

fn scan_cpu_us(engine: &Engine, dataset: &Dataset, options: &Options) -> Result<f64> {
    let merger = Merger::start(engine)?;
    let mut crowd = Crowd::start(&merger, dataset)?;
    crowd.merge()?;
    wait_until_merged(&merger, dataset)?;
    settle_scans(&merger)?;
    let (scans, cpu) = (merger.full_scans()?, merger.cpu_time(crowd.pids())?);
    wait_for_scans(&merger, options.scans)?;
    let (scans, cpu) = (merger.full_scans()? - scans, merger.cpu_time(crowd.pids())? - cpu);
    merger.pause()?;
    crowd.verify()?;
    drop(crowd);
    merger.stop()?;
    Ok(cpu.as_secs_f64() * 1e6 / scans as f64)
}

/// Waits until whoever merges passes over as much as it ever will: KSM over pages the more often the
/// longer they did not merge (should_skip_rmap_item in mm/ksm.c), Bindery over blocks the longer they
/// were not written.
pub(crate) fn settle_scans(merger: &Merger) -> Result<()> {
    wait_for_scans(merger, SETTLING_SCANS)
}

fn wait_for_scans(merger: &Merger, scans: u64) -> Result<()> {
    let (started, until) = (Instant::now(), merger.full_scans()? + scans);
    while merger.full_scans()? < until {
        ensure!(started.elapsed() < PATIENCE, "{scans} scans took longer than {PATIENCE:?}");
        interrupt::rest(LOOK_INTERVAL)?;
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |values: &[f64]| {
            let (low, high) = values
                .iter()
                .fold((f64::MAX, 0.0f64), |(low, high), &value| (low.min(value), high.max(value)));
            let [middle, low, high] = [median(values), low, high].map(significant);
            format!("{middle:>10} µs a scan  ({low} to {high})")
        };
        writeln!(f, "{} MiB merged and not written, CPU time of a full scan", self.memory_mib)?;
        writeln!(f, "  KSM, smart_scan {}", line(&self.ksm_scan_cpu_us))?;
        writeln!(f, "  Bindery         {}", line(&self.bindery_scan_cpu_us))?;
        writeln!(f, "  KSM / Bindery   {:>10}", significant(self.ratio))
    }
}
