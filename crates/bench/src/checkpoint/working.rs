//! A guest that is checkpointed at an interval while it works, beside itself when it is not.
//!
//! The guest measures itself: a loop that only calculates, a loop that only writes memory, how late timers come.

use std::fmt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use bindery_testkit::guest::QemuGuest;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::Common;
use super::stage::{Stage, boot};
use crate::harness::{Bar, Measured, SampleSet, Table, take_turns};

/// The guest, its loops and its checkpoints.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of all parts.
    pub common: Common,
    /// RAM of the guest, in MiB.
    pub memory_mib: u32,
    /// Memory that the loop writes, in MiB.
    pub written_mib: u32,
    /// Time for which each loop runs.
    pub loop_time: Duration,
    /// Interval of the checkpoints.
    pub every: Duration,
}

/// Figures.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Interval of the checkpoints, in seconds.
    pub every_s: f64,
    /// Without checkpoints, then with them.
    pub samples: Vec<SampleSet>,
    /// Bars.
    pub bars: Vec<Bar>,
}

const GUEST: &str = "bench";

const CPU: &str = "CPU-bound loop";
const WRITING: &str = "pages written";

/// Checkpoints that are kept.
const KEPT: &str = "3";

/// Report of `guest_agent probe`.
#[derive(Debug, Deserialize)]
struct Probe {
    cpu_loops_per_s: f64,
    pages_written_per_s: f64,
    timer_late_p50_us: f64,
    timer_late_p99_us: f64,
    timer_late_max_us: f64,
}

/// Measures.
///
/// # Errors
/// If the guests' kit is incomplete, the guest or the daemon cannot be started, or checkpoints fail.
pub fn run(options: &Options) -> Result<Report> {
    let stage = Stage::new(&options.common, 8 * u64::from(options.memory_mib) + 1024)?;
    let mut guest = boot(stage.managed(GUEST, options.memory_mib))?;
    // Once in vain: the probe's memory comes to be there.
    probe(&mut guest, options)?;
    let every = format!("{}ms", options.every.as_millis());
    let names = ["no checkpoints".to_owned(), format!("--every {:?}", options.every)];
    let samples = take_turns("a guest that works", options.common.rounds, &names, |who| {
        let checkpoints = (who == 1).then(|| Checkpoints::start(&stage, &every)).transpose()?;
        let found = probe(&mut guest, options)?;
        checkpoints.map_or(Ok(()), Checkpoints::end)?;
        Ok(figures(&found))
    })?;
    guest.shut_down();
    let bars = bars(&samples);
    Ok(Report { every_s: options.every.as_secs_f64(), samples, bars })
}

fn probe(guest: &mut QemuGuest, options: &Options) -> Result<Probe> {
    let line = guest.check(&format!(
        "guest_agent probe --mib {} --settle 0 --samples 1000 --seconds {}",
        options.written_mib,
        options.loop_time.as_secs_f64()
    ))?;
    serde_json::from_str(&line).with_context(|| format!("the probe said {line:?}"))
}

fn figures(probe: &Probe) -> Measured {
    Measured::new(CPU, "/s", probe.cpu_loops_per_s)
        .and(WRITING, "/s", probe.pages_written_per_s)
        .and("1 ms timer, p50", "µs late", probe.timer_late_p50_us)
        .and("1 ms timer, p99", "µs late", probe.timer_late_p99_us)
        .and("1 ms timer, longest", "µs late", probe.timer_late_max_us)
}

/// Checkpoints at an interval, by the command that makes them.
struct Checkpoints(Child);

impl Checkpoints {
    fn start(stage: &Stage, every: &str) -> Result<Self> {
        let mut command = Command::new(stage.daemon.program());
        command.args(["checkpoint", "create", GUEST, "--without-disks", "--json"]);
        command.args(["--every", every, "--keep", KEPT, "--socket"]).arg(stage.daemon.socket());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Self(child.spawn().context("starting bindery")?))
    }

    /// Ends them, and fails if one had failed.
    fn end(mut self) -> Result<()> {
        self.interrupt();
        let status = self.0.wait()?;
        let mut words = String::new();
        if let Some(mut errors) = self.0.stderr.take() {
            std::io::Read::read_to_string(&mut errors, &mut words)?;
        }
        anyhow::ensure!(status.success(), "checkpoints at an interval failed: {}", words.trim());
        Ok(())
    }

    fn interrupt(&self) {
        // It fails only if the process has ended.
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.interrupt();
            let _ = self.0.wait();
        }
    }
}

fn bars(samples: &[SampleSet]) -> Vec<Bar> {
    let [without, with] = samples else { return Vec::new() };
    let ratio = |name: &str| {
        let figures = with.figure(name).zip(without.figure(name));
        figures.map_or(f64::NAN, |(with, without)| with.ratio_to(without))
    };
    vec![
        Bar::at_least("CPU-bound loop, speed ÷ without", ratio(CPU), 0.99),
        Bar::at_least("writing loop, speed ÷ without", ratio(WRITING), 0.95),
    ]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("a guest, by its own clock, checkpointed every {} s", self.every_s);
        writeln!(f, "{}", Table::by_figure(title, &self.samples, 0))?;
        Bar::table(&self.bars).fmt(f)
    }
}
