//! `bindery-bench pool replay`.

use bindery_bench::pool::replay::{Choice, Options, Trace};
use clap::Args;

#[derive(Debug, Args)]
pub(in crate::commands) struct PoolReplayArgs {
    /// Traces to replay
    #[arg(long, value_enum, value_delimiter = ',', default_value = "b,c,scan,moving")]
    traces: Vec<Trace>,
    /// Choices of pages
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "fifo,lru,s3-fifo,w-tinylfu,reaper,optimum"
    )]
    choices: Vec<Choice>,
    /// Records of the store
    #[arg(long, default_value_t = 1_500_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Part of the pages that memory holds, in percent
    #[arg(long, default_value_t = 33, value_parser = clap::value_parser!(u32).range(1..=100))]
    memory_percent: u32,
    /// Accesses of each trace, in millions
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    accesses_millions: u32,
}

impl PoolReplayArgs {
    pub(super) fn options(&self) -> Options {
        Options {
            traces: self.traces.clone(),
            choices: self.choices.clone(),
            records: self.records,
            memory: f64::from(self.memory_percent) / 100.0,
            accesses: self.accesses_millions as usize * 1_000_000,
        }
    }
}
