//! `bindery-bench index`.

use anyhow::Result;
use bindery_bench::index::{self, Content};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct IndexArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Numbers of keys
    #[arg(long, value_delimiter = ',', default_value = "1000000",
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: Vec<u64>,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "1,2,4",
          value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: Vec<u64>,
    /// Data sets: PageONE's two, and pages that differ in their last word only
    #[arg(long, value_delimiter = ',', default_value = "easy,zero-prefix,last-word")]
    content: Vec<Content>,
    /// Operations of each phase after the keys are in; at most half as many as keys
    #[arg(long, default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    operations: u64,
}

impl IndexArgs {
    pub(super) fn run(&self) -> Result<index::Report> {
        index::run(&self.options())
    }

    fn options(&self) -> index::Options {
        index::Options {
            contents: self.content.clone(),
            keys: self.keys.clone(),
            threads: self.threads.clone(),
            rounds: self.rounds,
            operations: self.operations,
            ..index::Options::default()
        }
    }
}
