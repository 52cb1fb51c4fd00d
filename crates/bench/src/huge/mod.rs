//! `bindery-bench huge`: huge pages of programs and guests, with nobody, KSM and Bindery merging.
//!
//! * [`plain`](self): one program in whose memory nothing can be merged: its huge pages, and the speed
//!   that they give.
//! * [`duplicates`](self): programs that have some small pages in common ([`layout`]), scattered or
//!   in runs, some of their blocks written all the time: what is saved, and at what speed.
//! * [`guests`](self): QEMU guests of one image.
//! * [`keeping`](self): CPU time of looking after huge pages in which nothing happens.
//!
//! Times of accesses leave out what a thread waits for a CPU. Programs ask for huge pages, offer their memory and touch it only when it was taken. While this
//! runs the kernel gives huge pages to those who ask (`transparent_hugepage/enabled`).

mod access;
mod bars;
mod beside;
mod contender;
mod duplicates;
mod guests;
mod keeping;
pub mod layout;
mod memory;
mod plain;
mod plot;
pub mod process;
mod program;
mod report;
mod smaps;
mod stopwatch;
mod writer;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use bindery_sys::huge::Policy;
use bindery_testkit::machine::{HugePagesGuard, MAX_MAP_COUNT, SettingGuard};
use clap::ValueEnum;

use self::layout::Hot;
pub use self::{
    contender::Mode, duplicates::Point, guests::Report as GuestsReport, report::Report,
};
use crate::interrupt;

/// Limit of mappings that the package sets (packaging/bindery.sysctl.conf).
const MAPPINGS_MAX: u32 = 1 << 20;

/// A part that can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// A program with nothing to merge: a minute a round and contender.
    Plain,
    /// Programs with duplicates: half a minute for each layout, round and contender.
    Duplicates,
    /// QEMU guests: minutes a round and contender.
    Guests,
    /// CPU time of keeping memory in which nothing happens: two minutes a round and contender.
    Keeping,
}

/// Parts to measure, and their sizes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Parts to measure; the others' figures are left out.
    pub parts: Vec<Part>,
    /// Interleaved rounds; medians are shown.
    pub rounds: usize,
    /// Bindery's ways with huge pages that take part.
    pub modes: Vec<Mode>,
    /// Memory of the program with nothing to merge, in blocks of 2 MiB.
    pub blocks: u32,
    /// Number of programs with duplicates.
    pub processes: u32,
    /// Memory of each, in blocks of 2 MiB.
    pub process_blocks: u32,
    /// Shares of their pages that are duplicates, in percent.
    pub shares: Vec<u32>,
    /// Lengths of the runs in which duplicates come, in pages.
    pub runs: Vec<u32>,
    /// Blocks that are written each second.
    pub hot: Vec<Hot>,
    /// Time for which each kind of access is measured.
    pub access_time: Duration,
    /// Time after which merging that still changes is measured as it is.
    pub settle_limit: Duration,
    /// Number of guests.
    pub guests: u32,
    /// Memory of each guest, in MiB.
    pub guest_mib: u32,
    /// Time for which the CPU time of keeping is measured.
    pub keep_time: Duration,
    /// Bindery's workers.
    pub workers: u32,
    /// Bindery's merge period.
    pub period: Duration,
    /// File for a plot of savings against access times.
    pub plot: Option<PathBuf>,
    /// The `bindery` program to run.
    pub program: PathBuf,
}

/// Measures.
///
/// # Errors
/// If the kernel has no huge pages or KSM, a program or guest cannot be started or is not well
/// afterwards, a page is not what it was, or the plot cannot be written.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(options.processes >= 2, "duplicates in other processes need at least two");
    ensure!(options.guests >= 2, "sharing takes at least two guests");
    // From here on a signal does not keep settings from being put back.
    interrupt::catch()?;
    let _enabled = HugePagesGuard::set(Policy::Madvise)?;
    let _mappings = SettingGuard::set(MAX_MAP_COUNT, MAPPINGS_MAX)?;
    let is_wanted = |part| options.parts.contains(&part);
    let mut report = Report::default();
    if is_wanted(Part::Plain) {
        report.plain = plain::run(options)?;
        report.bars.extend(plain::bars(&report.plain, options));
    }
    if is_wanted(Part::Duplicates) {
        report.duplicates = duplicates::run(options)?;
        report.bars.extend(report.duplicates.iter().flat_map(bars::of));
        write_plot(&report.duplicates, options)?;
    }
    if is_wanted(Part::Guests) {
        let guests = guests::run(options)?;
        report.bars.extend(guests::bars(&guests, options));
        report.guests = Some(guests);
    }
    if is_wanted(Part::Keeping) {
        report.keeping = keeping::run(options)?;
        report.bars.extend(keeping::bars(&report.keeping));
    }
    Ok(report)
}

fn write_plot(points: &[Point], options: &Options) -> Result<()> {
    let Some(file) = &options.plot else { return Ok(()) };
    std::fs::write(file, plot::svg(&plot::dots(points)))
        .with_context(|| format!("writing {}", file.display()))
}
