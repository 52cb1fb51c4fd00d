//! `bindery-bench idle`.

use std::{path::Path, time::Duration};

use anyhow::Result;
use bindery_bench::idle;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct IdleArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Numbers of guests
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 1000], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    guests: Vec<u32>,
    /// Memory of each guest, in MiB
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    guest_mib: u32,
    /// Time for which they are watched, in seconds
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Bindery's merge period, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    period_ms: u64,
}

impl IdleArgs {
    pub(super) fn run(&self, bindery: &Path) -> Result<idle::Report> {
        idle::run(&self.options(bindery))
    }

    fn options(&self, bindery: &Path) -> idle::Options {
        idle::Options {
            rounds: self.rounds,
            guests: self.guests.clone(),
            guest_mib: self.guest_mib,
            time: Duration::from_secs(self.seconds),
            period: Duration::from_millis(self.period_ms),
            program: bindery.to_owned(),
        }
    }
}
