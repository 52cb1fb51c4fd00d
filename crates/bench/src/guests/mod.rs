//! `bindery-bench guests`: real guests, merged by kernel KSM and by Bindery.
//!
//! For each contender of each round the guests are booted anew, work, and come to rest; nothing
//! merges until then. Then the engine merges until it finds nothing more. The memory that counts is
//! the whole machine's, above what it used before the daemon and the guests were started: tables,
//! page tables, mappings and stores are in it, whoever keeps them.
//!
//! The *net saving* of a contender is what the same guests used in the same round without any
//! merging (KSM's guests before KSM began), less what they use under the contender, so that a
//! daemon and a shim are charged with all they cost before they merge, too.
//!
//! CPU time is that of ksmd's thread, or of the daemon's process and the shim's own threads in the
//! guests' processes. Afterwards every guest is verified, still being merged.

mod converge;
pub(crate) mod fleet;

use std::{fmt, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use bindery_testkit::guest::ImageKind;
use bindery_units::ByteCount;
use serde::Serialize;

use crate::{
    engine::{Engine, KsmPace},
    harness::{SampleSet, Samples, Table, significant, take_turns},
};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved rounds; medians are shown.
    pub rounds: usize,
    /// Guests of the one image.
    pub servers: u32,
    /// Guests of the other image.
    pub databases: u32,
    /// Memory of each guest, in MiB.
    pub memory_mib: u32,
    /// Bindery's workers.
    pub workers: u32,
    /// Bindery's merge period.
    pub period: Duration,
    /// The `bindery` program to run.
    pub program: PathBuf,
}

impl Options {
    /// The memory of all guests.
    fn memory(&self) -> ByteCount {
        ByteCount((u64::from(self.servers + self.databases) * u64::from(self.memory_mib)) << 20)
    }

    fn kinds(&self) -> Vec<ImageKind> {
        let of = |kind, count: u32| std::iter::repeat_n(kind, count as usize);
        of(ImageKind::Server, self.servers).chain(of(ImageKind::Database, self.databases)).collect()
    }
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Guests of the one image.
    pub servers: u32,
    /// Guests of the other image.
    pub databases: u32,
    /// Memory of each guest, in MiB.
    pub memory_mib: u32,
    /// The contenders' figures, KSM first.
    pub samples: Vec<SampleSet>,
    /// The contenders' net savings, in the same order.
    pub net_savings: Vec<Samples>,
}

/// Measures.
///
/// # Errors
/// If the guests' kit is incomplete, a process cannot be started, KSM is not there, an engine does
/// not come to rest within two minutes, or a guest is not well afterwards.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(options.servers + options.databases >= 2, "sharing takes at least two guests");
    let engines = [
        Engine::Ksm(KsmPace::FullSpeed),
        Engine::Bindery {
            workers: options.workers,
            period: options.period,
            program: options.program.clone(),
        },
    ];
    let names = engines.each_ref().map(ToString::to_string);
    let turn = |who: usize| converge::run(&engines[who], options);
    let samples = take_turns("guests", options.rounds, &names, turn)?;
    let net_savings = net_savings(&samples)?;
    let Options { servers, databases, memory_mib, .. } = *options;
    Ok(Report { servers, databases, memory_mib, samples, net_savings })
}

fn net_savings(sets: &[SampleSet]) -> Result<Vec<Samples>> {
    let figure = |set: &SampleSet, name| -> Result<Vec<f64>> {
        Ok(set.figure(name).with_context(|| format!("no figure {name}"))?.samples.clone())
    };
    let unmerged = figure(&sets[0], "used before")?;
    let saving = |set: &SampleSet| -> Result<Samples> {
        let after = figure(set, "used after")?;
        let saved = unmerged.iter().zip(&after).map(|(before, after)| before - after).collect();
        Ok(Samples::new("net saving", "MiB", saved))
    };
    sets.iter().map(saving).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!(
            "{} guests of one image, {} of another, {} MiB each",
            self.servers, self.databases, self.memory_mib
        );
        let mut table = Table::by_figure(title, &self.samples, 0);
        let mut row = vec!["net saving (MiB)".to_owned()];
        row.extend(self.net_savings.iter().map(|saving| significant(saving.median)));
        row.extend(
            self.net_savings[1..]
                .iter()
                .map(|saving| significant(saving.ratio_to(&self.net_savings[0]))),
        );
        table.push(row);
        table.fmt(f)
    }
}
