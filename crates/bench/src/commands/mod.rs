//! The command line of `bindery-bench`, and what each command prints.

mod advisor;
mod all;
mod checkpoint;
mod dirty;
mod guest_process;
mod guests;
mod huge;
mod huge_process;
mod idle;
mod index;
mod merge;
mod outcome;
mod overhead;
mod page;
mod pool;
mod steady;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

use self::advisor::AdvisorArgs;
use self::all::AllArgs;
use self::checkpoint::CheckpointCommand;
use self::dirty::DirtyArgs;
use self::guest_process::GuestProcessArgs;
use self::guests::GuestsArgs;
use self::huge::HugeArgs;
use self::huge_process::HugeProcessArgs;
use self::idle::IdleArgs;
use self::index::IndexArgs;
use self::merge::MergeArgs;
pub(crate) use self::outcome::Outcome;
use self::overhead::OverheadArgs;
use self::page::PageArgs;
use self::steady::SteadyArgs;

/// Measures Bindery beside its rivals, in turns within one run.
#[derive(Debug, Parser)]
#[command(
    name = "bindery-bench",
    version,
    after_help = "\
Examples:
  bindery-bench merge                    beside kernel KSM, as root
  bindery-bench index --rounds 1 --json  no root needed
  bindery-bench all                      everything, into a file for this machine

Exits with 1 if a measurement failed or was interrupted; rounds that were finished are printed all the
same."
)]
pub(crate) struct Arguments {
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The `bindery` program that is measured, with its shim beside it [default: the one beside this
    /// program]
    #[arg(long, global = true, env = "BINDERY_PROGRAM", value_name = "FILE")]
    bindery: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

impl Arguments {
    /// Measures what was asked for. A hidden command that is a part of another benchmark has no outcome.
    ///
    /// # Errors
    /// If the measurement fails or is interrupted.
    pub(crate) fn run(&self) -> Result<Option<Outcome>> {
        self.command.run(self.bindery.as_deref())
    }
}

/// Measurements, each a command.
#[derive(Debug, Subcommand)]
enum Command {
    /// The kernels over one page: zero, equal, digest
    #[command(after_help = "\
Examples:
  bindery-bench page
  bindery-bench page --rounds 15 --json")]
    Page(PageArgs),
    /// Find equal pages: the index, beside hash maps, a radix tree and a tree by memcmp
    #[command(after_help = "\
Examples:
  bindery-bench index --rounds 1
  bindery-bench index --keys 1000000,10000000 --threads 1,2,4 --json

Ten million keys take some 8 GiB and half an hour a round.")]
    Index(IndexArgs),
    /// Know which pages changed: the dirty tree, beside bitmaps, sets and a list
    #[command(after_help = "\
Examples:
  bindery-bench dirty --rounds 1
  bindery-bench dirty --pages 1000000 --dirty 100,10000,1000000 --json

Prints what a mark and a harvest cost at each density, and the bars that the tree is held to.")]
    Dirty(DirtyArgs),
    /// Merge PageONE's data sets, beside kernel KSM
    #[command(after_help = "\
Examples:
  bindery-bench merge
  bindery-bench merge --content zero-prefix --extent-pages 64,8,1 --workers 1,2 --json

Sets and restores KSM's settings: run it as root, on a machine where KSM does nothing else.")]
    Merge(MergeArgs),
    /// Keep merged memory that nobody writes, beside kernel KSM
    #[command(after_help = "\
Examples:
  bindery-bench steady
  bindery-bench steady --scans 5 --rounds 1 --json

Sets and restores KSM's settings: run it as root, on a machine where KSM does nothing else.")]
    Steady(SteadyArgs),
    /// Watch many guests that do nothing, beside kernel KSM
    #[command(after_help = "\
Examples:
  bindery-bench idle --guests 100
  bindery-bench idle --guests 1,100,1000 --guest-mib 16 --json

A thousand guests of 16 MiB take 10 GiB of memory, four minutes with Bindery, and a quarter of an hour with
KSM. Sets and restores KSM's settings: run it as root, on a machine where KSM does nothing else.")]
    Idle(IdleArgs),
    /// Merge real guests, beside kernel KSM
    #[command(after_help = "\
Examples:
  bindery-bench guests --rounds 1
  bindery-bench guests --servers 8 --databases 4 --memory-mib 512 --json

Boots QEMU guests from the kit that `cargo xtask setup` fetches, once for each contender and round.
Sets and restores KSM's settings: run it as root, on a machine that does nothing else.")]
    Guests(GuestsArgs),
    /// Measure a guest while it is merged, beside kernel KSM and neither
    #[command(after_help = "\
Examples:
  bindery-bench overhead --rounds 1 --parts accesses
  bindery-bench overhead --guests 4 --loop-seconds 10 --json

Boots QEMU guests from the kit that `cargo xtask setup` fetches, once for each contender and round.
Sets and restores KSM's settings: run it as root, on a machine that does nothing else.")]
    Overhead(OverheadArgs),
    /// Leave huge pages whole where that is worth it, beside kernel KSM and nobody
    #[command(after_help = "\
Examples:
  bindery-bench huge --parts plain --rounds 1
  bindery-bench huge --parts duplicates --shares 25 --runs 64,512 --hot half --plot huge.svg
  bindery-bench huge --parts guests,keeping --json

All layouts of duplicates take an hour a round. The guests come from the kit that `cargo xtask setup`
fetches. Sets and restores settings of KSM and of huge pages: run it as root, on a machine that does
nothing else.")]
    Huge(HugeArgs),
    /// Pace scans: Bindery's advisor, on kernel KSM and on its own engine, beside the kernel's
    #[command(after_help = "\
Examples:
  bindery-bench advisor --rounds 1
  bindery-bench advisor --target-scan-time 10 --max-cpu 20 --json

Each contender goes through a start-up, a steady state with a quarter of its candidates, a fourfold
growth and a shrink of the same memory. The fixed rate is sized first, by trying, so that each scan of
the start-up is done in the target. Sets and restores KSM's settings: run it as root, on a machine where KSM does nothing
else.")]
    Advisor(AdvisorArgs),
    /// Objects and maps: writing, reading, mapping, and a store on them
    #[command(after_help = "\
Examples:
  bindery-bench pool write --directory /srv/pool
  bindery-bench pool ycsb --rounds 1")]
    Pool {
        #[command(subcommand)]
        command: pool::PoolCommand,
    },
    /// Checkpoints, restores and clones of guests, beside QEMU's own
    #[command(after_help = "\
Examples:
  bindery-bench checkpoint pause --ram-mib 1024,2048,4096
  bindery-bench checkpoint clones --count 16 --json

Boots QEMU 10 guests from the kit that `cargo xtask setup` fetches.")]
    Checkpoint {
        #[command(subcommand)]
        command: CheckpointCommand,
    },
    /// Everything with its defaults, into a file of figures for this machine
    #[command(after_help = "\
Examples:
  bindery-bench all
  bindery-bench all --only merge,index --directory figures

Writes DIRECTORY/MACHINE/DATE.json. Takes hours with everything: run it as root, on a machine that does
nothing else. A measurement that fails is recorded with its reason, and the rest goes on.")]
    All(AllArgs),
    /// A guest's process for the benchmarks
    #[command(hide = true)]
    GuestProcess(GuestProcessArgs),
    /// A program with huge pages for the benchmarks
    #[command(hide = true)]
    HugeProcess(HugeProcessArgs),
}

impl Command {
    fn run(&self, bindery: Option<&Path>) -> Result<Option<Outcome>> {
        let product = || program(bindery);
        match self {
            Self::Page(arguments) => Outcome::of(&arguments.run()?),
            Self::Index(arguments) => Outcome::of(&arguments.run()?),
            Self::Dirty(arguments) => Outcome::of(&arguments.run()?),
            Self::Merge(arguments) => Outcome::of(&arguments.run(&product()?)?),
            Self::Steady(arguments) => Outcome::of(&arguments.run(&product()?)?),
            Self::Idle(arguments) => Outcome::of(&arguments.run(&product()?)?),
            Self::Guests(arguments) => Outcome::of(&arguments.run(&product()?)?),
            Self::Overhead(arguments) => Outcome::of(&arguments.run(&product()?)?),
            Self::Huge(arguments) => Outcome::of(&arguments.run(&product()?)?),
            Self::Advisor(arguments) => Outcome::of(&arguments.run(&product()?)?),
            Self::Pool { command } => return command.run(),
            Self::Checkpoint { command } => command.run(product),
            Self::All(arguments) => return arguments.run(bindery),
            Self::GuestProcess(arguments) => return arguments.run().map(|()| None),
            Self::HugeProcess(arguments) => return arguments.run().map(|()| None),
        }
        .map(Some)
    }
}

/// The program to measure: the one named, or `bindery` beside this program.
fn program(named: Option<&Path>) -> Result<PathBuf> {
    let program = match named {
        Some(named) => named.to_owned(),
        None => std::env::current_exe().context("finding this program")?.with_file_name("bindery"),
    };
    ensure!(
        program.is_file(),
        "{} is not there: build it with `cargo build --release -p bindery-cli -p bindery-shim`, or name \
         it with --bindery",
        program.display(),
    );
    Ok(program)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_has_examples() {
        Arguments::command().debug_assert();
        for command in Arguments::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{} has none", command.get_name());
        }
    }

    #[test]
    fn only_ycsb_holds_the_device_below_to_a_rate() {
        let parses = |command: &str, latency: bool| {
            let line = ["bindery-bench", "pool", command];
            let rate = ["--device-mib-per-s=1", "--device-requests-per-s=1"];
            let latency = latency.then_some("--device-latency-us=1");
            Arguments::try_parse_from(line.into_iter().chain(rate).chain(latency)).is_ok()
        };
        assert!(["write", "read", "faults", "ycsb"].iter().all(|command| parses(command, true)));
        assert!(parses("ycsb", false));
        assert!(!["write", "read", "faults"].iter().any(|command| parses(command, false)));
    }
}
