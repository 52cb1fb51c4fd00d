//! `bindery-bench idle`: what guests cost that do nothing, by their number.
//!
//! So many guests are started, batch by batch, and merged. Then none of them writes, and for some time all that
//! merging uses is counted: CPU time of the daemon and of the shims in the guests' processes, memory, threads and
//! descriptors. At last one more guest comes, and is timed until its pages are watched, and until one of them is read,
//! which takes two periods in which it was not written. KSM looks at all memory with `smart_scan`, at full speed:
//! its figure is the CPU time of a scan, as if there was one each period.

use std::{
    fmt, fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bindery_testkit::machine::ProcessMemory;
use bindery_units::ByteCount;
use serde::Serialize;

use crate::{
    crowd::Crowd,
    engine::{Engine, KsmPace, Merger},
    harness::{Bar, Measured, SampleSet, Table, take_turns},
    interrupt,
    merge::dataset::{Content, Dataset},
};

/// Guests to watch, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Numbers of guests.
    pub guests: Vec<u32>,
    /// Memory of each, in MiB.
    pub guest_mib: u32,
    /// Time for which they are watched.
    pub time: Duration,
    /// Bindery's merge period.
    pub period: Duration,
    /// The `bindery` program to run.
    pub program: PathBuf,
}

/// Figures of all numbers of guests.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One for each number of guests.
    pub crowds: Vec<Figures>,
    /// Bars of the largest number.
    pub bars: Vec<Bar>,
}

/// Figures of one number of guests.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Number of guests.
    pub guests: u32,
    /// KSM's and Bindery's.
    pub samples: Vec<SampleSet>,
}

const CPU: &str = "CPU, daemon";
const SHIM_CPU: &str = "CPU, shims";
const MEMORY: &str = "memory a guest";
const THREADS: &str = "threads, daemon";
const DESCRIPTORS: &str = "descriptors, daemon";
const SHIM_THREADS: &str = "threads of a guest";
const SHIM_DESCRIPTORS: &str = "descriptors of a guest";
const WATCHED: &str = "new guest watched after";
const READ: &str = "and read after";

/// Most that a thousand idle guests may cost: percent of a CPU, KiB a guest, periods.
const CPU_PERCENT: f64 = 2.0;
const GUEST_KIB: f64 = 200.0;
const NEWCOMER_PERIODS: f64 = 2.0;

/// Guests that are filled before any of them is merged: so much memory has to be there.
const BATCH: u32 = 50;

/// Share of all duplicates that is merged before anything is measured, in percent.
const MERGED_PERCENT: u64 = 95;

/// Time between two looks, which cost the daemon time as well.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Scans before anything is measured, and the time that they have.
const SETTLING_SCANS: u64 = 48;
const SETTLING: Duration = Duration::from_secs(90);

/// Merging that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures.
///
/// # Errors
/// As [`merge::run`](crate::merge::run).
pub fn run(options: &Options) -> Result<Report> {
    let program = options.program.clone();
    let bindery = Engine::Bindery { workers: 1, period: options.period, program };
    let engines = [Engine::Ksm(KsmPace::FullSpeed), bindery];
    let names = engines.each_ref().map(ToString::to_string);
    let mut crowds = Vec::new();
    for &guests in &options.guests {
        let about = format!("{guests} idle guests");
        let samples = take_turns(&about, options.rounds, &names, |who| {
            measure(&engines[who], guests, options)
        })?;
        crowds.push(Figures { guests, samples });
    }
    let bars = crowds.iter().max_by_key(|crowd| crowd.guests).map_or_else(Vec::new, bars);
    Ok(Report { crowds, bars })
}

fn measure(engine: &Engine, guests: u32, options: &Options) -> Result<Measured> {
    let merger = Merger::start(engine)?;
    let alone = memory_of(&merger)?;
    let (pages, processes) = (options.guest_mib << 8, guests + 1);
    let dataset = Dataset { content: Content::Easy, pages, extent_pages: 64, processes };
    let mut crowd = start(&merger, &dataset, guests)?;
    settle(&merger)?;
    let used = watch(&merger, &crowd, options)?;
    let memory = memory_of(&merger)?.0.saturating_sub(alone.0) / u64::from(guests);
    let daemon = merger.pid()?.map(Usage::of).transpose()?.unwrap_or_default();
    let guest = Usage::of(crowd.pids().next().expect("there is a guest"))?;
    let newcomer = Newcomer::time(&merger, &mut crowd, &dataset)?;
    let periods = |time: Duration| time.as_secs_f64() / options.period.as_secs_f64();
    merger.pause()?;
    crowd.verify()?;
    drop(crowd);
    merger.stop()?;
    Ok(Measured::new(CPU, "%", used.own_percent)
        .and(SHIM_CPU, "%", used.guests_percent)
        .and(MEMORY, "KiB", memory as f64 / 1024.0)
        .and(THREADS, "", daemon.threads as f64)
        .and(DESCRIPTORS, "", daemon.descriptors as f64)
        .and(SHIM_THREADS, "", guest.threads as f64)
        .and(SHIM_DESCRIPTORS, "", guest.descriptors as f64)
        .and(WATCHED, "periods", periods(newcomer.watched))
        .and(READ, "periods", periods(newcomer.read)))
}

/// Starts guests batch by batch, each merged before the next one needs memory.
fn start(merger: &Merger, dataset: &Dataset, guests: u32) -> Result<Crowd> {
    let mut crowd = Crowd::default();
    for first in (0..guests).step_by(BATCH as usize) {
        let end = (first + BATCH).min(guests);
        crowd.add(merger, dataset, first..end)?;
        crowd.merge()?;
        wait_until_saved(merger, Dataset { processes: end, ..*dataset }.duplicates())?;
    }
    Ok(crowd)
}

fn wait_until_saved(merger: &Merger, duplicates: u64) -> Result<()> {
    let (started, enough) = (Instant::now(), duplicates * MERGED_PERCENT / 100);
    loop {
        let saved = merger.pages_saved()?;
        if saved >= enough {
            return Ok(());
        }
        ensure!(started.elapsed() < PATIENCE, "{saved} of {enough} pages saved in {PATIENCE:?}");
        interrupt::rest(LOOK_EVERY)?;
    }
}

/// Waits until whoever merges passes over as much as it ever will, or for long: a scan of much memory takes KSM
/// seconds.
fn settle(merger: &Merger) -> Result<()> {
    let (started, until) = (Instant::now(), merger.full_scans()? + SETTLING_SCANS);
    while merger.full_scans()? < until && started.elapsed() < SETTLING {
        interrupt::rest(LOOK_EVERY)?;
    }
    Ok(())
}

/// CPU time in percent of one CPU, as if there was one scan each period.
struct Used {
    own_percent: f64,
    guests_percent: f64,
}

fn watch(merger: &Merger, crowd: &Crowd, options: &Options) -> Result<Used> {
    let look = || -> Result<(u64, Duration, Duration)> {
        let guests = merger.guests_cpu_time(crowd.pids())?;
        Ok((merger.full_scans()?, merger.own_cpu_time()?, guests))
    };
    let (started, before) = (Instant::now(), look()?);
    while started.elapsed() < options.time || merger.full_scans()? == before.0 {
        let most = options.time + PATIENCE;
        ensure!(started.elapsed() < most, "no scan was completed in {most:?}");
        interrupt::rest(Duration::from_secs(1))?;
    }
    let after = look()?;
    let periods = (after.0 - before.0) as f64;
    let percent =
        |used: Duration| 100.0 * used.as_secs_f64() / (periods * options.period.as_secs_f64());
    let (own, guests) = (after.1.saturating_sub(before.1), after.2.saturating_sub(before.2));
    Ok(Used { own_percent: percent(own), guests_percent: percent(guests) })
}

/// Times from when a new guest's memory is given up. KSM does not tell.
#[derive(Clone, Copy, Debug, Default)]
struct Newcomer {
    watched: Duration,
    read: Duration,
}

impl Newcomer {
    /// Starts one more guest and times it.
    fn time(merger: &Merger, crowd: &mut Crowd, dataset: &Dataset) -> Result<Self> {
        let last = dataset.processes - 1;
        crowd.add(merger, dataset, last..dataset.processes)?;
        let all = u64::from(dataset.processes) * u64::from(dataset.pages);
        let read_before = merger.pages_read()?;
        crowd.ask_one(last as usize, "merge")?;
        if merger.pid()?.is_none() {
            return Ok(Self::default());
        }
        let given_up = Instant::now();
        let wait_until = |is_so: &dyn Fn() -> Result<bool>| -> Result<Duration> {
            while !is_so()? {
                ensure!(
                    given_up.elapsed() < PATIENCE,
                    "a new guest was not looked at in {PATIENCE:?}"
                );
                interrupt::rest(LOOK_EVERY)?;
            }
            Ok(given_up.elapsed())
        };
        let watched = wait_until(&|| merger.has_taken_all(all))?;
        let read = wait_until(&|| Ok(merger.pages_read()? > read_before))?;
        Ok(Self { watched, read })
    }
}

/// Memory of the daemon that is its own.
fn memory_of(merger: &Merger) -> Result<ByteCount> {
    let Some(pid) = merger.pid()? else { return Ok(ByteCount(0)) };
    Ok(ProcessMemory::of(pid)?.private)
}

/// Threads and descriptors of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    threads: usize,
    descriptors: usize,
}

impl Usage {
    fn of(pid: u32) -> io::Result<Self> {
        let count = |directory: &str| -> io::Result<usize> {
            Ok(fs::read_dir(format!("/proc/{pid}/{directory}"))?.count())
        };
        Ok(Self { threads: count("task")?, descriptors: count("fd")? })
    }
}

fn bars(crowd: &Figures) -> Vec<Bar> {
    let Some(bindery) = crowd.samples.last() else { return Vec::new() };
    let name = |figure: &str| format!("{} idle guests: {figure}", crowd.guests);
    let most = [(CPU, CPU_PERCENT), (MEMORY, GUEST_KIB), (WATCHED, NEWCOMER_PERIODS)];
    let bar = |(figure, most): (&str, f64)| {
        Some(Bar::at_most(name(figure), bindery.figure(figure)?.median, most))
    };
    most.into_iter().filter_map(bar).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for crowd in &self.crowds {
            let title = format!("{} idle guests", crowd.guests);
            writeln!(f, "{}", Table::by_figure(title, &crowd.samples, 0))?;
        }
        writeln!(f, "{}", Bar::table(&self.bars))
    }
}
