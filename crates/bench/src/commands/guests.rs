//! `bindery-bench guests`.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use bindery_bench::guests;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct GuestsArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Guests of one image
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=1000))]
    servers: u32,
    /// Guests of another image
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1000))]
    databases: u32,
    /// Memory of each guest, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(256..=65536))]
    memory_mib: u32,
    /// Bindery's workers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Bindery's merge period, in milliseconds
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    period_ms: u64,
}

impl GuestsArgs {
    pub(super) fn run(&self, bindery: &Path) -> Result<guests::Report> {
        guests::run(&self.options(bindery))
    }

    fn options(&self, bindery: &Path) -> guests::Options {
        guests::Options {
            rounds: self.rounds,
            servers: self.servers,
            databases: self.databases,
            memory_mib: self.memory_mib,
            workers: self.workers,
            period: Duration::from_millis(self.period_ms),
            program: bindery.to_owned(),
        }
    }
}
