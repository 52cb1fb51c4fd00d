//! `bindery-bench overhead`: what guests lose while they are merged.
//!
//! Two measurements, beside the same without any merging:
//!
//! * [`probe`](self): one guest measures itself (a loop that only calculates, a loop that only
//!   writes memory, how late a timer comes) while it and its neighbours, which hold the same pages,
//!   are merged from boot on. KSM runs twice: at full speed, and at the pace that looks at all
//!   memory as often as Bindery does. Full speed takes a CPU for itself for ever, which is no way to
//!   run a host; the other merges as eagerly as Bindery.
//! * [`access`](self): a plain process times its first write to each of many merged pages, and
//!   another its reads of pages while they are being merged. Without a guest's emulated CPU around
//!   them, microseconds can be told.

mod access;
mod probe;

use std::{fmt, path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Serialize;

use crate::{
    engine::{Engine, KsmPace},
    harness::{SampleSet, Table, take_turns},
};

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// A guest measures itself: minutes a round.
    Guests,
    /// Plain processes time first writes to merged pages, and reads while pages are merged: seconds a
    /// round.
    Accesses,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The measurements to make; the others' figures are left out.
    pub parts: Vec<Part>,
    /// Interleaved rounds; medians are shown.
    pub rounds: usize,
    /// How many guests, of one image.
    pub guests: u32,
    /// Memory of each guest, in MiB.
    pub memory_mib: u32,
    /// How long each loop runs.
    pub loop_time: Duration,
    /// Bindery's workers.
    pub workers: u32,
    /// Bindery's merge period.
    pub period: Duration,
    /// The `bindery` program to run.
    pub program: PathBuf,
}

impl Options {
    fn bindery(&self) -> Engine {
        Engine::Bindery {
            workers: self.workers,
            period: self.period,
            program: self.program.clone(),
        }
    }

    /// KSM that looks at all guests' memory once each of Bindery's periods.
    fn eager_ksm(&self) -> Engine {
        let pages = (u64::from(self.guests) * u64::from(self.memory_mib)) << 8;
        Engine::Ksm(KsmPace::EveryPeriod { pages, period: self.period })
    }
}

/// What was measured, each with no merging first; nothing of parts that were not asked for.
#[derive(Debug, Serialize)]
pub struct Report {
    /// How a guest finds itself.
    pub guests: Vec<SampleSet>,
    /// How long a plain process waits for its memory.
    pub accesses: Vec<SampleSet>,
}

/// Measures.
///
/// # Errors
/// If the guests' kit is incomplete, a process cannot be started, KSM is not there, an engine does
/// not merge, or a guest or a page is not what it was.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(options.guests >= 2, "sharing takes at least two guests");
    let measured = |part| options.parts.contains(&part);
    let full_speed = Engine::Ksm(KsmPace::FullSpeed);
    let (mut guests, mut accesses) = (Vec::new(), Vec::new());
    if measured(Part::Guests) {
        let engines = [Engine::Neither, options.eager_ksm(), full_speed.clone(), options.bindery()];
        let names = engines.each_ref().map(ToString::to_string);
        let turn = |who: usize| probe::run(&engines[who], options);
        guests = take_turns("a guest", options.rounds, &names, turn)?;
    }
    if measured(Part::Accesses) {
        let engines = [Engine::Neither, full_speed, options.bindery()];
        let names = engines.each_ref().map(ToString::to_string);
        let turn = |who: usize| access::run(&engines[who]);
        accesses = take_turns("a plain process", options.rounds, &names, turn)?;
    }
    Ok(Report { guests, accesses })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = [
            ("a guest, by its own clock, while it is merged", &self.guests),
            (
                "a plain process: first writes to merged pages, reads while pages are merged",
                &self.accesses,
            ),
        ];
        for (title, samples) in tables.into_iter().filter(|(_, samples)| !samples.is_empty()) {
            writeln!(f, "{}", Table::by_figure(title, samples, 0))?;
        }
        Ok(())
    }
}
