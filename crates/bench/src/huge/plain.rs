//! A program with huge pages in which nothing can be merged.

use anyhow::Result;

use super::{
    Options,
    contender::{Contender, NOBODY, names},
    layout::Layout,
    program::Program,
};
use crate::{
    engine::Merger,
    harness::{Bar, Measured, SampleSet, take_turns},
    interrupt,
};

/// Periods after which everybody has looked at the memory several times.
const SETTLING_PERIODS: u32 = 10;

const HUGE: &str = "huge pages";
const HUGE_AFTER: &str = "huge pages after writes";
const TIMES: [&str; 3] = ["first touch", "random read", "random write"];

/// Share of nobody's huge pages that must be left.
const HUGE_SHARE: f64 = 0.98;

/// Time that an access may take, in times nobody's.
const TIME_RATIO: f64 = 1.05;

/// Measures all contenders.
pub(super) fn run(options: &Options) -> Result<Vec<SampleSet>> {
    let layout = Layout::unique(options.blocks);
    let contenders = Contender::all(u64::from(layout.pages()), options);
    take_turns("nothing to merge", options.rounds, &names(&contenders), |who| {
        measure(&contenders[who], &layout, options)
    })
}

fn measure(contender: &Contender, layout: &Layout, options: &Options) -> Result<Measured> {
    let merger = Merger::start(&contender.engine)?;
    let mut programs = Program::start_all(&merger, layout)?;
    let touch = programs[0].time("touch")?;
    Program::ask_all(&mut programs, "fill")?;
    interrupt::rest(options.period * SETTLING_PERIODS)?;
    let huge = programs[0].huge_pages()?;
    let read = programs[0].time_for("read", options.access_time)?;
    let write = programs[0].time_for("write", options.access_time)?;
    let huge_after = programs[0].huge_pages()?;
    merger.pause()?;
    Program::ask_all(&mut programs, "verify")?;
    drop(programs);
    merger.stop()?;
    Ok(Measured::new(HUGE, "MiB", huge.mib())
        .and(HUGE_AFTER, "MiB", huge_after.mib())
        .and(TIMES[0], "ns/page", touch)
        .and(TIMES[1], "ns", read)
        .and(TIMES[2], "ns", write))
}

/// Bars of each of Bindery's modes.
pub(super) fn bars(sets: &[SampleSet], options: &Options) -> Vec<Bar> {
    let find = |who: &str| sets.iter().find(|set| set.name == who);
    let Some(nobody) = find(NOBODY) else { return Vec::new() };
    let mut bars = Vec::new();
    for mode in &options.modes {
        let Some(own) = find(&mode.to_string()) else { continue };
        let ratio = |figure: &str| {
            own.figure(figure).zip(nobody.figure(figure)).map_or(f64::NAN, |(a, b)| a.ratio_to(b))
        };
        let name = |figure: &str| format!("plain, {mode}: {figure} ÷ nobody's");
        let huge = [HUGE, HUGE_AFTER];
        bars.extend(huge.map(|figure| Bar::at_least(name(figure), ratio(figure), HUGE_SHARE)));
        bars.extend(TIMES.map(|figure| Bar::at_most(name(figure), ratio(figure), TIME_RATIO)));
    }
    bars
}
