//! The project's own commands. Each does all of its set-up itself:
//!
//! ```text
//! cargo xtask setup         fetch what tests and the demo need, and stop
//! cargo xtask test          every test; --long for the long forms
//! cargo xtask demo          boot guests and watch their memory shrink
//! ```
#![forbid(unsafe_code)]

mod cargo;
mod demo;
mod setup;
mod steps;
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
    /// Boot guests and watch their memory shrink, under kernel KSM and under Bindery
    Demo(demo::DemoArgs),
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Setup => setup::run().map(drop),
        Task::Test { long } => test::run(long),
        Task::Demo(arguments) => demo::run(&arguments),
    }
}
