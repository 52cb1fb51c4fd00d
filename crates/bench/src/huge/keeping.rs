//! CPU time of keeping huge pages that nobody writes and in which nothing can be merged.
//!
//! KSM passes over pages that did not merge before (`smart_scan`), and is set to look at all memory
//! once in each of Bindery's periods. What it misses of that pace does not count: CPU time is
//! divided by the scans that were made.

use anyhow::{Result, ensure};

use super::{
    Options,
    contender::{Contender, Mode, names},
    layout::Layout,
    program::Program,
};
use crate::{
    engine::Merger,
    harness::{Bar, Measured, SampleSet, take_turns},
    interrupt,
    steady::settle_scans,
};

const CPU: &str = "CPU";

/// Share of KSM's CPU time that Bindery may take.
const CPU_RATIO: f64 = 1.0 / 300.0;

/// Measures KSM and the automatic mode.
pub(super) fn run(options: &Options) -> Result<Vec<SampleSet>> {
    let layout = Layout::unique(options.blocks);
    let ksm = Contender::eager_ksm(u64::from(layout.pages()), options);
    let contenders = [ksm, Contender::bindery(Mode::Auto, options)];
    take_turns("keeping", options.rounds, &names(&contenders), |who| {
        measure(&contenders[who], &layout, options)
    })
}

fn measure(contender: &Contender, layout: &Layout, options: &Options) -> Result<Measured> {
    let merger = Merger::start(&contender.engine)?;
    let mut programs = Program::start_all(&merger, layout)?;
    Program::ask_all(&mut programs, "fill")?;
    settle_scans(&merger)?;
    let pids = || programs.iter().map(Program::pid);
    let (scans, cpu) = (merger.full_scans()?, merger.cpu_time(pids())?);
    interrupt::rest(options.keep_time)?;
    let (scans, cpu) = (merger.full_scans()? - scans, merger.cpu_time(pids())? - cpu);
    ensure!(scans > 0, "no scan was completed in {:?}", options.keep_time);
    let huge = programs[0].huge_pages()?;
    merger.pause()?;
    Program::ask_all(&mut programs, "verify")?;
    drop(programs);
    merger.stop()?;
    Ok(Measured::new(CPU, "ms/scan", cpu.as_secs_f64() * 1e3 / scans as f64)
        .and("CPU in all", "ms", cpu.as_secs_f64() * 1e3)
        .and("scans", "count", scans as f64)
        .and("huge pages", "MiB", huge.mib()))
}

/// The one bar.
pub(super) fn bars(sets: &[SampleSet]) -> Vec<Bar> {
    let cpu = |set: &SampleSet| set.figure(CPU).cloned();
    let [ksm, auto] = sets else { return Vec::new() };
    let found = cpu(auto).zip(cpu(ksm)).map(|(auto, ksm)| auto.ratio_to(&ksm));
    let name = "keeping, auto: CPU time ÷ KSM's";
    found.map(|found| Bar::at_most(name, found, CPU_RATIO)).into_iter().collect()
}
