//! `bindery-bench dirty`.

use anyhow::Result;
use bindery_bench::dirty;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct DirtyArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Pages of the guest
    #[arg(long, default_value_t = 10_000_000)]
    pages: u64,
    /// Numbers of dirty pages
    #[arg(long, value_delimiter = ',', default_value = "100,1000,10000,100000,1000000,10000000")]
    dirty: Vec<u64>,
}

impl DirtyArgs {
    pub(super) fn run(&self) -> Result<dirty::Report> {
        dirty::run(&self.options())
    }

    fn options(&self) -> dirty::Options {
        dirty::Options { pages: self.pages, dirty: self.dirty.clone(), rounds: self.rounds }
    }
}
