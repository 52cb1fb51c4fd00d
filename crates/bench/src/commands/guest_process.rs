//! `bindery-bench guest-process`: a process with memory to merge, started by other benchmarks.

use anyhow::{Result, anyhow};
use bindery_bench::merge::dataset::{Content, Dataset};
use bindery_bench::merge::process;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct GuestProcessArgs {
    #[arg(long)]
    content: Content,
    #[arg(long)]
    pages: u32,
    #[arg(long)]
    extent_pages: u32,
    #[arg(long)]
    processes: u32,
    #[arg(long)]
    process: u32,
}

impl GuestProcessArgs {
    /// Holds the memory and answers on stdout until stdin ends.
    ///
    /// # Errors
    /// If memory cannot be had, or the pipes fail.
    pub(super) fn run(&self) -> Result<()> {
        process::run(&self.dataset(), self.process).map_err(|error| anyhow!("{error}"))
    }

    fn dataset(&self) -> Dataset {
        Dataset {
            content: self.content,
            pages: self.pages,
            extent_pages: self.extent_pages,
            processes: self.processes,
        }
    }
}
