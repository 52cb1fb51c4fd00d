//! One contender's run: from memory given up to memory merged.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bindery_host::status::PhaseStatus;
use bindery_testkit::machine::{MemorySnapshot, back_free_memory};

use super::dataset::Dataset;
use crate::{
    crowd::Crowd,
    engine::{Engine, Merger},
    harness::Measured,
    interrupt,
};

/// A contender that has not merged 98% by then has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// The share of all duplicates that counts as done, in percent.
const DONE_PERCENT: u64 = 98;

/// Waits until 98% of all duplicates are merged.
pub(crate) fn wait_until_merged(merger: &Merger, dataset: &Dataset) -> Result<()> {
    let started = Instant::now();
    let enough = dataset.duplicates() * DONE_PERCENT / 100;
    loop {
        let saved = merger.pages_saved()?;
        if saved >= enough {
            return Ok(());
        }
        ensure!(started.elapsed() < PATIENCE, "{saved} of {enough} pages saved in {PATIENCE:?}");
        interrupt::rest(Duration::from_millis(10))?;
    }
}

/// Waits until memory that was offered is taken, for it rests before that.
fn await_taken(merger: &Merger) -> Result<()> {
    let started = Instant::now();
    while !merger.has_taken()? {
        ensure!(started.elapsed() < PATIENCE, "no memory was taken in {PATIENCE:?}");
        interrupt::rest(Duration::from_millis(10))?;
    }
    Ok(())
}

/// One contender's run.
pub(super) struct Run {
    pub(super) measured: Measured,
    /// Phases of a daemon's work until then.
    pub(super) phases: Vec<PhaseStatus>,
}

/// Runs `engine` over fresh processes until 98% of their duplicates are merged.
pub(super) fn converge(engine: &Engine, dataset: &Dataset) -> Result<Run> {
    let merger = Merger::start(engine)?;
    let mut crowd = Crowd::start(&merger, dataset)?;
    let used_before = MemorySnapshot::take_settled()?.used();
    back_free_memory(dataset.shared());
    let cpu = merger.cpu_time(crowd.pids())?;
    crowd.merge()?;
    await_taken(&merger)?;
    let wall = Instant::now();
    wait_until_merged(&merger, dataset)?;
    let (time, cpu_time) = (wall.elapsed(), merger.cpu_time(crowd.pids())?.saturating_sub(cpu));
    let phases = merger.phases()?;
    // What is left of the work ends by itself; memory is compared when both are done.
    interrupt::rest(Duration::from_millis(500))?;
    let used_after = MemorySnapshot::take_settled()?.used();
    let (saved, metadata) = (merger.pages_saved()?, merger.metadata()?);
    merger.pause()?;
    crowd.verify()?;
    drop(crowd);
    merger.stop()?;
    let measured = Measured::new("time", "s", time.as_secs_f64())
        .and("CPU", "s", cpu_time.as_secs_f64())
        .and("µs a page saved", "µs", cpu_time.as_secs_f64() * 1e6 / saved as f64)
        .and("memory before", "MiB", used_before.mib())
        .and("memory after", "MiB", used_after.mib())
        .and("metadata", "B/page", metadata.tables_bytes_a_page())
        .and("mappings", "B/page", metadata.mappings_bytes_a_page());
    Ok(Run { measured, phases })
}
