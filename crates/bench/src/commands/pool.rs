//! `bindery-bench pool`.

mod device;
mod faults;
mod replay;
mod transfers;
mod vma;
mod ycsb;

use anyhow::Result;
use bindery_bench::pool::faults::run as fault;
use bindery_bench::pool::replay::run as replay;
use bindery_bench::pool::vma::run as map_objects;
use clap::Subcommand;

use self::faults::PoolFaultsArgs;
use self::replay::PoolReplayArgs;
use self::transfers::{PoolReadArgs, PoolWriteArgs};
use self::vma::PoolVmaArgs;
use self::ycsb::{StoreProcessArgs, YcsbArgs};
use super::Outcome;

#[derive(Debug, Subcommand)]
pub(in crate::commands) enum PoolCommand {
    /// Sequential writes of 1 MiB, synced at the end, and objects, beside the bare file
    #[command(after_help = "\
Examples:
  bindery-bench pool write --directory /srv/pool
  bindery-bench pool write --file-mib 4096 --depths 8,32 --json
  bindery-bench pool write --file-mib 256 --device-latency-us 80 --device-mib-per-s 500 \
    --device-requests-per-s 90000")]
    Write(PoolWriteArgs),
    /// Random reads of 4 KiB, of devices and of objects, beside the bare file
    #[command(after_help = "\
Examples:
  bindery-bench pool read --directory /srv/pool
  bindery-bench pool read --file-mib 16384 --reads 100000 --json

Files that fit in the memory of what is behind the device show the way to it, not the device.")]
    Read(PoolReadArgs),
    /// Touch cold pages of maps, beside reads past the page cache; and pages that are there
    #[command(after_help = "\
Examples:
  bindery-bench pool faults --directory /srv/pool
  bindery-bench pool faults --threads 1,2,4,16 --faults 100000 --json
  bindery-bench pool faults --objects 100 --object-kib 128 --rounds 1
  bindery-bench pool faults --device-latency-us 80 --device-mib-per-s 500 \
    --device-requests-per-s 90000

Evicts the pages of its own file only. Takes three times --hits-mib of memory.")]
    Faults(PoolFaultsArgs),
    /// Map objects each by itself, beside maps of collections
    #[command(after_help = "\
Examples:
  bindery-bench pool vma --objects 1000 --rounds 1
  bindery-bench pool vma --directory /srv/pool --json

Reads /proc/slabinfo: run it as root. Makes as many small files as objects.")]
    Vma(PoolVmaArgs),
    /// Read more than memory holds: a store on maps, with and without the reaper, beside other stores
    #[command(after_help = "\
Examples:
  cargo xtask rivals                                   builds the other stores
  bindery-bench pool ycsb --rounds 1
  bindery-bench pool ycsb --engines mmap,maps,reaper --memory-mib 512 --json
  bindery-bench pool ycsb --device-mib-per-s 200 --device-requests-per-s 20000

Without --device-latency-us the device below is held to the rate, each way, by a control group. That lets
requests pass in bursts, and then makes whoever comes wait for up to 100 ms.

Takes root, for control groups, and three times the data in free space.")]
    Ycsb(YcsbArgs),
    /// Replay accesses to pages against the reaper's choice, beside other choices and the optimum
    #[command(after_help = "\
Examples:
  bindery-bench pool replay
  bindery-bench pool replay --traces scan,moving --choices fifo,reaper,optimum --json

Takes no device and no memory to speak of: pages are numbers here.")]
    Replay(PoolReplayArgs),
    /// A store under a workload, for the benchmark
    #[command(hide = true)]
    StoreProcess(StoreProcessArgs),
}

impl PoolCommand {
    /// Measures; a store's process has no outcome of its own.
    pub(super) fn run(&self) -> Result<Option<Outcome>> {
        match self {
            Self::Write(arguments) => Outcome::of(&arguments.run()?),
            Self::Read(arguments) => Outcome::of(&arguments.run()?),
            Self::Faults(arguments) => Outcome::of(&fault(&arguments.options())?),
            Self::Vma(arguments) => Outcome::of(&map_objects(&arguments.options())?),
            Self::Ycsb(arguments) => Outcome::of(&arguments.run()?),
            Self::Replay(arguments) => Outcome::of(&replay(&arguments.options())?),
            Self::StoreProcess(arguments) => return arguments.run().map(|()| None),
        }
        .map(Some)
    }
}
