//! Restores: from the start of a process until the guest gives a sign of life.
//!
//! A program in the guest checks its own memory and writes a line to the console every few milliseconds, with a
//! number that is nowhere but in its memory. The guest is saved and ended; then each way brings it back in turn. Files
//! are as the page cache has them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bindery_testkit::guest::QemuGuest;
use serde::Serialize;
use serde_json::json;

use super::own_ways::migrate_to;
use super::stage::{Stage, boot, fill};
use super::{Common, beats, monitor};
use crate::harness::{Bar, Measured, SampleSet, Table, take_turns};
use crate::interrupt;

/// Guests to restore.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of all parts.
    pub common: Common,
    /// Sizes of a guest's RAM, in MiB.
    pub ram_mib: Vec<u32>,
    /// Random data in the guest's memory, in MiB.
    pub random_mib: u32,
}

/// Figures of one size of RAM.
#[derive(Debug, Serialize)]
pub struct OfRam {
    /// Size of the guest's RAM, in MiB.
    pub ram_mib: u32,
    /// Figures of all ways, Bindery first.
    pub ways: Vec<SampleSet>,
}

/// Figures of all sizes.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Random data in the guest's memory, in MiB.
    pub random_mib: u32,
    /// Figures by the size of RAM.
    pub sizes: Vec<OfRam>,
    /// Bars.
    pub bars: Vec<Bar>,
}

const GUEST: &str = "bench";
const CHECKPOINT: &str = "bench@saved";

const LIFE: &str = "first sign of life";

/// Time of a restore, as a share of that of QEMU's fastest way.
const SHARE: f64 = 1.0 / 3.0;

/// Most time that QEMU may take to open its monitor.
const MONITOR_PATIENCE: Duration = Duration::from_secs(20);

/// A way to bring a guest back.
#[derive(Clone, Copy, Debug)]
enum Way {
    Bindery,
    /// A stream in a file.
    Stream,
    /// `mapped-ram`, read by one thread.
    MappedRam,
    /// `mapped-ram`, read by two channels of multifd.
    Multifd,
}

impl Way {
    const ALL: [Self; 4] = [Self::Bindery, Self::Stream, Self::MappedRam, Self::Multifd];

    const fn name(self) -> &'static str {
        match self {
            Self::Bindery => "Bindery",
            Self::Stream => "QEMU file:",
            Self::MappedRam => "QEMU mapped-ram",
            Self::Multifd => "QEMU mapped-ram, multifd, direct-io",
        }
    }

    const fn capabilities(self) -> &'static [&'static str] {
        match self {
            Self::Bindery | Self::Stream => &[],
            Self::MappedRam => &["mapped-ram"],
            Self::Multifd => &["mapped-ram", "multifd"],
        }
    }
}

/// Measures.
///
/// # Errors
/// If the guests' kit is incomplete, a guest or the daemon cannot be started, saved or restored, or a restored guest is
/// another than the saved one.
pub fn run(options: &Options) -> Result<Report> {
    let random_mib = options.random_mib;
    let mut sizes = Vec::new();
    for &ram_mib in &options.ram_mib {
        let needed = random_mib + 256;
        ensure!(ram_mib >= needed, "a guest of {ram_mib} MiB has no room: {needed} are needed");
        sizes.push(OfRam { ram_mib, ways: measure(options, ram_mib)? });
    }
    let bars = sizes.iter().flat_map(bars).collect();
    Ok(Report { random_mib, sizes, bars })
}

fn measure(options: &Options, ram_mib: u32) -> Result<Vec<SampleSet>> {
    let saved = Saved::new(options, ram_mib)?;
    let names: Vec<String> = Way::ALL.iter().map(|way| way.name().to_owned()).collect();
    let title = format!("restores of a guest of {ram_mib} MiB");
    take_turns(&title, options.common.rounds, &names, |who| saved.restore(Way::ALL[who]))
}

/// Guests that were saved and ended.
struct Saved {
    stage: Stage,
    ram_mib: u32,
    /// Numbers of the programs in the guest under the daemon, and in the one that QEMU saved.
    nonces: [String; 2],
}

impl Saved {
    fn new(options: &Options, ram_mib: u32) -> Result<Self> {
        let pool_mib = 2 * u64::from(options.random_mib) + 1024;
        let stage = Stage::new(&options.common, pool_mib)?;
        let mut guest = boot(stage.managed(GUEST, ram_mib))?;
        fill(&mut guest, options.random_mib, 0)?;
        let managed = beats::start(&mut guest)?;
        stage.checkpoint(GUEST, "saved")?;
        guest.shut_down();
        let mut guest = boot(stage.plain(ram_mib))?;
        fill(&mut guest, options.random_mib, 0)?;
        let plain = beats::start(&mut guest)?;
        let saved = Self { stage, ram_mib, nonces: [managed, plain] };
        saved.save_by_qemu(&mut guest)?;
        guest.shut_down();
        Ok(saved)
    }

    fn save_by_qemu(&self, guest: &mut QemuGuest) -> Result<()> {
        let qmp = guest.qmp()?;
        for way in [Way::Stream, Way::Multifd, Way::MappedRam] {
            monitor::set_capabilities(qmp, way.capabilities())?;
            qmp.execute("stop", &json!({}))?;
            migrate_to(qmp, &self.file(way))?;
            monitor::insist(qmp, "cont", &json!({}))?;
        }
        Ok(())
    }

    fn file(&self, way: Way) -> PathBuf {
        self.stage.path(&format!("{way:?}"))
    }

    fn restore(&self, way: Way) -> Result<Measured> {
        let start = Instant::now();
        let mut guest = match way {
            Way::Bindery => self.stage.restore(CHECKPOINT, "restored")?,
            own => incoming(&self.stage, self.ram_mib, own, &self.file(own))?,
        };
        let nonce = beats::await_first(&mut guest)?;
        let took = start.elapsed();
        let expected = &self.nonces[usize::from(!matches!(way, Way::Bindery))];
        ensure!(nonce == *expected, "another guest came back: {nonce}, not {expected}");
        guest.shut_down();
        Ok(Measured::new(LIFE, "ms", took.as_secs_f64() * 1e3))
    }
}

/// Starts a QEMU that loads a guest from a file.
fn incoming(stage: &Stage, ram_mib: u32, way: Way, file: &Path) -> Result<QemuGuest> {
    let mut guest = stage.plain(ram_mib).incoming("defer").spawn()?;
    let start = Instant::now();
    while guest.qmp().is_err() {
        ensure!(start.elapsed() < MONITOR_PATIENCE, "QEMU has no monitor: {}", guest.log());
        interrupt::rest(Duration::from_millis(1))?;
    }
    let qmp = guest.qmp()?;
    monitor::set_capabilities(qmp, way.capabilities())?;
    let uri = json!({ "uri": format!("file:{}", file.display()) });
    qmp.execute("migrate-incoming", &uri).context("loading the guest")?;
    monitor::await_migration(qmp)?;
    // It was stopped when it was saved.
    monitor::insist(qmp, "cont", &json!({}))?;
    Ok(guest)
}

fn bars(size: &OfRam) -> Option<Bar> {
    let of = |set: &SampleSet| set.figure(LIFE).map(|samples| samples.median);
    let (bindery, own) = size.ways.split_first()?;
    let best = own.iter().filter_map(of).fold(f64::INFINITY, f64::min);
    let name = format!("{} MiB, ÷ QEMU's fastest", size.ram_mib);
    Some(Bar::at_most(name, of(bindery)? / best, SHARE))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for size in &self.sizes {
            let title =
                format!("a guest of {} MiB, {} MiB of random data", size.ram_mib, self.random_mib);
            writeln!(f, "{}", Table::of_samples(title, &size.ways, 0))?;
        }
        Bar::table(&self.bars).fmt(f)
    }
}
