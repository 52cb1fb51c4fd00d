//! `cargo xtask record-advisor`: what the kernel's own advisor does with real memory, for
//! `crates/advisor/traces`. The test of [`bindery_advisor::kernel`] replays it.
//!
//! KSM's settings are the whole machine's: they are under a guard, and as before at the end.

pub(crate) mod candidates;
mod start_up;
mod tracing;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bindery_advisor::kernel::Event;
use bindery_advisor::recorded::{Recording, Segment};
use bindery_advisor::{AdvisorSettings, Mode};
use bindery_sys::ksm::DIRECTORY;
use bindery_testkit::machine::{KsmGuard, KsmSettings, SettingGuard};
use serde::Serialize;

use candidates::Candidates;
use tracing::Events;

/// Where recordings belong.
const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/advisor/traces");

/// Options of the recorder.
#[derive(Debug, clap::Args)]
pub(crate) struct RecordArgs {
    /// Where to write the recordings
    #[arg(long, default_value = TRACES, value_name = "DIRECTORY")]
    into: PathBuf,
}

/// What one recording is made under, and how its memory goes: so many blocks for so many seconds.
struct Plan {
    name: &'static str,
    settings: AdvisorSettings,
    memory: &'static [(usize, u64)],
    /// Whether the advisor is switched on while a scan is under way.
    joins_late: bool,
}

const fn settings(target_s: u64, max_cpu: u64, min: u64, max: u64) -> AdvisorSettings {
    AdvisorSettings {
        mode: Mode::ScanTime,
        target_scan_time_s: target_s,
        max_cpu_percent: max_cpu,
        min_pages_to_scan: min,
        max_pages_to_scan: max,
    }
}

/// Several begin with almost no memory: what ksmd used in all its life counts as used in the first scan,
/// and the batch that comes of that is so small that a scan of much memory would take hours.
const PLANS: [Plan; 6] = [
    Plan {
        name: "a step up and down",
        settings: settings(1, 70, 500, 30_000),
        memory: &[(3, 10), (12, 12), (3, 10)],
        joins_late: false,
    },
    Plan {
        name: "growth, and a low ceiling",
        settings: settings(2, 20, 1_000, 30_000),
        memory: &[(0, 4), (2, 7), (4, 7), (8, 7), (12, 7)],
        joins_late: false,
    },
    Plan {
        name: "a ceiling below what the kernel allows at least",
        settings: settings(3, 5, 2_000, 30_000),
        memory: &[(0, 3), (8, 15), (2, 9)],
        joins_late: false,
    },
    Plan {
        name: "the largest batch is too small",
        settings: settings(1, 70, 800, 1_000),
        memory: &[(0, 3), (6, 15), (2, 8)],
        joins_late: false,
    },
    Plan {
        name: "memory that shrinks",
        settings: settings(2, 70, 4_000, 30_000),
        memory: &[(12, 10), (6, 8), (3, 8), (1, 8)],
        joins_late: false,
    },
    Plan {
        name: "switched on while a scan is under way",
        settings: settings(1, 70, 500, 30_000),
        memory: &[(4, 20)],
        joins_late: true,
    },
];

/// Records all plans and a start-up.
pub(crate) fn run(arguments: &RecordArgs) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching Ctrl-C")?;
    }
    let mode = std::fs::read_to_string(knob("advisor_mode"))
        .context("this kernel's KSM has no advisor: that needs Linux 6.8 and CONFIG_KSM")?;
    if !mode.contains("[none]") {
        bail!("KSM's own advisor is in use: write `none` to {DIRECTORY}/advisor_mode first");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    // Both guards are dropped after what they guard was used, the later one first: the kernel sets
    // pages_to_scan anew whenever one of the bounds is written, so that has to come back last.
    let ksm = KsmGuard::start(KsmSettings {
        sleep_millisecs: Some(20),
        pages_to_scan: Some(100),
        smart_scan: Some(false),
        use_zero_pages: None,
    })?;
    let mut segments = Vec::new();
    for plan in &PLANS {
        println!("{}", plan.name);
        segments.push(record(plan, &ksm, &stop)?);
    }
    println!("a start-up");
    let start_up = start_up::record(&release, &ksm, &stop)?;
    write(&arguments.into.join("start-up.json"), &start_up)?;
    write(&arguments.into.join("scan-time.json"), &Recording { kernel: release, segments })
}

fn record(plan: &Plan, ksm: &KsmGuard, stop: &AtomicBool) -> Result<Segment> {
    let events = Events::record()?;
    let mut memory = Candidates::start()?;
    memory.resize(plan.memory[0].0)?;
    begin_anew(ksm)?;
    let _knobs = [
        ("advisor_target_scan_time", plan.settings.target_scan_time_s),
        ("advisor_max_cpu", plan.settings.max_cpu_percent),
        ("advisor_min_pages_to_scan", plan.settings.min_pages_to_scan),
        ("advisor_max_pages_to_scan", plan.settings.max_pages_to_scan),
    ]
    .into_iter()
    .map(|(name, value)| SettingGuard::set(knob(name), value))
    .collect::<Result<Vec<_>, _>>()?;
    if plan.joins_late {
        std::fs::write(knob("pages_to_scan"), "100")?;
        ksm.resume()?;
        wait(Duration::from_secs(1), stop)?;
    }
    events.clear()?;
    let _mode = SettingGuard::set(knob("advisor_mode"), "scan-time")?;
    ksm.resume()?;
    for (blocks, seconds) in plan.memory {
        memory.resize(*blocks)?;
        wait(Duration::from_secs(*seconds), stop)?;
    }
    // The last event is complete before it is read: KSM stops only between batches.
    ksm.pause()?;
    let recorded: Vec<Event> = events.read()?;
    println!("    {} scans", recorded.len());
    Ok(Segment { name: plan.name.to_owned(), settings: plan.settings, events: recorded })
}

/// Has KSM forget what it knew: the next scan begins at the beginning.
fn begin_anew(ksm: &KsmGuard) -> Result<()> {
    std::fs::write(knob("run"), "2").context("having KSM unmerge")?;
    Ok(ksm.pause()?)
}

fn knob(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

fn wait(time: Duration, stop: &AtomicBool) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        // Relaxed: the flag stands for itself.
        if stop.load(Ordering::Relaxed) {
            bail!("stopped; KSM is as it was before");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}
