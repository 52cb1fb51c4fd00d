//! `bindery-bench huge`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bindery_bench::huge::layout::Hot;
use bindery_bench::huge::{self, Mode, Part};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct HugeArgs {
    /// Parts to measure
    #[arg(long, value_delimiter = ',', default_value = "plain,duplicates,guests,keeping")]
    parts: Vec<Part>,
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Bindery's ways with huge pages that take part
    #[arg(long, value_delimiter = ',', default_value = "keep,auto,break")]
    modes: Vec<Mode>,
    /// Memory of the program with nothing to merge, in MiB, rounded down to huge pages
    #[arg(long, default_value_t = 2048, value_parser = mib())]
    mib: u32,
    /// How many programs have duplicates
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=250))]
    processes: u32,
    /// Memory of each of them, in MiB, rounded down to huge pages
    #[arg(long, default_value_t = 512, value_parser = mib())]
    process_mib: u32,
    /// Shares of their pages that are duplicates, in percent
    #[arg(long, value_delimiter = ',', default_value = "5,25,50,100",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    shares: Vec<u32>,
    /// Lengths of the runs in which duplicates come, in pages: 1 scatters them, 512 fill huge pages
    #[arg(long, value_delimiter = ',', default_value = "1,64,512",
          value_parser = clap::value_parser!(u32).range(1..=512))]
    runs: Vec<u32>,
    /// Blocks of 2 MiB that are written each second
    #[arg(long, value_delimiter = ',', default_value = "none,half,all")]
    hot: Vec<Hot>,
    /// How long each kind of access is measured, in seconds
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    access_seconds: u64,
    /// When merging that still changes is measured as it is, in seconds
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(10..=3600))]
    settle_seconds: u64,
    /// How many guests
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=1000))]
    guests: u32,
    /// Memory of each guest, in MiB
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(256..=65536))]
    guest_mib: u32,
    /// How long the CPU time of keeping is measured, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3600))]
    keep_seconds: u64,
    /// Bindery's workers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Bindery's merge period, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    period_ms: u64,
    /// Draw what is saved against the time of an access, as an SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Memory that consists of blocks of 2 MiB.
fn mib() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(4..=1 << 20)
}

impl HugeArgs {
    pub(super) fn run(&self, bindery: &Path) -> Result<huge::Report> {
        huge::run(&self.options(bindery))
    }

    fn options(&self, bindery: &Path) -> huge::Options {
        huge::Options {
            parts: self.parts.clone(),
            rounds: self.rounds,
            modes: self.modes.clone(),
            blocks: self.mib / 2,
            processes: self.processes,
            process_blocks: self.process_mib / 2,
            shares: self.shares.clone(),
            runs: self.runs.clone(),
            hot: self.hot.clone(),
            access_time: Duration::from_secs(self.access_seconds),
            settle_limit: Duration::from_secs(self.settle_seconds),
            guests: self.guests,
            guest_mib: self.guest_mib,
            keep_time: Duration::from_secs(self.keep_seconds),
            workers: self.workers,
            period: Duration::from_millis(self.period_ms),
            plot: self.plot.clone(),
            program: bindery.to_owned(),
        }
    }
}
