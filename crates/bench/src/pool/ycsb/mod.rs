//! `bindery-bench pool ycsb`: reading more than memory holds, with and without the reaper, beside other
//! stores.
//!
//! Every contender is a process of its own in a control group with the same memory, page cache included.
//! It is loaded, then asked for workload B and for workload C (Cooper et al., SoCC 2010); the page cache is
//! dropped before each. An update writes one field of ten, for which a store of keys and values must read the
//! record; or all of them at once, as HSE's binding for YCSB does, if so asked. None waits until an update is
//! durable. Five contenders are one store, the pool's example `tables`:
//!
//! * `mmap`: each object mapped by itself, with the kernel's default advice, and the kernel reclaims. A miss
//!   reads around itself as much as the device is set to: what Linux sets it to where nobody sets more is
//!   128 KiB, and that is what it is held to here;
//! * `random`: the same with `MADV_RANDOM`: a miss reads one page;
//! * `maps`: one mcache map a collection, which is advised so too, and the kernel reclaims;
//! * `reaper`: the same, and the reaper evicts the pages accessed least before the kernel must;
//! * `objects`: the same, and it evicts whole objects, as mpool's does.
//!
//! The others are redb, fjall and RocksDB (`cargo xtask rivals`). Each is given a third of the memory for
//! its own cache; the rest is page cache and what it needs besides.

mod contender;
mod report;
mod store;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use bindery_testkit::machine::{BlockDevice, DeviceRate};
use bindery_ycsb::{KEY_BYTES, VALUE_BYTES, Workload};

pub use self::contender::Engine;
use self::contender::Stage;
pub use self::report::{Course, Report};
pub use self::store::{Answered, Reaped, perform};
use super::medium::{Medium, Rates};
use crate::harness::ledger;
use crate::interrupt;

/// A played device's size, in terms of the data.
const MEDIUM_TO_DATA: u64 = 5;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Who takes part.
    pub engines: Vec<Engine>,
    /// Memory of each, page cache included, in MiB.
    pub memory_mib: u64,
    /// How many times as much data there is.
    pub data_to_memory: f64,
    /// Threads that ask.
    pub threads: u64,
    /// How long each workload runs before it is measured.
    pub warm_up: Duration,
    /// How long each workload is measured.
    pub duration: Duration,
    /// How many requests a second each is asked; as many as it answers, without.
    pub target_per_s: Option<f64>,
    /// Whether updates write all fields of a record, without reading it first.
    pub write_all_fields: bool,
    /// One more thread reads all records in the order of their keys.
    pub scan: bool,
    /// Bytes of a table of the example store.
    pub table_bytes: u64,
    /// What the device below gives, if it is to be held to a rate: MiB and requests a second.
    pub device_rate: Option<(u64, u64)>,
    /// Play a device of that rate which answers after this long, instead of holding the one below to it.
    pub device_latency: Option<Duration>,
    /// How much the kernel reads around a page that is not in memory, unless it is advised otherwise, in
    /// KiB.
    pub read_ahead_kib: u64,
    /// Where the stores lie.
    pub directory: PathBuf,
    /// The program with the other stores.
    pub rivals: PathBuf,
}

impl Options {
    fn memory_bytes(&self) -> u64 {
        self.memory_mib << 20
    }

    /// How many records make up the data.
    fn records(&self) -> u64 {
        let data_bytes = self.memory_bytes() as f64 * self.data_to_memory;
        (data_bytes / (KEY_BYTES + VALUE_BYTES) as f64) as u64
    }

    /// The rate that the device below is held to.
    fn device_rate(&self, device: BlockDevice) -> Option<DeviceRate> {
        let rate = self.device_rate.filter(|_| self.device_latency.is_none());
        rate.map(|(mib_per_s, requests_per_s)| DeviceRate {
            device,
            bytes_per_s: mib_per_s << 20,
            requests_per_s,
        })
    }
}

impl Options {
    /// A played device, if one is asked for, with room for what the stores write beside the data.
    fn medium(&self) -> Result<Option<Medium>> {
        let rates = Rates::of(self.device_rate, self.device_latency);
        let data_bytes = self.records() * (KEY_BYTES + VALUE_BYTES) as u64;
        let bytes = (MEDIUM_TO_DATA * data_bytes + (2 << 30)).next_multiple_of(1 << 20);
        Medium::create_for(&self.directory, bytes, rates)
    }
}

/// Measures.
///
/// # Errors
/// If no control group can be made, a contender fails, answers wrongly, or is not there.
pub fn run(options: &Options) -> Result<Report> {
    interrupt::catch()?;
    let mut courses = Vec::new();
    for round in 0..options.rounds {
        for turn in 0..options.engines.len() {
            let engine = options.engines[(round + turn) % options.engines.len()];
            if let Err(error) = run_workloads(engine, options, round, &mut courses) {
                courses.truncate(round * options.engines.len() * WORKLOADS.len());
                if round > 0 {
                    ledger::keep(&Report::of(options, courses));
                }
                return Err(interrupt::or_why(error));
            }
        }
    }
    Ok(Report::of(options, courses))
}

/// The workloads that each store is put under, in order.
const WORKLOADS: [Workload; 2] = [Workload::B, Workload::C];

fn run_workloads(
    engine: Engine,
    options: &Options,
    round: usize,
    courses: &mut Vec<Course>,
) -> Result<()> {
    let stage = Stage::load(engine, options)?;
    for workload in WORKLOADS {
        courses.push(stage.measure(workload, round)?);
        interrupt::check()?;
    }
    Ok(())
}
