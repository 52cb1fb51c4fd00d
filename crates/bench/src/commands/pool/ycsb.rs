//! `bindery-bench pool ycsb`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use bindery_bench::pool::ycsb::{self, Engine, Options, Report};
use clap::Args;

use super::device::DeviceArgs;

#[derive(Debug, Args)]
pub(in crate::commands) struct YcsbArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Who takes part
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "mmap,random,maps,reaper,redb,fjall,rocksdb"
    )]
    engines: Vec<Engine>,
    /// Memory of each, page cache included, in MiB
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    memory_mib: u64,
    /// How many times as much data there is
    #[arg(long, default_value_t = 3.0)]
    data_to_memory: f64,
    /// Threads that ask
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// How long each workload runs before it is measured, in seconds
    #[arg(long, default_value_t = 10)]
    warm_up: u64,
    /// How long each workload is measured, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    duration: u64,
    /// Ask each for so many requests a second, the same of all, instead of as many as it answers
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    target_ops: Option<u64>,
    /// Updates write all ten fields of a record (YCSB's writeallfields), instead of reading it and writing
    /// one
    #[arg(long)]
    write_all_fields: bool,
    /// One more thread reads all records in the order of their keys, again and again
    #[arg(long)]
    scan: bool,
    /// Size of a table of the example store, in KiB
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    table_kib: u64,
    #[command(flatten)]
    device: DeviceArgs,
    /// How much the kernel reads around a page that is not in memory, in KiB; put back afterwards
    #[arg(long, default_value_t = 128)]
    read_ahead_kib: u64,
    /// Where the stores lie while they are measured
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// The program with the other stores [default: rivals/release/bindery-rivals beside this one's
    /// directory, where `cargo xtask rivals` puts it]
    #[arg(long)]
    rivals: Option<PathBuf>,
}

impl YcsbArgs {
    pub(super) fn run(&self) -> Result<Report> {
        ycsb::run(&self.options()?)
    }

    fn options(&self) -> Result<Options> {
        let program = std::env::current_exe().context("finding this program")?;
        let beside =
            program.ancestors().nth(2).map(|target| target.join("rivals/release/bindery-rivals"));
        Ok(Options {
            rounds: self.rounds,
            engines: self.engines.clone(),
            memory_mib: self.memory_mib,
            data_to_memory: self.data_to_memory,
            threads: self.threads,
            warm_up: Duration::from_secs(self.warm_up),
            duration: Duration::from_secs(self.duration),
            target_per_s: self.target_ops.map(|target| target as f64),
            write_all_fields: self.write_all_fields,
            scan: self.scan,
            table_bytes: self.table_kib << 10,
            device_rate: self.device.rate(),
            device_latency: self.device.latency(),
            read_ahead_kib: self.read_ahead_kib,
            directory: self.directory.clone(),
            rivals: self.rivals.clone().or(beside).unwrap_or_default(),
        })
    }
}

#[derive(Debug, Args)]
pub(in crate::commands) struct StoreProcessArgs {
    /// What to do, as JSON
    task: String,
    /// Size of a table, in KiB
    #[arg(long)]
    table_kib: u64,
}

impl StoreProcessArgs {
    pub(super) fn run(&self) -> Result<()> {
        let task = serde_json::from_str(&self.task).context("reading the task")?;
        // Who measures may put this process into a control group before its input ends.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
            .context("waiting for the start")?;
        let figures = ycsb::perform(&task, self.table_kib << 10)?;
        println!("{}", serde_json::to_string(&figures).context("writing figures")?);
        Ok(())
    }
}
