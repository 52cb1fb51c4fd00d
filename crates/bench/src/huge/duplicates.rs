//! Programs with huge pages, some of whose small pages are duplicates of the others'.
//!
//! For each contender the programs offer memory, fill it, and keep some of its blocks hot. A daemon takes the
//! memory before it is filled. Merging begins when all hot blocks have been written for some time. What it takes
//! counts from then on, until the saving changes no more. What it saves is the memory that the
//! same programs took with nobody merging in the same round, less what they and all that merging
//! needs take now. Accesses are timed by turns with those of a program beside that nobody merges. KSM rests
//! meanwhile, in its favour: at full speed it would take a CPU and the caches from them. A daemon goes on.

use std::time::Duration;

use anyhow::{Context, Result};
use bindery_units::{ByteCount, PAGE_BYTES};
use serde::Serialize;

use super::{
    Options,
    beside::take_times,
    contender::{Contender, names},
    layout::{Hot, Layout},
    program::Program,
};
use crate::{
    choice,
    engine::Merger,
    harness::{Measured, SampleSet, Samples, take_turns},
    interrupt,
    settle::{self, Course, Patience},
};

/// An engine that has saved nothing by then will not.
const IDLE: Duration = Duration::from_secs(20);

/// Time for which hot blocks are written before merging begins: a block that was not would be split, and made whole
/// again later.
const HEATING: Duration = Duration::from_secs(2);

/// Time for which programs of nobody's rest, with all their writers at work.
const REST: Duration = Duration::from_secs(3);

pub(super) const MEMORY: &str = "memory";
pub(super) const SAVING: &str = "saving";
/// Times of accesses, and the same in times those of the program beside.
pub(super) const READ: [&str; 2] = ["random read", "÷ beside"];
pub(super) const HOT_READ: [&str; 2] = ["random read of hot blocks", "÷ beside it"];
pub(super) const HUGE: &str = "huge pages";
pub(super) const CPU: &str = "CPU to settle";
pub(super) const TIME: &str = "time to settle";
pub(super) const CPU_AFTER: &str = "CPU afterwards";

/// One layout of duplicates and writes, with all contenders.
#[derive(Debug, Serialize)]
pub struct Point {
    /// Share of the pages that the other processes have, too, in percent.
    pub share_percent: u32,
    /// Length of the runs in which they come, in pages.
    pub run_pages: u32,
    /// Blocks that are written each second.
    pub hot: Hot,
    /// Memory that can be saved at most, in MiB.
    pub duplicates_mib: f64,
    /// Memory that can be saved without touching a hot block, in MiB.
    pub quiet_duplicates_mib: f64,
    /// Figures of the contenders, nobody first.
    pub samples: Vec<SampleSet>,
    /// Memory that the contenders save, in the same order.
    pub savings: Vec<Samples>,
}

impl Point {
    /// Name of the layout.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { share_percent, run_pages, .. } = self;
        format!("{share_percent}% in runs of {run_pages}, hot {}", choice::name(&self.hot))
    }

    /// Returns the median of what a contender saves, in MiB.
    pub(super) fn saving(&self, who: &str) -> Option<f64> {
        let at = self.samples.iter().position(|set| set.name == who)?;
        Some(self.savings[at].median)
    }

    /// Returns a figure of a contender.
    pub(super) fn figure(&self, who: &str, figure: &str) -> Option<&Samples> {
        self.samples.iter().find(|set| set.name == who)?.figure(figure)
    }

    /// Returns how many times another contender's figure one has, within rounds.
    pub(super) fn ratio(&self, figure: &str, who: &str, other: &str) -> Option<f64> {
        Some(self.figure(who, figure)?.ratio_to(self.figure(other, figure)?))
    }
}

/// Measures all contenders with every layout that was asked for.
pub(super) fn run(options: &Options) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for &share_percent in &options.shares {
        for &run_pages in &options.runs {
            for &hot in &options.hot {
                let (processes, blocks) = (options.processes, options.process_blocks);
                let layout = Layout { processes, blocks, share_percent, run_pages, hot };
                points.push(measure_all(&layout, options)?);
            }
        }
    }
    Ok(points)
}

fn measure_all(layout: &Layout, options: &Options) -> Result<Point> {
    let mib = |pages: u64| ByteCount(pages * PAGE_BYTES as u64).mib();
    let contenders = Contender::with_one_ksm(options);
    let mut point = Point {
        share_percent: layout.share_percent,
        run_pages: layout.run_pages,
        hot: layout.hot,
        duplicates_mib: mib(layout.duplicates()),
        quiet_duplicates_mib: mib(layout.quiet_duplicates()),
        samples: Vec::new(),
        savings: Vec::new(),
    };
    point.samples = take_turns(&point.name(), options.rounds, &names(&contenders), |who| {
        measure(&contenders[who], layout, options)
    })?;
    point.savings = savings(&point.samples)?;
    Ok(point)
}

/// Memory that each contender saves beside the first one, round by round.
pub(super) fn savings(sets: &[SampleSet]) -> Result<Vec<Samples>> {
    let memory = |set: &SampleSet| -> Result<Vec<f64>> {
        Ok(set.figure(MEMORY).context("memory is a figure of everybody")?.samples.clone())
    };
    let unmerged = memory(&sets[0])?;
    let saving = |set: &SampleSet| -> Result<Samples> {
        let saved = unmerged.iter().zip(memory(set)?).map(|(unmerged, own)| unmerged - own);
        Ok(Samples::new(SAVING, "MiB", saved.collect()))
    };
    sets.iter().map(saving).collect()
}

fn measure(contender: &Contender, layout: &Layout, options: &Options) -> Result<Measured> {
    let merger = Merger::start(&contender.engine)?;
    let mut programs = Program::start_all(&merger, layout)?;
    merger.suspend()?;
    Program::ask_all(&mut programs, "fill")?;
    Program::ask_all(&mut programs, "heat")?;
    interrupt::rest(HEATING)?;
    let course = settle(contender, &merger, &programs, options)?;
    let memory = merger.footprint(programs.iter().map(Program::pid))?;
    let huge: f64 =
        programs.iter().map(|program| Ok(program.huge_pages()?.mib())).sum::<Result<_>>()?;
    merger.pause()?;
    let mut measured = Measured::new(MEMORY, "MiB", memory.mib()).and(HUGE, "MiB", huge);
    let mut beside = Program::start_alone(layout)?;
    beside.ask("fill")?;
    beside.ask("heat")?;
    let mut times = |order| take_times([&mut programs[0], &mut beside], order, options.access_time);
    let read = times("read")?;
    measured = measured.and(READ[0], "ns", read.own).and(READ[1], "×", read.ratio);
    if layout.hot != Hot::None {
        let read = times("read-hot")?;
        measured = measured.and(HOT_READ[0], "ns", read.own).and(HOT_READ[1], "×", read.ratio);
    }
    beside.ask("cool")?;
    Program::ask_all(&mut programs, "cool")?;
    Program::ask_all(&mut programs, "verify")?;
    drop(programs);
    merger.stop()?;
    Ok(and_course(measured, course.as_ref()))
}

/// Waits until the engine comes to rest or patience ends. Nobody has no course.
fn settle(
    contender: &Contender,
    merger: &Merger,
    programs: &[Program],
    options: &Options,
) -> Result<Option<Course>> {
    if contender.is_nobody() {
        interrupt::rest(REST)?;
        return Ok(None);
    }
    let patience = Patience { idle: IDLE, limit: options.settle_limit };
    let pids = || programs.iter().map(Program::pid);
    settle::watch(merger, patience, || merger.threads_cpu_time(pids())).map(Some)
}

/// Adds what merging took until it came to rest.
fn and_course(measured: Measured, course: Option<&Course>) -> Measured {
    let done = course.map(Course::converged);
    let mib = |pages: u64| ByteCount(pages * PAGE_BYTES as u64).mib();
    let seconds = |time: Duration| time.as_secs_f64();
    measured
        .and("saved by own account", "MiB", done.map_or(0.0, |done| mib(done.saved_pages)))
        .and(CPU, "s", done.map_or(0.0, |done| seconds(done.cpu)))
        .and(TIME, "s", done.map_or(0.0, |done| seconds(done.time)))
        .and(CPU_AFTER, "%", course.map_or(0.0, |course| 100.0 * course.busy_afterwards()))
        .and("settled", "of 1", course.map_or(1.0, |course| f64::from(course.is_settled)))
}
