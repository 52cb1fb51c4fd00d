//! `bindery-bench advisor`.

use std::path::Path;

use anyhow::Result;
use bindery_bench::advisor::{self, Contender};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct AdvisorArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Processes that stay; three times as many more come and go
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=250))]
    processes: u32,
    /// Memory of each process, in MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    process_mib: u32,
    /// How long a scan should take, in seconds
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3600))]
    target_scan_time: u64,
    /// The ceiling, in percent of one CPU
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(10..=100))]
    max_cpu: u64,
    /// How long each phase is, in target scan times
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1000))]
    phase_scans: u32,
    /// Let KSM skip pages that did not merge before (smart_scan)
    #[arg(long)]
    smart_scan: bool,
    /// Who takes part
    #[arg(long, value_delimiter = ',', default_value = "fixed,kernel,pilot,engine")]
    contenders: Vec<Contender>,
}

impl AdvisorArgs {
    pub(super) fn run(&self, bindery: &Path) -> Result<advisor::Report> {
        advisor::run(&self.options(bindery))
    }

    fn options(&self, bindery: &Path) -> advisor::Options {
        advisor::Options {
            rounds: self.rounds,
            processes: self.processes,
            process_mib: self.process_mib,
            target_scan_time_s: self.target_scan_time,
            max_cpu_percent: self.max_cpu,
            phase_scans: self.phase_scans,
            smart_scan: self.smart_scan,
            contenders: self.contenders.clone(),
            program: bindery.to_owned(),
        }
    }
}
