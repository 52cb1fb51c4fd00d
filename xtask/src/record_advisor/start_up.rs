//! How candidates come and go while programs start, and what their pages cost ksmd.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bindery_advisor::recorded::{StartUp, StartUpPoint};
use bindery_testkit::machine::{KsmCounters, KsmGuard, ksmd_cpu_time};

use super::candidates::{BLOCK_PAGES, Candidates};
use super::{begin_anew, knob, wait};

/// How many blocks each of the programs has, one figure for every [`STEP`]: it starts late, fills its
/// memory, and gives back what it needed only to start.
const PROGRAMS: [[usize; 20]; 4] = [
    [2, 5, 6, 6, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
    [0, 2, 6, 7, 7, 5, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
    [0, 0, 3, 7, 8, 8, 6, 3, 3, 2, 2, 2, 2, 2, 3, 3, 2, 2, 2, 2],
    [0, 0, 0, 3, 6, 6, 6, 4, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
];

const STEP: Duration = Duration::from_secs(2);

/// Starts the programs under KSM, without an advisor, and notes candidates and costs.
pub(super) fn record(release: &str, ksm: &KsmGuard, stop: &AtomicBool) -> Result<StartUp> {
    begin_anew(ksm)?;
    std::fs::write(knob("pages_to_scan"), "4000")?;
    let mut programs = PROGRAMS.iter().map(|_| Candidates::start()).collect::<Result<Vec<_>>>()?;
    ksm.resume()?;
    let start = Instant::now();
    let mut points = Vec::new();
    for step in 0..PROGRAMS[0].len() {
        for (program, blocks) in programs.iter_mut().zip(PROGRAMS) {
            program.resize(blocks[step])?;
        }
        let time_ms = start.elapsed().as_millis() as u64;
        let blocks: usize = PROGRAMS.iter().map(|blocks| blocks[step]).sum();
        let before = usage()?;
        wait(STEP, stop)?;
        let after = usage()?;
        let pages = after.1.saturating_sub(before.1).max(1);
        let page_ns = (after.0 - before.0).as_nanos() as u64 / pages;
        points.push(StartUpPoint { time_ms, candidates: blocks as u64 * BLOCK_PAGES, page_ns });
    }
    ksm.pause()?;
    Ok(StartUp { kernel: release.to_owned(), points })
}

/// What ksmd has used, and looked at, so far.
fn usage() -> Result<(Duration, u64)> {
    let time = ksmd_cpu_time().context("reading the CPU time of ksmd")?;
    Ok((time, KsmCounters::read()?.pages_scanned))
}
