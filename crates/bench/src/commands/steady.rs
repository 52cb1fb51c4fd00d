//! `bindery-bench steady`.

use std::path::Path;

use anyhow::Result;
use bindery_bench::steady;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct SteadyArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many processes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1000))]
    processes: u32,
    /// Memory of each process, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    process_mib: u32,
    /// Full scans measured in each round
    #[arg(long, default_value_t = 20)]
    scans: u64,
}

impl SteadyArgs {
    pub(super) fn run(&self, bindery: &Path) -> Result<steady::Report> {
        steady::run(&self.options(bindery))
    }

    fn options(&self, bindery: &Path) -> steady::Options {
        steady::Options {
            rounds: self.rounds,
            processes: self.processes,
            process_mib: self.process_mib,
            scans: self.scans,
            program: bindery.to_owned(),
        }
    }
}
