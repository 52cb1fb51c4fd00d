//! `bindery-bench page`.

use anyhow::Result;
use bindery_bench::page::{Options, Report, run};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

impl PageArgs {
    pub(super) fn run(&self) -> Result<Report> {
        run(&Options { rounds: self.rounds, ..Options::default() })
    }
}
