//! The `bindery` command: parsing, tables, progress bars, exit codes.

#![forbid(unsafe_code)]

mod advisor;
mod args;
mod checkpoint;
mod completion;
mod config;
mod connect;
mod daemon;
mod dirty;
mod doctor;
mod exit;
mod guests;
mod ksm;
mod logging;
mod manual;
mod output;
mod pool;
mod run;
mod scan;
mod screen;
mod setting_names;
mod status;
mod target_scan_time;
mod times;
mod top;
mod usage;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use exit::Failure;

fn main() -> ExitCode {
    completion::complete();
    bindery_sys::handover::survive_file_limit();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage::end(&error, std::env::args_os().skip(1)),
    };
    match perform(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(arguments.global.json),
    }
}

fn perform(arguments: &Arguments) -> Result<(), Failure> {
    let global = &arguments.global;
    match &arguments.command {
        Command::Daemon(arguments) => daemon::run(global, arguments),
        Command::Run(arguments) => run::run(global, arguments),
        Command::Ps => guests::ps(global),
        Command::Top(arguments) => top::run(global, arguments),
        Command::Status => status::run(global),
        Command::Set(arguments) => guests::set(global, arguments),
        Command::Reload => guests::reload(global),
        Command::Unmerge(arguments) => guests::unmerge(global, arguments),
        Command::Merge(arguments) => guests::merge(global, arguments),
        Command::Unmanage(arguments) => guests::unmanage(global, arguments),
        Command::Dirty(arguments) => dirty::run(global, arguments),
        Command::Stop(arguments) => guests::stop(global, arguments),
        Command::Scan(arguments) => scan::run(arguments, global.json),
        Command::Advisor { command } => advisor::run(command, global.json),
        Command::Ksm { command } => ksm::run(command, global.json),
        Command::Checkpoint { command } => checkpoint::run(command, global),
        Command::Clone(arguments) => checkpoint::clone(global, arguments),
        Command::Fork(arguments) => checkpoint::fork(global, arguments),
        Command::Restore(arguments) => checkpoint::restore(global, arguments),
        Command::ServeFaults(arguments) => checkpoint::serve_faults(global, arguments),
        Command::Pool { command } => pool::run(command, global.json),
        Command::Doctor => doctor::run(global),
        Command::Completions(arguments) => manual::completions(arguments),
        Command::Man(arguments) => manual::man(arguments),
        Command::ExitCodes => manual::explain_exit_codes(global.json),
    }
}
