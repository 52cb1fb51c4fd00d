//! A program with huge pages in which nothing can be merged.

use anyhow::Result;

use super::{
    Options,
    beside::take_times,
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
const TOUCH: &str = "first touch";
const READ: [&str; 2] = ["random read", "÷ beside"];
const WRITE: [&str; 2] = ["random write", "÷ beside it"];

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
    let mut beside = Program::start_alone(layout)?;
    beside.ask("fill")?;
    interrupt::rest(options.period * SETTLING_PERIODS)?;
    let huge = programs[0].huge_pages()?;
    let read = take_times([&mut programs[0], &mut beside], "read", options.access_time)?;
    let write = take_times([&mut programs[0], &mut beside], "write", options.access_time)?;
    let huge_after = programs[0].huge_pages()?;
    merger.pause()?;
    Program::ask_all(&mut programs, "verify")?;
    drop((programs, beside));
    merger.stop()?;
    Ok(Measured::new(HUGE, "MiB", huge.mib())
        .and(HUGE_AFTER, "MiB", huge_after.mib())
        .and(TOUCH, "ns/page", touch)
        .and(READ[0], "ns", read.own)
        .and(READ[1], "×", read.ratio)
        .and(WRITE[0], "ns", write.own)
        .and(WRITE[1], "×", write.ratio))
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
        let beside = |figure: &str| own.figure(figure).map_or(f64::NAN, |ratios| ratios.median);
        let name = |figure: &str| format!("plain, {mode}: {figure} ÷ nobody's");
        let huge = [HUGE, HUGE_AFTER];
        bars.extend(huge.map(|figure| Bar::at_least(name(figure), ratio(figure), HUGE_SHARE)));
        bars.push(Bar::at_most(name(TOUCH), ratio(TOUCH), TIME_RATIO));
        let times = [READ, WRITE];
        bars.extend(times.map(|[what, by]| Bar::at_most(name(what), beside(by), TIME_RATIO)));
    }
    bars
}
