//! A crowd of processes that hold a data set: the guests of the benchmarks.

use std::ops::Range;

use anyhow::{Context, Result};
use bindery_testkit::coprocess::Coprocess;

use crate::{engine::Merger, merge::dataset::Dataset};

/// Processes of a data set.
#[derive(Default)]
pub(crate) struct Crowd(Vec<Coprocess>);

impl Crowd {
    /// Starts the processes and waits until their memory is filled.
    pub(crate) fn start(merger: &Merger, dataset: &Dataset) -> Result<Self> {
        Self::start_some(merger, dataset, 0..dataset.processes)
    }

    /// As [`Self::start`], but some of the processes only.
    pub(crate) fn start_some(
        merger: &Merger,
        dataset: &Dataset,
        processes: Range<u32>,
    ) -> Result<Self> {
        let mut crowd = Self::default();
        crowd.add(merger, dataset, processes)?;
        Ok(crowd)
    }

    /// Starts more of the processes, and waits until their memory is filled.
    pub(crate) fn add(
        &mut self,
        merger: &Merger,
        dataset: &Dataset,
        processes: Range<u32>,
    ) -> Result<()> {
        for process in processes {
            self.0.push(start(merger, dataset, process)?);
        }
        self.ask_all("filled")
    }

    /// Gives all memory up for merging, all processes at once.
    pub(crate) fn merge(&mut self) -> Result<()> {
        self.ask_all("merge")
    }

    /// Compares every page with what was written to it.
    pub(crate) fn verify(&mut self) -> Result<()> {
        self.ask_all("verify")
    }

    /// Sends an order to all processes at once, and waits until each has answered.
    fn ask_all(&mut self, order: &str) -> Result<()> {
        self.0.iter_mut().try_for_each(|guest| guest.send(order))?;
        self.0.iter_mut().try_for_each(|guest| guest.receive().map(drop)).context(GUEST)
    }

    /// Has one process do something and returns its answer, a line.
    pub(crate) fn ask_one(&mut self, process: usize, order: &str) -> Result<String> {
        self.0[process].ask(order).context(GUEST)
    }

    /// Pids of the processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(Coprocess::pid)
    }
}

/// Subject of errors.
const GUEST: &str = "a guest's process";

/// Starts a process with memory to merge.
fn start(merger: &Merger, dataset: &Dataset, process: u32) -> Result<Coprocess> {
    let launcher = merger.launcher(&format!("guest{process}"));
    let program = std::env::current_exe().context("finding this program")?;
    Coprocess::start(&launcher, &program, |command| {
        command
            .args(["guest-process", "--content", &dataset.content.to_string()])
            .args(["--pages", &dataset.pages.to_string()])
            .args(["--extent-pages", &dataset.extent_pages.to_string()])
            .args(["--processes", &dataset.processes.to_string()])
            .args(["--process", &process.to_string()]);
    })
    .with_context(|| format!("cannot start {}", program.display()))
}
