//! Programs with huge pages, started and ordered about.

use std::{
    ffi::OsString,
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bindery_testkit::{coprocess::Coprocess, machine::back_free_memory};
use bindery_units::{ByteCount, PAGE_BYTES};

use super::{layout::Layout, smaps};
use crate::{choice, engine::Merger, interrupt};

/// Memory that has not been taken by then never will be.
const PATIENCE: Duration = Duration::from_secs(30);

/// Subject of errors.
const PROGRAM: &str = "a program with huge pages";

/// A program whose memory is untouched, and what comes after that.
pub(super) struct Program {
    process: Coprocess,
    memory: Range<usize>,
}

impl Program {
    /// Starts all programs of a layout and waits until their memory is taken.
    pub(super) fn start_all(merger: &Merger, layout: &Layout) -> Result<Vec<Self>> {
        let start = |process: u32| {
            let launcher = merger.launcher(&format!("huge{process}"));
            Self::start(&launcher, layout, process, &["--offered"])
        };
        let programs: Result<Vec<Self>> = (0..layout.processes).map(start).collect();
        let pages = u64::from(layout.processes) * u64::from(layout.pages());
        let started = Instant::now();
        while !merger.has_taken_all(pages)? {
            ensure!(started.elapsed() < PATIENCE, "memory was not taken in {PATIENCE:?}");
            interrupt::rest(Duration::from_millis(20))?;
        }
        // Whoever comes first would pay for memory that the machine's host has taken back.
        back_free_memory(ByteCount(pages * PAGE_BYTES as u64));
        programs
    }

    /// Starts a program like the first of `layout` whose memory nobody merges.
    pub(super) fn start_alone(layout: &Layout) -> Result<Self> {
        let program = Self::start(&[], layout, 0, &[])?;
        back_free_memory(ByteCount(u64::from(layout.pages()) * PAGE_BYTES as u64));
        Ok(program)
    }

    fn start(launcher: &[OsString], layout: &Layout, process: u32, flags: &[&str]) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut process = Coprocess::start(launcher, &program, |command| {
            command
                .args(["huge-process", "--hot", &choice::name(&layout.hot)])
                .args(["--processes", &layout.processes.to_string()])
                .args(["--blocks", &layout.blocks.to_string()])
                .args(["--share", &layout.share_percent.to_string()])
                .args(["--run", &layout.run_pages.to_string()])
                .args(["--process", &process.to_string()])
                .args(flags);
        })
        .with_context(|| format!("cannot start {}", program.display()))?;
        let range = process.ask("where").context(PROGRAM)?;
        let memory = parse(&range).with_context(|| format!("a program said {range:?}"))?;
        Ok(Self { process, memory })
    }

    /// Sends an order without an answer and waits until it is done.
    pub(super) fn ask(&mut self, order: &str) -> Result<()> {
        self.process.ask(order).map(drop).context(PROGRAM)
    }

    /// Sends an order without an answer to all programs at once, and waits for all.
    pub(super) fn ask_all(programs: &mut [Self], order: &str) -> Result<()> {
        programs.iter_mut().try_for_each(|program| program.process.send(order))?;
        let mut answers = programs.iter_mut().map(|program| program.process.receive().map(drop));
        answers.try_for_each(|answer| answer).context(PROGRAM)
    }

    /// Sends the program an order and returns the nanoseconds that it answers.
    pub(super) fn time(&mut self, order: &str) -> Result<f64> {
        self.process.ask_for(order).context(PROGRAM)
    }

    /// As [`Self::time`], for an order that takes so long.
    pub(super) fn time_for(&mut self, order: &str, time: Duration) -> Result<f64> {
        self.time(&format!("{order} {}", time.as_millis()))
    }

    /// Returns the part of the memory that is in huge pages.
    pub(super) fn huge_pages(&self) -> Result<ByteCount> {
        // The kernel may have joined mappings beside it, which are small, to its first or last one.
        let is_own = |mapping: &smaps::Mapping<'_>| {
            mapping.start < self.memory.end && mapping.end > self.memory.start
        };
        Ok(smaps::huge_pages(self.process.pid(), is_own)?)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

fn parse(range: &str) -> Option<Range<usize>> {
    let (start, end) = range.split_once(' ')?;
    Some(start.parse().ok()?..end.parse().ok()?)
}
