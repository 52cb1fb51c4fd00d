//! `bindery-bench merge`.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use bindery_bench::merge::{self, dataset::Content};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many processes
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=1000))]
    processes: u32,
    /// Memory of each process, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    process_mib: u32,
    /// Mean lengths of the runs in which duplicates come, in pages: 1 scatters them
    #[arg(long, value_delimiter = ',', default_value = "64",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    extent_pages: Vec<u32>,
    /// Worker counts to compare
    #[arg(long, value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Vec<u32>,
    /// PageONE's data sets
    #[arg(long, value_delimiter = ',', default_value = "easy,zero-prefix")]
    content: Vec<Content>,
    /// Bindery's merge period, in milliseconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    period_ms: u64,
}

impl MergeArgs {
    pub(super) fn run(&self, bindery: &Path) -> Result<merge::Report> {
        merge::run(&self.options(bindery))
    }

    fn options(&self, bindery: &Path) -> merge::Options {
        merge::Options {
            rounds: self.rounds,
            processes: self.processes,
            process_mib: self.process_mib,
            extent_pages: self.extent_pages.clone(),
            workers: self.workers.clone(),
            contents: self.content.clone(),
            period: Duration::from_millis(self.period_ms),
            program: bindery.to_owned(),
        }
    }
}
