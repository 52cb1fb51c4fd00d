//! Contenders that take turns, and how far they are.

use std::fmt::Display;

use anyhow::{Context, Error, Result, anyhow, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Contender, Measured, SampleSet, Table, collect, ensure_comparable};
use crate::interrupt;

/// Runs every contender once a round for `rounds` rounds, after one round that is thrown away
/// (it faults memory in and wakes the clock up). The sample sets come in the contenders' order.
///
/// # Errors
/// If there is no round or no contender, if two contenders give different check values, or if a
/// run reports other figures than the first one did.
pub fn interleave(rounds: usize, contenders: &mut [Contender<'_>]) -> Result<Vec<SampleSet>> {
    for contender in contenders.iter_mut() {
        (contender.run)();
    }
    let names: Vec<String> = contenders.iter().map(|contender| contender.name.clone()).collect();
    take_turns(rounds, &names, |who| Ok((contenders[who].run)()))
}

/// As [`interleave`], for runs that take long, start cold anyway and may fail: no round is thrown
/// away. `run` is told whose turn it is, by the position of the name. A bar on stderr shows whose
/// turn it is, where that is a terminal.
///
/// # Errors
/// As [`interleave`], and the first run that fails ends it, as do `SIGINT` and `SIGTERM`. The error
/// says what the rounds before it came to.
pub fn take_turns(
    rounds: usize,
    names: &[String],
    mut run: impl FnMut(usize) -> Result<Measured>,
) -> Result<Vec<SampleSet>> {
    ensure!(rounds > 0, "a measurement needs at least one round");
    ensure!(!names.is_empty(), "a measurement needs at least one contender");
    let mut runs: Vec<Vec<Measured>> = vec![Vec::with_capacity(rounds); names.len()];
    interrupt::catch()?;
    let bar = progress_bar(rounds * names.len());
    for round in 0..rounds {
        for turn in 0..names.len() {
            let who = (round + turn) % names.len();
            bar.set_message(format!("round {} of {rounds}, {}", round + 1, names[who]));
            match interrupt::check().and_then(|()| run(who).with_context(|| names[who].clone())) {
                Ok(measured) => runs[who].push(measured),
                Err(error) => return Err(cut_short(interrupt::or_why(error), names, &runs, round)),
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    collect_all(names, &runs)
}

fn progress_bar(turns: usize) -> ProgressBar {
    let template = "{bar:30} {pos}/{len} runs, {eta} left: {wide_msg}";
    let style = ProgressStyle::with_template(template).expect("the template is a valid one");
    ProgressBar::new(turns as u64).with_style(style)
}

fn cut_short(error: Error, names: &[String], runs: &[Vec<Measured>], finished: usize) -> Error {
    if finished == 0 {
        return error;
    }
    let runs: Vec<Vec<Measured>> = runs.iter().map(|runs| runs[..finished].to_vec()).collect();
    match collect_all(names, &runs) {
        Ok(sets) => {
            let title = format!("Rounds finished before: {finished}");
            ended_after(error, Table::of_samples(title, &sets, 0))
        }
        Err(_) => error,
    }
}

/// The error, with what was measured before it: that may have taken an hour.
pub fn ended_after(error: Error, measured: impl Display) -> Error {
    anyhow!("{error:#}\n\n{measured}")
}

fn collect_all(names: &[String], runs: &[Vec<Measured>]) -> Result<Vec<SampleSet>> {
    ensure_comparable(names, runs)?;
    Ok(names.iter().zip(runs).map(|(name, runs)| collect(name, runs)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_runs_once_a_round_and_the_first_turn_rotates() {
        let order = std::cell::RefCell::new(Vec::new());
        let run = |who: u32| {
            let order = &order;
            move || {
                order.borrow_mut().push(who);
                Measured::new("time", "ns", 1.0)
            }
        };
        let (mut a, mut b) = (run(0), run(1));
        let mut contenders = [Contender::new("a", &mut a), Contender::new("b", &mut b)];
        let sets = interleave(2, &mut contenders).unwrap();
        assert_eq!(*order.borrow(), [0, 1, 0, 1, 1, 0]);
        assert_eq!(sets[1].figure("time").unwrap().samples.len(), 2);
    }

    #[test]
    fn who_fails_does_not_take_the_rounds_before_along() {
        let names = ["a".to_owned(), "b".to_owned()];
        let ended = |failing: usize| {
            let mut turn = 0;
            let run = |who: usize| {
                turn += 1;
                ensure!(turn != failing, "the guest is gone");
                Ok(Measured::new("time", "ns", (turn * 10 + who) as f64))
            };
            format!("{:#}", take_turns(3, &names, run).unwrap_err())
        };
        let third_round = ended(5);
        assert!(third_round.starts_with("a: the guest is gone\n"), "{third_round}");
        assert!(third_round.contains("Rounds finished before: 2"), "{third_round}");
        assert!(third_round.contains("25.0  10.0..40.0"), "{third_round}");
        assert!(third_round.contains("26.0  21.0..31.0"), "{third_round}");
        assert_eq!(ended(2), "b: the guest is gone");
    }
}
