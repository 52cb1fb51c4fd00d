//! The project's own commands. Each does all of its set-up itself:
//!
//! ```text
//! cargo xtask setup         fetch what tests and the demo need, and stop
//! cargo xtask test          every test; --long for the long forms
//! cargo xtask demo          boot guests and watch their memory shrink
//! cargo xtask fuzz          send nonsense that libFuzzer thinks of to what reads it
//! cargo xtask sanitize      run the lock-free structures under Miri and ThreadSanitizer
//! cargo xtask deb           build the programs and a Debian package of them
//! cargo xtask rivals        build the stores that `bindery-bench pool ycsb` compares with
//! cargo xtask selftests     the kernel's own tests of memory, plain and with Bindery
//! cargo xtask stressors     stress-ng's speed, plain and with Bindery
//! cargo xtask record-advisor   record what the kernel's own KSM advisor does
//! ```
#![forbid(unsafe_code)]

mod cargo;
mod deb;
mod demo;
mod fuzz;
mod record_advisor;
mod rivals;
mod sanitize;
mod setup;
mod steps;
mod strangers;
mod test;

use anyhow::Result;
use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The project's own commands")]
enum Task {
    /// Fetch QEMU, guest kernels and userlands into target/kit; changes nothing on the host
    Setup,
    /// Run every test
    Test {
        /// Run the long forms as well
        #[arg(long)]
        long: bool,
    },
    /// Fuzz what strangers can send; needs a C++ compiler
    #[command(after_help = "\
Examples:
  cargo xtask fuzz                      every target for a minute
  cargo xtask fuzz http --seconds 3600
  cargo xtask fuzz http -- -runs=0      what libFuzzer itself takes: here, only what is there already

What is found lies in target/fuzz/artifacts; `cargo xtask fuzz TARGET -- FILE` does it again.")]
    Fuzz(fuzz::FuzzArgs),
    /// Run the lock-free structures' tests under Miri and ThreadSanitizer; rustup installs a nightly
    /// toolchain if there is none
    #[command(after_help = "\
Examples:
  cargo xtask sanitize
  cargo xtask sanitize miri --seeds 64
  cargo xtask sanitize thread")]
    Sanitize(sanitize::SanitizeArgs),
    /// Boot guests and watch their memory shrink, under kernel KSM and under Bindery
    Demo(demo::DemoArgs),
    /// Build the programs and a Debian package of them
    #[command(after_help = "\
Examples:
  cargo xtask deb                                    target/debian/bindery_VERSION_ARCH.deb
  cargo xtask deb --programs target/debug --out /tmp  of programs that are built already

Takes dpkg-deb, dpkg-shlibdeps, strip and gzip: `apt install dpkg-dev binutils`. The same programs give
the same package: its files are as old as SOURCE_DATE_EPOCH says, or as the last commit.")]
    Deb(deb::DebArgs),
    /// Build redb, fjall and RocksDB for `bindery-bench pool ycsb`; takes ten minutes the first time
    Rivals,
    /// Run the kernel's own tests of memory management, plainly and with all their memory offered; needs
    /// a C compiler and Debian's linux-source (146 MiB), and some tests need root
    Selftests {
        /// As the kernel's source calls them; all that compile if none is named
        names: Vec<String>,
    },
    /// Measure stress-ng's stressors of memory, plainly and with all their memory offered; needs a C
    /// compiler
    #[command(after_help = "\
Examples:
  cargo xtask stressors                          a table of all, in twelve minutes
  cargo xtask stressors mmap brk --rounds 1
  cargo xtask stressors vm --eager               merging as fast as it goes")]
    Stressors(strangers::stressors::StressorArgs),
    /// Record what the kernel's own KSM advisor does, for the tests of its law; needs root and takes
    /// three minutes
    RecordAdvisor(record_advisor::RecordArgs),
    /// A program whose memory grows and shrinks as it is told to
    #[command(hide = true)]
    Candidates,
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Setup => setup::run().map(drop),
        Task::Test { long } => test::run(long),
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Sanitize(arguments) => sanitize::run(&arguments),
        Task::Demo(arguments) => demo::run(&arguments),
        Task::Deb(arguments) => deb::run(&arguments),
        Task::Rivals => rivals::build(),
        Task::Selftests { names } => strangers::selftests::run(&names),
        Task::Stressors(arguments) => strangers::stressors::run(&arguments),
        Task::RecordAdvisor(arguments) => record_advisor::run(&arguments),
        Task::Candidates => record_advisor::candidates::serve(),
    }
}
