//! `bindery bench`: the measurements behind every figure, beside their rivals.

mod pool;

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use bindery_bench::index::{self, Content as IndexContent};
use bindery_bench::merge::dataset::{Content, Dataset};
use bindery_bench::{advisor, dirty, guests, merge, overhead, page, steady};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::exit::{Failure, Reason};
use crate::output::{print, print_json};

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// The kernels over one page: zero, equal, digest
    Page(PageArgs),
    /// Find equal pages: the index, beside hash maps, a radix tree and a tree by memcmp
    #[command(after_help = "\
Examples:
  bindery bench index --rounds 1
  bindery bench index --keys 1000000,10000000 --threads 1,2,4 --json

Ten million keys take some 8 GiB and half an hour a round.")]
    Index(IndexArgs),
    /// Know which pages changed: the dirty tree, beside bitmaps, sets and a list
    #[command(after_help = "\
Examples:
  bindery bench dirty --rounds 1
  bindery bench dirty --pages 1000000 --dirty 100,10000,1000000 --json

Prints what a mark and a harvest cost at each density, and the bars that the tree is held to.")]
    Dirty(DirtyArgs),
    /// Merge PageONE's data sets, beside kernel KSM
    #[command(after_help = "\
Examples:
  bindery bench merge
  bindery bench merge --content zero-prefix --extent-pages 64,8,1 --workers 1,2 --json

Sets and restores KSM's settings: run it as root, on a machine where KSM does nothing else.")]
    Merge(MergeArgs),
    /// Keep merged memory that nobody writes, beside kernel KSM
    Steady(SteadyArgs),
    /// Merge real guests, beside kernel KSM
    #[command(after_help = "\
Examples:
  bindery bench guests --rounds 1
  bindery bench guests --servers 8 --databases 4 --memory-mib 512 --json

Boots QEMU guests from the kit that `cargo xtask setup` fetches, once for each contender and round.
Sets and restores KSM's settings: run it as root, on a machine that does nothing else.")]
    Guests(GuestsArgs),
    /// What guests lose while they are merged, beside kernel KSM and neither
    #[command(after_help = "\
Examples:
  bindery bench overhead --rounds 1 --parts accesses
  bindery bench overhead --guests 4 --loop-seconds 10 --json

Boots QEMU guests from the kit that `cargo xtask setup` fetches, once for each contender and round.
Sets and restores KSM's settings: run it as root, on a machine that does nothing else.")]
    Overhead(OverheadArgs),
    /// Pace scans: Bindery's advisor, on kernel KSM and on its own engine, beside the kernel's
    #[command(after_help = "\
Examples:
  bindery bench advisor --rounds 1
  bindery bench advisor --target-scan-time 10 --max-cpu 20 --json

Each contender goes through a start-up, a steady state with a quarter of its candidates, a fourfold
growth and a shrink of the same memory. The fixed rate is sized first, by trying, so that each scan of
the start-up is done in the target. Sets and restores KSM's settings: run it as root, on a machine where KSM does nothing
else.")]
    Advisor(AdvisorArgs),
    /// Objects and maps: writing, reading, mapping, and a store on them
    Pool {
        #[command(subcommand)]
        command: pool::PoolCommand,
    },
    /// A guest's process for the benchmarks
    #[command(hide = true)]
    GuestProcess(GuestProcessArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IndexContentName {
    Easy,
    ZeroPrefix,
    LastWord,
}

impl From<IndexContentName> for IndexContent {
    fn from(name: IndexContentName) -> Self {
        match name {
            IndexContentName::Easy => Self::Easy,
            IndexContentName::ZeroPrefix => Self::ZeroPrefix,
            IndexContentName::LastWord => Self::LastWord,
        }
    }
}

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
    content: Vec<IndexContentName>,
    /// Operations of each phase after the keys are in; at most half as many as keys
    #[arg(long, default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    operations: u64,
}

impl IndexArgs {
    fn options(&self) -> index::Options {
        index::Options {
            contents: self.content.iter().copied().map(IndexContent::from).collect(),
            keys: self.keys.clone(),
            threads: self.threads.clone(),
            rounds: self.rounds,
            operations: self.operations,
            ..index::Options::default()
        }
    }
}

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
    fn options(&self) -> dirty::Options {
        dirty::Options { pages: self.pages, dirty: self.dirty.clone(), rounds: self.rounds }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ContentName {
    Easy,
    ZeroPrefix,
}

impl From<ContentName> for Content {
    fn from(name: ContentName) -> Self {
        match name {
            ContentName::Easy => Self::Easy,
            ContentName::ZeroPrefix => Self::ZeroPrefix,
        }
    }
}

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
    content: Vec<ContentName>,
    /// Bindery's merge period, in milliseconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    period_ms: u64,
}

#[derive(Debug, Args)]
pub(crate) struct SteadyArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many processes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1000))]
    processes: u32,
    /// Memory of each process, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    process_mib: u32,
    /// Full scans measured in each round
    #[arg(long, default_value_t = 20)]
    scans: u64,
}

#[derive(Debug, Args)]
pub(crate) struct GuestsArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Guests of one image
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=1000))]
    servers: u32,
    /// Guests of another image
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1000))]
    databases: u32,
    /// Memory of each guest, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(256..=65536))]
    memory_mib: u32,
    /// Bindery's workers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Bindery's merge period, in milliseconds
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    period_ms: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PartName {
    /// A guest measures itself
    Guests,
    /// Plain processes time first writes to merged pages, and reads while pages are merged
    Accesses,
}

impl From<PartName> for overhead::Part {
    fn from(name: PartName) -> Self {
        match name {
            PartName::Guests => Self::Guests,
            PartName::Accesses => Self::Accesses,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct OverheadArgs {
    /// What to measure
    #[arg(long, value_delimiter = ',', default_value = "guests,accesses")]
    parts: Vec<PartName>,
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many guests; one of them is measured
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=1000))]
    guests: u32,
    /// Memory of each guest, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(256..=65536))]
    memory_mib: u32,
    /// How long each loop runs, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    loop_seconds: u64,
    /// Bindery's workers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Bindery's merge period, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    period_ms: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ContenderName {
    /// KSM at a rate fixed by hand
    Fixed,
    /// KSM, paced by the kernel
    Kernel,
    /// KSM, paced by `bindery ksm run`
    Pilot,
    /// Bindery
    Engine,
}

impl From<ContenderName> for advisor::Contender {
    fn from(name: ContenderName) -> Self {
        match name {
            ContenderName::Fixed => Self::Fixed,
            ContenderName::Kernel => Self::Kernel,
            ContenderName::Pilot => Self::Pilot,
            ContenderName::Engine => Self::Engine,
        }
    }
}

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
    /// Have KSM pass over pages that did not merge before (smart_scan)
    #[arg(long)]
    smart_scan: bool,
    /// Who takes part
    #[arg(long, value_delimiter = ',', default_value = "fixed,kernel,pilot,engine")]
    contenders: Vec<ContenderName>,
}

impl AdvisorArgs {
    fn options(&self) -> Result<advisor::Options, Failure> {
        Ok(advisor::Options {
            rounds: self.rounds,
            processes: self.processes,
            process_mib: self.process_mib,
            target_scan_time_s: self.target_scan_time,
            max_cpu_percent: self.max_cpu,
            phase_scans: self.phase_scans,
            smart_scan: self.smart_scan,
            contenders: self.contenders.iter().copied().map(Into::into).collect(),
            program: program()?,
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct GuestProcessArgs {
    #[arg(long)]
    content: ContentName,
    #[arg(long)]
    pages: u32,
    #[arg(long)]
    extent_pages: u32,
    #[arg(long)]
    processes: u32,
    #[arg(long)]
    process: u32,
}

pub(crate) fn run(command: &BenchCommand, json: bool) -> Result<(), Failure> {
    match command {
        BenchCommand::Page(arguments) => {
            let options = page::Options { rounds: arguments.rounds, ..page::Options::default() };
            show(page::run(&options), json)
        }
        BenchCommand::Index(arguments) => show(index::run(&arguments.options()), json),
        BenchCommand::Dirty(arguments) => show(dirty::run(&arguments.options()), json),
        BenchCommand::Merge(arguments) => show(merge::run(&arguments.options()?), json),
        BenchCommand::Steady(arguments) => show(steady::run(&arguments.options()?), json),
        BenchCommand::Guests(arguments) => show(guests::run(&arguments.options()?), json),
        BenchCommand::Overhead(arguments) => show(overhead::run(&arguments.options()?), json),
        BenchCommand::Advisor(arguments) => show(advisor::run(&arguments.options()?), json),
        BenchCommand::Pool { command } => command.run(json),
        BenchCommand::GuestProcess(arguments) => {
            merge::process::run(&arguments.dataset(), arguments.process).map_err(failed)
        }
    }
}

fn show<E: Display>(
    report: Result<impl Serialize + Display, E>,
    json: bool,
) -> Result<(), Failure> {
    let report = report.map_err(|error| failed(format!("{error:#}")))?;
    if json { print_json(&report) } else { print(|out| writeln!(out, "{report}")) }
}

fn failed(error: impl Display) -> Failure {
    Failure::new(Reason::Failed, format!("the measurement failed: {error}"))
}

/// Benchmarks start this program again, as daemon and as guests.
fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::of_io("cannot find this program", &error))
}

impl MergeArgs {
    fn options(&self) -> Result<merge::Options, Failure> {
        Ok(merge::Options {
            rounds: self.rounds,
            processes: self.processes,
            process_mib: self.process_mib,
            extent_pages: self.extent_pages.clone(),
            workers: self.workers.clone(),
            contents: self.content.iter().map(|&name| name.into()).collect(),
            period: Duration::from_millis(self.period_ms),
            program: program()?,
        })
    }
}

impl SteadyArgs {
    fn options(&self) -> Result<steady::Options, Failure> {
        Ok(steady::Options {
            rounds: self.rounds,
            processes: self.processes,
            process_mib: self.process_mib,
            scans: self.scans,
            program: program()?,
        })
    }
}

impl GuestsArgs {
    fn options(&self) -> Result<guests::Options, Failure> {
        Ok(guests::Options {
            rounds: self.rounds,
            servers: self.servers,
            databases: self.databases,
            memory_mib: self.memory_mib,
            workers: self.workers,
            period: Duration::from_millis(self.period_ms),
            program: program()?,
        })
    }
}

impl OverheadArgs {
    fn options(&self) -> Result<overhead::Options, Failure> {
        Ok(overhead::Options {
            parts: self.parts.iter().map(|&name| name.into()).collect(),
            rounds: self.rounds,
            guests: self.guests,
            memory_mib: self.memory_mib,
            loop_time: Duration::from_secs(self.loop_seconds),
            workers: self.workers,
            period: Duration::from_millis(self.period_ms),
            program: program()?,
        })
    }
}

impl GuestProcessArgs {
    fn dataset(&self) -> Dataset {
        Dataset {
            content: self.content.into(),
            pages: self.pages,
            extent_pages: self.extent_pages,
            processes: self.processes,
        }
    }
}
