//! The program inside a guest: serves commands, writes and verifies data, makes load, measures.
//!
//! It is one static binary without dependencies, so that it runs under any kernel and needs no
//! library of the image. Every subcommand that measures or verifies ends with one line of JSON.
#![deny(unsafe_code)]

mod content;
mod heartbeat;
mod load;
mod mergeable;
mod options;
mod probe;
mod serve;
mod writer;

use std::process::ExitCode;

use options::Options;

const USAGE: &str = "\
guest_agent serve
guest_agent writer --dir DIR [--files N] [--file-kib N] [--rounds N] [--patches N] [--seed N] \
[--direct 1]
guest_agent heartbeat [--mib N] [--writes N] [--reads N] [--pause-ms N]
guest_agent load files|compile|zeros|cpu [--mib N] [--seed N] [--seconds N]
guest_agent mergeable [--pages N] [--seed N] [--offer 0]
guest_agent probe [--seconds N] [--mib N] [--settle N] [--samples N]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    match run(&command, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guest_agent {command}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &str, mut arguments: impl Iterator<Item = String>) -> Result<(), String> {
    match command {
        "serve" => serve::serve().map_err(|error| error.to_string()),
        "writer" => writer::run(&Options::parse(arguments)?),
        "heartbeat" => heartbeat::run(&Options::parse(arguments)?),
        "load" => {
            let kind = arguments.next().ok_or(USAGE)?;
            load::run(&kind, &Options::parse(arguments)?)
        }
        "mergeable" => mergeable::run(&Options::parse(arguments)?),
        "probe" => {
            let options = Options::parse(arguments)?;
            println!("{}", probe::run(&options)?);
            Ok(())
        }
        _ => Err(USAGE.to_owned()),
    }
}
