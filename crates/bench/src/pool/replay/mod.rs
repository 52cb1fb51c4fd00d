//! `bindery-bench pool replay`: the reaper's choice of pages beside others, on traces, without any memory.
//!
//! A trace is a list of accesses to pages of tables with four records each. Each choice has the same memory and begins
//! with none of it used; accesses are counted from the middle of the trace on.

mod choices;
mod traces;

use std::fmt;

use anyhow::{Result, ensure};
use bindery_ycsb::Records;
use serde::Serialize;

pub use self::choices::Choice;
pub use self::traces::Trace;
use crate::choice;
use crate::harness::significant;
use crate::interrupt;

/// Traces and choices to replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// Traces.
    pub traces: Vec<Trace>,
    /// Choices.
    pub choices: Vec<Choice>,
    /// Records.
    pub records: u64,
    /// Part of the pages that memory holds.
    pub memory: f64,
    /// Accesses of a trace.
    pub accesses: usize,
}

/// Misses of one choice on one trace.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Line {
    /// The trace.
    pub trace: Trace,
    /// The choice.
    pub choice: Choice,
    /// Misses an access.
    pub misses: f64,
}

/// Everything that was replayed.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Pages of the records.
    pub pages: u64,
    /// Pages of the memory.
    pub memory_pages: usize,
    /// Each choice on each trace.
    pub lines: Vec<Line>,
}

/// Replays.
///
/// # Errors
/// If it is interrupted.
pub fn run(options: &Options) -> Result<Report> {
    interrupt::catch()?;
    let records = Records { count: options.records };
    let pages = traces::pages(records);
    let memory_pages = (pages as f64 * options.memory) as usize;
    ensure!(
        memory_pages > 0,
        "{pages} pages are too few for memory for a part of them: take more records"
    );
    let counted_from = options.accesses / 2;
    let mut lines = Vec::new();
    for &trace in &options.traces {
        let accesses = trace.pages(records, options.accesses);
        for &choice in &options.choices {
            interrupt::check()?;
            let misses = choice.misses(&accesses, pages, memory_pages, counted_from);
            let misses = misses as f64 / (accesses.len() - counted_from) as f64;
            lines.push(Line { trace, choice, misses });
        }
    }
    Ok(Report { pages, memory_pages, lines })
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{} pages, memory for {}", self.pages, self.memory_pages)?;
        for of_trace in self.lines.chunk_by(|a, b| a.trace == b.trace) {
            writeln!(formatter, "{}, misses an access", choice::name(&of_trace[0].trace))?;
            for line in of_trace {
                let name = choice::name(&line.choice);
                writeln!(formatter, "  {name:<12} {}", significant(line.misses))?;
            }
        }
        Ok(())
    }
}
