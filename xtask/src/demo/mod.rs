//! `cargo xtask demo`: the same guests under kernel KSM and under Bindery, side by side.
//!
//! For each engine the guests are booted anew, given time to settle, measured, merged until nothing
//! more is found, and measured again. Nothing merges before the first measurement, so that it is
//! what the guests cost with neither engine. Everything that is changed or started is owned by a
//! guard: an error, or Ctrl-C, leaves the machine as it was.
//!
//! Then the second act: a guest that is [checkpointed](checkpoint), ended, restored, and cloned.

mod checkpoint;
mod engine;
mod fleet;
mod report;
mod screen;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bindery_testkit::bindery::Bindery;
use bindery_testkit::guest::Kit;
use bindery_testkit::machine::{MemorySnapshot, drop_caches, sum_pss};
use bindery_units::ByteCount;

use crate::cargo::build_programs;
use crate::setup;
use engine::{BinderyEngine, Engine, KsmEngine};
use fleet::Fleet;
use report::{EngineReport, Sample};
use screen::Screen;

/// Time for the guests' programs to fill their memory, under TCG on two cores.
const SETTLE: Duration = Duration::from_secs(12);

/// Merging is watched no longer than this.
const WATCH_LIMIT: Duration = Duration::from_secs(45);

/// Merging has converged when the last stretch of this length brought less than [`GAIN`].
const QUIET: Duration = Duration::from_secs(8);
const GAIN: f64 = 0.01;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// What can merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EngineKind {
    Ksm,
    Bindery,
}

/// Options of the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// How many guests to boot
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    guests: u32,
    /// Memory of each guest, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(192..=65536))]
    memory_mib: u32,
    /// Show one engine alone
    #[arg(long, value_enum)]
    engine: Option<EngineKind>,
}

/// Runs the demo and prints its tables.
pub(crate) fn run(arguments: &DemoArgs) -> Result<()> {
    let kit = setup::for_demo()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching Ctrl-C")?;
    }
    let wanted = |kind| arguments.engine.is_none_or(|only| only == kind);
    if wanted(EngineKind::Bindery) {
        println!("Building bindery");
        build_programs()?;
    }
    let start = Instant::now();
    let mut reports = Vec::new();
    if wanted(EngineKind::Ksm) {
        match KsmEngine::prepare() {
            Ok(engine) => reports.push(show(engine, arguments, &kit, &stop)?),
            // Only root may start KSM; without it the demo is still worth seeing.
            Err(error) if arguments.engine.is_none() => {
                println!("SKIPPED: kernel KSM, for comparison: {error}");
            }
            Err(error) => return Err(error),
        }
    }
    if wanted(EngineKind::Bindery) {
        let engine = BinderyEngine::prepare(&Bindery::locate()?)?;
        reports.push(show(engine, arguments, &kit, &stop)?);
    }
    report::print(&reports);
    if wanted(EngineKind::Bindery) {
        checkpoint::run(arguments, &kit, &stop)?;
    }
    println!("\nThe demo took {:.0} s. All guests have ended.", start.elapsed().as_secs_f64());
    Ok(())
}

/// Boots the guests under one engine, merges, and measures. The engine ends with it.
fn show(
    mut engine: impl Engine,
    arguments: &DemoArgs,
    kit: &Kit,
    stop: &AtomicBool,
) -> Result<EngineReport> {
    let screen = Screen::new(engine.name());
    // Cached files hide in no figure that is used, but reclaiming them would cost time later.
    let _ = drop_caches();
    let idle = engine.used_when_idle();
    let mut fleet = Fleet::boot(kit, arguments.guests, arguments.memory_mib, &engine, |ready| {
        screen.phase(&format!("booting guests under QEMU: {ready} of {} ready", arguments.guests));
        go_on(stop)
    })?;
    engine.hold(&fleet)?;
    fleet.start_work()?;
    let settled = Instant::now() + SETTLE;
    while Instant::now() < settled {
        let left = settled.saturating_duration_since(Instant::now());
        screen.phase(&format!("their programs fill their memory: {:.0} s", left.as_secs_f64()));
        go_on(stop)?;
        std::thread::sleep(SAMPLE_INTERVAL.min(left));
    }
    let pss_before = fleet.memory()?;
    let used_before = used_since(idle)?;
    let samples = watch(&mut engine, &fleet, &screen, stop)?;
    engine.rest()?;
    let report = EngineReport {
        engine: engine.name(),
        used_before,
        used_after: used_since(idle)?,
        guests: fleet.report(&pss_before, &engine)?,
        samples,
        ksm_was_switched: engine.ksm_was_switched()?,
    };
    screen.done(&report);
    fleet.end();
    Ok(report)
}

/// Merges until nothing more is found.
fn watch(
    engine: &mut impl Engine,
    fleet: &Fleet,
    screen: &Screen,
    stop: &AtomicBool,
) -> Result<Vec<Sample>> {
    let before = sum_pss(fleet.pids().chain(engine.own_pids()))?;
    let cpu_before = engine.cpu_time()?;
    engine.begin(fleet)?;
    let start = Instant::now();
    let mut samples = vec![Sample { time: Duration::ZERO, pss: before, cpu: Duration::ZERO }];
    while start.elapsed() < WATCH_LIMIT && !converged(&samples) {
        std::thread::sleep(SAMPLE_INTERVAL);
        go_on(stop)?;
        let sample = Sample {
            time: start.elapsed(),
            pss: sum_pss(fleet.pids().chain(engine.own_pids()))?,
            cpu: engine.cpu_time()?.saturating_sub(cpu_before),
        };
        screen.sample(before, &sample);
        samples.push(sample);
    }
    Ok(samples)
}

fn converged(samples: &[Sample]) -> bool {
    let Some(last) = samples.last() else { return false };
    let Some(earlier) = samples.iter().rev().find(|sample| last.time - sample.time >= QUIET) else {
        return false;
    };
    let gained = earlier.pss.0.saturating_sub(last.pss.0);
    (gained as f64) < GAIN * samples[0].pss.0 as f64
}

fn used_since(idle: ByteCount) -> Result<ByteCount> {
    let used = MemorySnapshot::take().context("reading the machine's memory")?.used();
    Ok(ByteCount(used.0.saturating_sub(idle.0)))
}

fn go_on(stop: &AtomicBool) -> Result<()> {
    // Relaxed: the flag stands for itself.
    if stop.load(Ordering::Relaxed) {
        bail!("stopped; everything that was started has ended");
    }
    Ok(())
}
