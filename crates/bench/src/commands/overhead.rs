//! `bindery-bench overhead`.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use bindery_bench::overhead::{self, Part};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct OverheadArgs {
    /// Parts to measure
    #[arg(long, value_delimiter = ',', default_value = "guests,accesses")]
    parts: Vec<Part>,
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many guests; one of them is measured
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=1000))]
    guests: u32,
    /// Memory of each guest, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(256..=65536))]
    memory_mib: u32,
    /// How long each loop runs, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    loop_seconds: u64,
    /// Bindery's workers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Bindery's merge period, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    period_ms: u64,
}

impl OverheadArgs {
    pub(super) fn run(&self, bindery: &Path) -> Result<overhead::Report> {
        overhead::run(&self.options(bindery))
    }

    fn options(&self, bindery: &Path) -> overhead::Options {
        overhead::Options {
            parts: self.parts.clone(),
            rounds: self.rounds,
            guests: self.guests,
            memory_mib: self.memory_mib,
            loop_time: Duration::from_secs(self.loop_seconds),
            workers: self.workers,
            period: Duration::from_millis(self.period_ms),
            program: bindery.to_owned(),
        }
    }
}
