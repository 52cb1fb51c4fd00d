//! `bindery-bench pool write` and `read`.

use std::path::PathBuf;

use anyhow::Result;
use bindery_bench::pool::transfers::{self, Options, Report, Work};
use clap::Args;

use super::device::PlayedDeviceArgs;

#[derive(Debug, Args)]
pub(in crate::commands) struct PoolArgs {
    /// Where files are made, one for each contender; they are removed at the end
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    #[command(flatten)]
    device: PlayedDeviceArgs,
    /// Length of each file, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    file_mib: u64,
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Debug, Args)]
pub(in crate::commands) struct PoolWriteArgs {
    #[command(flatten)]
    common: PoolArgs,
    /// Lengths of objects, in MiB
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    object_mib: Vec<u64>,
    /// Numbers of the bare file's writes under way at once; the pool's devices take the most
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    depths: Vec<usize>,
}

#[derive(Debug, Args)]
pub(in crate::commands) struct PoolReadArgs {
    #[command(flatten)]
    common: PoolArgs,
    /// Length of each object, in MiB
    #[arg(long, default_value_t = 32)]
    object_mib: u64,
    /// Numbers of reads under way at once
    #[arg(long, value_delimiter = ',', default_value = "1,2,8,32")]
    depths: Vec<usize>,
    /// Reads in each round
    #[arg(long, default_value_t = 20_000)]
    reads: usize,
}

impl PoolWriteArgs {
    pub(super) fn run(&self) -> Result<Report> {
        self.common.run(Work::Write, &self.object_mib, &self.depths, 1)
    }
}

impl PoolReadArgs {
    pub(super) fn run(&self) -> Result<Report> {
        self.common.run(Work::Read, &[self.object_mib], &self.depths, self.reads)
    }
}

impl PoolArgs {
    fn run(
        &self,
        work: Work,
        object_mib: &[u64],
        depths: &[usize],
        reads: usize,
    ) -> Result<Report> {
        let options = Options {
            work,
            directory: self.directory.clone(),
            device: self.device.rates(),
            file_mib: self.file_mib,
            object_mib: object_mib.to_vec(),
            depths: depths.to_vec(),
            reads,
            rounds: self.rounds,
        };
        transfers::run(&options)
    }
}
