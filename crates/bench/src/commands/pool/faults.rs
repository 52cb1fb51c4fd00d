//! `bindery-bench pool faults`.

use std::path::PathBuf;

use bindery_bench::pool::faults::Options;
use clap::Args;

use super::device::PlayedDeviceArgs;

#[derive(Debug, Args)]
pub(in crate::commands) struct PoolFaultsArgs {
    /// Where the pool's file is made; it is removed at the end
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    #[command(flatten)]
    device: PlayedDeviceArgs,
    /// How many objects there are
    #[arg(long, default_value_t = 512)]
    objects: usize,
    /// How long each is, in KiB
    #[arg(long, default_value_t = 2048)]
    object_kib: u64,
    /// Objects of one map
    #[arg(long, default_value_t = 100)]
    collection: usize,
    /// Numbers of threads that fault at once
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    threads: Vec<usize>,
    /// Cold faults in each round, of all threads together
    #[arg(long, default_value_t = 20_000)]
    faults: usize,
    /// Touches of what is in memory, in each round
    #[arg(long, default_value_t = 2_000_000)]
    hits: usize,
    /// How much memory those touches are in, in MiB
    #[arg(long, default_value_t = 256)]
    hits_mib: u64,
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl PoolFaultsArgs {
    pub(super) fn options(&self) -> Options {
        Options {
            directory: self.directory.clone(),
            device: self.device.rates(),
            objects: self.objects,
            object_kib: self.object_kib,
            collection: self.collection,
            threads: self.threads.clone(),
            faults: self.faults,
            hits: self.hits,
            hits_mib: self.hits_mib,
            rounds: self.rounds,
        }
    }
}
