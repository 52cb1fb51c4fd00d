//! Times of accesses beside those of a program that nobody merges.

use std::time::Duration;

use anyhow::Result;

use super::program::Program;
use crate::harness::median;

/// Turns of a program and of the one beside it.
const TURNS: u32 = 10;

/// Times of accesses: medians over the turns.
pub(super) struct Times {
    /// Nanoseconds an access of the program.
    pub(super) own: f64,
    /// That divided by the time of the program beside it, which nobody merges.
    pub(super) ratio: f64,
}

/// Times accesses of a program and of one beside it by turns, each for so long in all: memory gets faster and
/// slower by a third within a minute on machines that others share.
pub(super) fn take_times(
    programs: [&mut Program; 2],
    order: &str,
    access_time: Duration,
) -> Result<Times> {
    let [own, beside] = programs;
    let turn = access_time / TURNS;
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for number in 0..TURNS {
        let (first, second) =
            if number % 2 == 0 { (&mut *own, &mut *beside) } else { (&mut *beside, &mut *own) };
        let mut pair = [first.time_for(order, turn)?, second.time_for(order, turn)?];
        if number % 2 == 1 {
            pair.reverse();
        }
        times.push(pair[0]);
        ratios.push(pair[0] / pair[1]);
    }
    Ok(Times { own: median(&times), ratio: median(&ratios) })
}
