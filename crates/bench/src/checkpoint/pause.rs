//! Pauses of a guest for its checkpoints, and the time until those are durable.
//!
//! For each size of RAM two guests with the same random data run beside each other: one under the daemon, one
//! that QEMU saves by its own ways. In each turn a guest is saved twice: when nothing was written since it was last
//! saved, and when some of its memory was. *Durable* is the time from the request until everything is synced: of
//! Bindery's command from its start to its end, of QEMU until its file is synced. *Pauses* counts the short ones in
//! which memory is taken while the guest runs on; the longest one is shown, and the sum.
//!
//! Bindery saves what has changed. Its first checkpoint, of which the pool has nothing, is measured too.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bindery_testkit::guest::{AioMode, CacheMode, Drive, QemuGuest};
use serde::Serialize;

use super::monitor::{Pauses, take_pauses};
use super::own_ways::OwnWay;
use super::stage::{Stage, boot, dirty, fill};
use super::{Common, written};
use crate::harness::{Bar, Measured, SampleSet, Table, take_turns};

/// Guests and how they are saved.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of all parts.
    pub common: Common,
    /// Sizes of a guest's RAM, in MiB.
    pub ram_mib: Vec<u32>,
    /// Random data in the guest's memory, in MiB.
    pub random_mib: u32,
    /// Memory that is written before every second checkpoint, in MiB.
    pub dirty_mib: u32,
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
    /// Memory that was written before every second checkpoint, in MiB.
    pub dirty_mib: u32,
    /// Figures by the size of RAM.
    pub sizes: Vec<OfRam>,
    /// Bars.
    pub bars: Vec<Bar>,
}

/// Name of the guest under the daemon.
const GUEST: &str = "bench";

const IDLE: [&str; 5] =
    ["idle: longest pause", "idle: all pauses", "idle: pauses", "idle: durable", "idle: written"];
const DIRTY: [&str; 5] = [
    "dirty: longest pause",
    "dirty: all pauses",
    "dirty: pauses",
    "dirty: durable",
    "dirty: written",
];

/// Longest pauses of an idle guest and of one that has written 57 MiB, in milliseconds.
const IDLE_PAUSE: f64 = 6.0;
const DIRTY_PAUSE: f64 = 15.0;

/// Most that a pause may grow with each GiB of RAM, in milliseconds.
const PER_GIB: f64 = 0.6;

/// A way to save a guest.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Bindery, with an earlier checkpoint to go on from.
    Next,
    /// Bindery, with none.
    First,
    Own(OwnWay),
}

impl Way {
    fn all() -> Vec<Self> {
        let own = OwnWay::ALL.map(Self::Own);
        [Self::Next, Self::First].into_iter().chain(own).collect()
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Next => "Bindery",
            Self::First => "Bindery, first",
            Self::Own(way) => way.name(),
        }
    }
}

/// Measures.
///
/// # Errors
/// If the guests' kit is incomplete, a guest or the daemon cannot be started, or one cannot be saved.
pub fn run(options: &Options) -> Result<Report> {
    let Options { random_mib, dirty_mib, .. } = *options;
    let mut sizes = Vec::new();
    for &ram_mib in &options.ram_mib {
        let needed = random_mib + dirty_mib + 256;
        ensure!(ram_mib >= needed, "a guest of {ram_mib} MiB has no room: {needed} are needed");
        sizes.push(OfRam { ram_mib, ways: measure(options, ram_mib)? });
    }
    let bars = bars(&sizes);
    Ok(Report { random_mib, dirty_mib, sizes, bars })
}

fn measure(options: &Options, ram_mib: u32) -> Result<Vec<SampleSet>> {
    let mut pair = Pair::boot(options, ram_mib)?;
    // What the next one goes on from.
    pair.save(Way::First)?;
    let ways = Way::all();
    let names: Vec<String> = ways.iter().map(|way| way.name().to_owned()).collect();
    let title = format!("pauses of a guest of {ram_mib} MiB");
    let samples = take_turns(&title, options.common.rounds, &names, |who| {
        let idle = pair.save(ways[who])?;
        dirty(pair.guest(ways[who]), options.dirty_mib)?;
        let dirtied = pair.save(ways[who])?;
        Ok(dirtied.figures(DIRTY, idle.figures(IDLE, Measured::default())))
    })?;
    pair.managed.shut_down();
    pair.plain.shut_down();
    Ok(samples)
}

/// Figures of one time that a guest was saved.
struct Saved {
    pauses: Pauses,
    durable: Duration,
    bytes: Option<u64>,
}

impl Saved {
    fn figures(&self, names: [&'static str; 5], measured: Measured) -> Measured {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        measured
            .and(names[0], "ms", ms(self.pauses.longest))
            .and(names[1], "ms", ms(self.pauses.sum))
            .and(names[2], "", f64::from(self.pauses.count))
            .and(names[3], "ms", ms(self.durable))
            .and(names[4], "MiB", written(self.bytes))
    }
}

/// A guest under the daemon, and one that is not.
struct Pair {
    managed: QemuGuest,
    plain: QemuGuest,
    checkpoints: u32,
    file: PathBuf,
    // Ends after the guests.
    stage: Stage,
}

impl Pair {
    fn boot(options: &Options, ram_mib: u32) -> Result<Self> {
        let each = u64::from(options.random_mib + options.dirty_mib + 256);
        let rounds = options.common.rounds as u64;
        let pool_mib = 3 * each + 2 * rounds * u64::from(options.dirty_mib) + 1024;
        let stage = Stage::new(&options.common, pool_mib)?;
        let mut guests = Vec::new();
        for (name, builder) in
            [("managed", stage.managed(GUEST, ram_mib)), ("plain", stage.plain(ram_mib))]
        {
            let path = stage.qcow2(&format!("{name}.qcow2"), 256)?;
            let (cache, aio) = (CacheMode::Writeback, AioMode::Threads);
            let mut guest = boot(builder.drive(Drive { path, format: "qcow2", cache, aio }))?;
            fill(&mut guest, options.random_mib, options.dirty_mib)?;
            guest.qmp()?.take_events()?;
            guests.push(guest);
        }
        let [managed, plain] = <[_; 2]>::try_from(guests).ok().context("two guests were made")?;
        let file = stage.path("saved");
        Ok(Self { managed, plain, checkpoints: 0, file, stage })
    }

    const fn guest(&mut self, way: Way) -> &mut QemuGuest {
        match way {
            Way::Own(_) => &mut self.plain,
            Way::Next | Way::First => &mut self.managed,
        }
    }

    fn save(&mut self, way: Way) -> Result<Saved> {
        let (durable, bytes) = match way {
            Way::Own(own) => own.save(self.plain.qmp()?, &self.file)?,
            Way::First => {
                if self.checkpoints > 0 {
                    self.stage.delete_all(GUEST)?;
                }
                self.checkpoint()?
            }
            Way::Next => self.checkpoint()?,
        };
        let pauses = take_pauses(self.guest(way).qmp()?)?;
        Ok(Saved { pauses, durable, bytes })
    }

    fn checkpoint(&mut self) -> Result<(Duration, Option<u64>)> {
        self.checkpoints += 1;
        let (took, created) = self.stage.checkpoint(GUEST, &format!("c{}", self.checkpoints))?;
        Ok((took, Some(created.checkpoint.written_bytes)))
    }
}

fn bars(sizes: &[OfRam]) -> Vec<Bar> {
    let median = |size: &OfRam, figure: &str| {
        size.ways[0].figure(figure).map_or(f64::NAN, |samples| samples.median)
    };
    let mut bars = Vec::new();
    for size in sizes {
        for (figure, wanted) in [(IDLE[0], IDLE_PAUSE), (DIRTY[0], DIRTY_PAUSE)] {
            let name = format!("{} MiB, {figure} (ms)", size.ram_mib);
            bars.push(Bar::at_most(name, median(size, figure), wanted));
        }
    }
    if let [first, .., last] = sizes {
        let gib = (f64::from(last.ram_mib) - f64::from(first.ram_mib)) / 1024.0;
        let growth = (median(last, IDLE[0]) - median(first, IDLE[0])) / gib;
        bars.push(Bar::at_most("idle: longest pause, more for each GiB (ms)", growth, PER_GIB));
    }
    bars
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for size in &self.sizes {
            let title = format!(
                "a guest of {} MiB, {} MiB of random data, {} MiB written for `dirty`",
                size.ram_mib, self.random_mib, self.dirty_mib
            );
            writeln!(f, "{}", Table::by_figure(title, &size.ways, 0))?;
        }
        Bar::table(&self.bars).fmt(f)
    }
}
