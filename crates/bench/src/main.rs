//! The `bindery-bench` command: every figure of Bindery's, measured beside its rivals.

#![forbid(unsafe_code)]

mod commands;

use std::process::ExitCode;

use anyhow::Error;
use bindery_bench::harness::ledger;
use clap::Parser;

use commands::{Arguments, Outcome};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let json = arguments.json;
    let printed = match arguments.run() {
        Ok(outcome) => outcome.map_or(Ok(()), |outcome| outcome.print(json)),
        Err(error) => finished_rounds(json).and(Err(error)),
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error, json);
            ExitCode::FAILURE
        }
    }
}

/// Prints what was measured before a measurement ended early.
fn finished_rounds(json: bool) -> Result<(), Error> {
    let finished = ledger::take();
    if finished.is_empty() { Ok(()) } else { Outcome::of(&finished)?.print(json) }
}

fn complain(error: &Error, json: bool) {
    let message = format!("the measurement failed: {error:#}");
    if json {
        eprintln!("{}", serde_json::json!({ "error": { "exit_code": 1, "message": message } }));
    } else {
        eprintln!("bindery-bench: {message}");
    }
}
