//! `bindery-bench huge-process`: a program with huge pages, started by another benchmark.

use anyhow::Result;
use bindery_bench::huge::layout::{Hot, Layout};
use bindery_bench::huge::process;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct HugeProcessArgs {
    #[arg(long)]
    processes: u32,
    #[arg(long)]
    blocks: u32,
    #[arg(long)]
    share: u32,
    #[arg(long)]
    run: u32,
    #[arg(long)]
    hot: Hot,
    #[arg(long)]
    process: u32,
    #[arg(long)]
    offered: bool,
}

impl HugeProcessArgs {
    /// Holds the memory and answers on stdout until stdin ends.
    ///
    /// # Errors
    /// If memory cannot be had, or the pipes fail.
    pub(super) fn run(&self) -> Result<()> {
        process::run(&self.layout(), self.process, self.offered)
    }

    fn layout(&self) -> Layout {
        Layout {
            processes: self.processes,
            blocks: self.blocks,
            share_percent: self.share,
            run_pages: self.run,
            hot: self.hot,
        }
    }
}
