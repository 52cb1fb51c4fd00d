//! Guests that go on from one checkpoint, beside emulators that wait.
//!
//! In a turn of Bindery's, clones are started and left alone until their memory no longer shrinks. The other turn
//! starts as many QEMUs, paused before their first instruction, one after the other until each answers: what QEMU takes
//! without any guest. The memory that counts is the whole machine's above what it used before, the checkpoint's
//! pages and the daemon's tables included.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bindery_testkit::clones::Clones;
use bindery_testkit::guest::{Qemu, QemuGuest};
use bindery_testkit::machine::{MemorySnapshot, ProcessMemory, sum_pss};
use bindery_units::ByteCount;
use serde::Serialize;

use super::Common;
use super::stage::{Stage, boot, fill};
use crate::harness::{Bar, Measured, SampleSet, Table, take_turns};
use crate::interrupt;

/// Clones to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of all parts.
    pub common: Common,
    /// Number of clones.
    pub count: u32,
    /// RAM of each, in MiB.
    pub memory_mib: u32,
    /// Random data in the memory of each, in MiB.
    pub random_mib: u32,
    /// Time after which memory that still shrinks is measured as it is.
    pub settle_limit: Duration,
}

/// Figures.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Number of clones.
    pub count: u32,
    /// RAM of each, in MiB.
    pub memory_mib: u32,
    /// Pss of the guest that they are clones of, before its checkpoint, in MiB.
    pub source_mib: f64,
    /// Clones, then emulators without a guest.
    pub samples: Vec<SampleSet>,
    /// Bars.
    pub bars: Vec<Bar>,
}

const GUEST: &str = "bench";
const CHECKPOINT: &str = "bench@saved";

const RATE: &str = "started";
const EACH: &str = "Pss of each, settled";
const ALL: &str = "memory of the machine, settled";

/// Memory is settled when it shrank by less than this share for so long.
const SHRINKING: f64 = 0.005;
const QUIET: Duration = Duration::from_secs(4);

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Most memory of idle clones, in times that of one guest, QEMU's own left out.
const MEMORY: f64 = 2.0;

/// Measures.
///
/// # Errors
/// If the guests' kit is incomplete, or the guest, the daemon or a clone cannot be started.
pub fn run(options: &Options) -> Result<Report> {
    interrupt::catch()?;
    let Options { count, memory_mib, .. } = *options;
    let stage = Stage::new(&options.common, 2 * u64::from(memory_mib) + 1024)?;
    let mut guest = boot(stage.managed(GUEST, memory_mib))?;
    fill(&mut guest, options.random_mib, 0)?;
    let source = ProcessMemory::of(guest.pid().context("the guest has no pid")?)?.pss.mib();
    stage.checkpoint(GUEST, "saved")?;
    guest.shut_down();
    let names = ["Bindery, clones".to_owned(), "QEMU, waiting".to_owned()];
    let samples = take_turns("clones", options.common.rounds, &names, |who| match who {
        0 => clones(&stage, options),
        _ => emulators(&stage, options),
    })?;
    let bars = bars(&samples, source, count);
    Ok(Report { count, memory_mib, source_mib: source, samples, bars })
}

fn clones(stage: &Stage, options: &Options) -> Result<Measured> {
    let before = used()?;
    let peak = Peak::default();
    thread::scope(|scope| {
        scope.spawn(|| peak.watch());
        let _ended = peak.ended_when_dropped();
        let start = Instant::now();
        let of = (&stage.kit, Qemu::V10);
        let clones = Clones::start(&stage.daemon, of, CHECKPOINT, options.count)?;
        let took = start.elapsed();
        settle(clones.pids(), options.settle_limit)?;
        measured(clones.pids(), took, before, &peak)
    })
}

fn emulators(stage: &Stage, options: &Options) -> Result<Measured> {
    let before = used()?;
    let peak = Peak::default();
    thread::scope(|scope| {
        scope.spawn(|| peak.watch());
        let _ended = peak.ended_when_dropped();
        let start = Instant::now();
        let mut guests: Vec<QemuGuest> = Vec::new();
        for _ in 0..options.count {
            let mut guest = stage.plain(options.memory_mib).args(["-S"]).spawn()?;
            while guest.qmp().is_err() {
                ensure!(guest.is_running(), "QEMU has ended: {}", guest.log());
                interrupt::rest(Duration::from_millis(1))?;
            }
            guests.push(guest);
        }
        let took = start.elapsed();
        let pids: Vec<u32> = guests.iter().filter_map(QemuGuest::pid).collect();
        settle(&pids, options.settle_limit)?;
        let measured = measured(&pids, took, before, &peak);
        guests.into_iter().for_each(QemuGuest::shut_down);
        measured
    })
}

fn measured(pids: &[u32], took: Duration, before: ByteCount, peak: &Peak) -> Result<Measured> {
    let count = pids.len() as f64;
    let above = |bytes: u64| ByteCount(bytes.saturating_sub(before.0)).mib();
    let each = sum_pss(pids.iter().copied())?.mib() / count;
    let all = MemorySnapshot::take_settled()?.used();
    // Relaxed: a figure that stands for itself.
    let most = peak.bytes.load(Ordering::Relaxed).max(all.0);
    Ok(Measured::new(RATE, "/s", count / took.as_secs_f64())
        .and(EACH, "MiB", each)
        .and(ALL, "MiB", above(all.0))
        .and("memory of the machine, peak", "MiB", above(most)))
}

fn used() -> Result<ByteCount> {
    Ok(MemorySnapshot::take_settled()?.used())
}

fn settle(pids: &[u32], limit: Duration) -> Result<()> {
    let start = Instant::now();
    let (mut since, mut level) = (start, f64::INFINITY);
    while start.elapsed() < limit && since.elapsed() < QUIET {
        interrupt::rest(LOOK_EVERY * 2)?;
        let now = sum_pss(pids.iter().copied())?.mib();
        if now < level * (1.0 - SHRINKING) {
            (since, level) = (Instant::now(), now);
        }
    }
    Ok(())
}

/// The most memory that the machine used.
#[derive(Default)]
struct Peak {
    bytes: AtomicU64,
    is_over: AtomicBool,
}

impl Peak {
    fn watch(&self) {
        // Relaxed, in all of this: figures and a flag that stand for themselves.
        while !self.is_over.load(Ordering::Relaxed) {
            if let Ok(snapshot) = MemorySnapshot::take() {
                self.bytes.fetch_max(snapshot.used().0, Ordering::Relaxed);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    const fn ended_when_dropped(&self) -> Watched<'_> {
        Watched(self)
    }
}

struct Watched<'p>(&'p Peak);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

fn bars(samples: &[SampleSet], source_mib: f64, count: u32) -> Vec<Bar> {
    let median = |who: usize, figure: &str| {
        samples.get(who).and_then(|set| set.figure(figure)).map_or(f64::NAN, |found| found.median)
    };
    let own = median(1, ALL);
    let guests = (median(0, ALL) - own) / source_mib;
    let rate = median(0, RATE) / median(1, RATE);
    vec![
        Bar::at_most(format!("{count} clones, QEMU's own left out, ÷ one guest"), guests, MEMORY),
        Bar::at_least("clones a second ÷ emulators a second", rate, 0.5),
    ]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!(
            "{} clones of a guest of {} MiB whose process took {:.0} MiB",
            self.count, self.memory_mib, self.source_mib
        );
        writeln!(f, "{}", Table::by_figure(title, &self.samples, 0))?;
        Bar::table(&self.bars).fmt(f)
    }
}
