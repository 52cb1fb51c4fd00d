//! `bindery bench pool`.

mod ycsb;

use clap::Subcommand;

use self::ycsb::{StoreProcessArgs, YcsbArgs};
use super::show;
use crate::exit::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Read more than memory holds: a store on maps, with and without the reaper, beside other stores
    #[command(after_help = "\
Examples:
  cargo xtask rivals                                   builds the other stores
  bindery bench pool ycsb --rounds 1
  bindery bench pool ycsb --engines mmap,maps,reaper --memory-mib 512 --json
  bindery bench pool ycsb --device-mib-per-s 200 --device-requests-per-s 20000

Takes root, for control groups, and three times the data in free space.")]
    Ycsb(YcsbArgs),
    /// A store under a workload, for the benchmark
    #[command(hide = true)]
    StoreProcess(StoreProcessArgs),
}

impl PoolCommand {
    pub(super) fn run(&self, json: bool) -> Result<(), Failure> {
        match self {
            Self::Ycsb(arguments) => show(arguments.run(), json),
            Self::StoreProcess(arguments) => arguments.run(),
        }
    }
}
