//! `bindery-bench checkpoint`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bindery_bench::checkpoint::{Common, clones, library, pause, restore, store, working};
use clap::{Args, Subcommand};

use super::Outcome;

/// Parts of the measurement, each a command.
#[derive(Debug, Subcommand)]
pub(super) enum CheckpointCommand {
    /// Time that a guest stands still, and until its checkpoint is durable, beside QEMU's ways to save one
    #[command(after_help = "\
Examples:
  bindery-bench checkpoint pause
  bindery-bench checkpoint pause --ram-mib 1024,4096 --random-mib 100 --rounds 3 --json")]
    Pause(PauseArgs),
    /// From the start of a process to the first sign of life of a restored guest, beside QEMU's ways
    #[command(after_help = "\
Examples:
  bindery-bench checkpoint restore
  bindery-bench checkpoint restore --ram-mib 1024,4096 --rounds 3 --json")]
    Restore(RestoreArgs),
    /// Memory and time of guests that go on from one checkpoint, beside QEMUs that wait
    #[command(after_help = "\
Examples:
  bindery-bench checkpoint clones
  bindery-bench checkpoint clones --count 64 --memory-mib 256")]
    Clones(ClonesArgs),
    /// Bytes and time of many checkpoints of a guest that works, beside borg, restic and zstd
    #[command(after_help = "\
Examples:
  bindery-bench checkpoint store
  bindery-bench checkpoint store --checkpoints 6 --compress --json

Archivers that are not installed are named and left out: Debian has borgbackup, restic and zstd.")]
    Store(StoreArgs),
    /// A guest that is checkpointed at an interval while it works, beside itself
    #[command(after_help = "\
Examples:
  bindery-bench checkpoint guest
  bindery-bench checkpoint guest --every-seconds 2 --loop-seconds 6 --rounds 1")]
    Guest(GuestArgs),
    /// Cycles a second of the crates alone on a small KVM guest, beside KVM's log by hand
    #[command(after_help = "\
Examples:
  bindery-bench checkpoint library
  bindery-bench checkpoint library --gib 1 --cycles 100 --rounds 3 --json")]
    Library(LibraryArgs),
}

impl CheckpointCommand {
    pub(super) fn run(&self, bindery: impl FnOnce() -> Result<PathBuf>) -> Result<Outcome> {
        match self {
            Self::Pause(arguments) => Outcome::of(&arguments.run(&bindery()?)?),
            Self::Restore(arguments) => Outcome::of(&arguments.run(&bindery()?)?),
            Self::Clones(arguments) => Outcome::of(&arguments.run(&bindery()?)?),
            Self::Store(arguments) => Outcome::of(&arguments.run(&bindery()?)?),
            Self::Guest(arguments) => Outcome::of(&arguments.run(&bindery()?)?),
            Self::Library(arguments) => Outcome::of(&arguments.run()?),
        }
    }
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// Where pools and what QEMU saves are made; all is removed at the end
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl CommonArgs {
    fn options(&self, program: &Path) -> Common {
        let (directory, program) = (self.directory.clone(), program.to_owned());
        Common { rounds: self.rounds, directory, program }
    }
}

#[derive(Debug, Args)]
pub(super) struct PauseArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Sizes of the guest's RAM, in MiB
    #[arg(long, value_delimiter = ',', default_value = "1024,2048,4096", value_parser = ram_mib())]
    ram_mib: Vec<u32>,
    /// Random data in the guest's memory, in MiB
    #[arg(long, default_value_t = 600)]
    random_mib: u32,
    /// Memory that is written before every second checkpoint, in MiB
    #[arg(long, default_value_t = 57, value_parser = clap::value_parser!(u32).range(1..=4096))]
    dirty_mib: u32,
}

impl PauseArgs {
    fn run(&self, program: &Path) -> Result<pause::Report> {
        pause::run(&pause::Options {
            common: self.common.options(program),
            ram_mib: self.ram_mib.clone(),
            random_mib: self.random_mib,
            dirty_mib: self.dirty_mib,
        })
    }
}

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Sizes of the guest's RAM, in MiB
    #[arg(long, value_delimiter = ',', default_value = "1024,4096", value_parser = ram_mib())]
    ram_mib: Vec<u32>,
    /// Random data in the guest's memory, in MiB
    #[arg(long, default_value_t = 600)]
    random_mib: u32,
}

impl RestoreArgs {
    fn run(&self, program: &Path) -> Result<restore::Report> {
        restore::run(&restore::Options {
            common: self.common.options(program),
            ram_mib: self.ram_mib.clone(),
            random_mib: self.random_mib,
        })
    }
}

#[derive(Debug, Args)]
pub(super) struct ClonesArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Number of clones
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// RAM of each, in MiB
    #[arg(long, default_value_t = 256, value_parser = ram_mib())]
    memory_mib: u32,
    /// Random data in the memory of each, in MiB
    #[arg(long, default_value_t = 64)]
    random_mib: u32,
    /// Time after which memory that still shrinks is measured as it is, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    settle_seconds: u64,
}

impl ClonesArgs {
    fn run(&self, program: &Path) -> Result<clones::Report> {
        clones::run(&clones::Options {
            common: self.common.options(program),
            count: self.count,
            memory_mib: self.memory_mib,
            random_mib: self.random_mib,
            settle_limit: Duration::from_secs(self.settle_seconds),
        })
    }
}

#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Number of checkpoints
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1000))]
    checkpoints: u32,
    /// RAM of the guest, in MiB
    #[arg(long, default_value_t = 256, value_parser = ram_mib())]
    memory_mib: u32,
    /// Memory that its work takes, in MiB
    #[arg(long, default_value_t = 32)]
    work_mib: u32,
    /// Time that it works between two checkpoints, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    interval_ms: u64,
    /// Compress what Bindery stores
    #[arg(long)]
    compress: bool,
}

impl StoreArgs {
    fn run(&self, program: &Path) -> Result<store::Report> {
        store::run(&store::Options {
            common: self.common.options(program),
            checkpoints: self.checkpoints,
            memory_mib: self.memory_mib,
            work_mib: self.work_mib,
            interval: Duration::from_millis(self.interval_ms),
            compress: self.compress,
        })
    }
}

#[derive(Debug, Args)]
pub(super) struct GuestArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// RAM of the guest, in MiB
    #[arg(long, default_value_t = 512, value_parser = ram_mib())]
    memory_mib: u32,
    /// Memory that the loop writes, in MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    written_mib: u32,
    /// Time that each loop runs, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    loop_seconds: u64,
    /// Interval of the checkpoints, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every_seconds: u64,
}

impl GuestArgs {
    fn run(&self, program: &Path) -> Result<working::Report> {
        working::run(&working::Options {
            common: self.common.options(program),
            memory_mib: self.memory_mib,
            written_mib: self.written_mib,
            loop_time: Duration::from_secs(self.loop_seconds),
            every: Duration::from_secs(self.every_seconds),
        })
    }
}

#[derive(Debug, Args)]
pub(super) struct LibraryArgs {
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Cycles in each round
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cycles: u32,
    /// Memory of the guest, in GiB; hardly any of it is taken
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    gib: u32,
    /// Pages that are written in each cycle
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    dirty_pages: u32,
}

impl LibraryArgs {
    fn run(&self) -> Result<library::Report> {
        library::run(&library::Options {
            rounds: self.rounds,
            cycles: self.cycles as usize,
            gib: self.gib as usize,
            dirty_pages: self.dirty_pages as usize,
        })
    }
}

/// Memory of a guest that boots.
fn ram_mib() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(192..=1 << 20)
}
