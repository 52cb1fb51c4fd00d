//! Contenders that take turns, and how far they are.

use std::fmt;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{Contender, Measured, SampleSet, Table, collect, ensure_comparable, ledger};
use crate::interrupt;

/// Runs every contender once a round for `rounds` rounds, after one round that is thrown away
/// (it faults memory in and wakes the clock up). The sample sets come in the contenders' order.
///
/// # Errors
/// If there is no round or no contender, if two contenders give different check values, or if a
/// run reports other figures than the first one did.
pub fn interleave(
    title: &str,
    rounds: usize,
    contenders: &mut [Contender<'_>],
) -> Result<Vec<SampleSet>> {
    for contender in contenders.iter_mut() {
        (contender.run)();
    }
    let names: Vec<String> = contenders.iter().map(|contender| contender.name.clone()).collect();
    take_turns(title, rounds, &names, |who| Ok((contenders[who].run)()))
}

/// As [`interleave`], for runs that take long, start cold anyway and may fail: no round is thrown
/// away. `run` is told whose turn it is, by the position of the name. A bar on stderr shows whose
/// turn it is, where that is a terminal. Rounds that were finished are [kept](ledger::keep) under `title`.
///
/// # Errors
/// As [`interleave`], and the first run that fails ends it, as do `SIGINT` and `SIGTERM`.
pub fn take_turns(
    title: &str,
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
            bar.set_message(format!("{title}, round {} of {rounds}, {}", round + 1, names[who]));
            match interrupt::check().and_then(|()| run(who).with_context(|| names[who].clone())) {
                Ok(measured) => runs[who].push(measured),
                Err(error) => {
                    keep_rounds(title, names, &runs, round)?;
                    return Err(interrupt::or_why(error));
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    keep_rounds(title, names, &runs, rounds)
}

fn progress_bar(turns: usize) -> ProgressBar {
    let template = "{bar:30} {pos}/{len} runs, {eta} left: {wide_msg}";
    let style = ProgressStyle::with_template(template).expect("the template is a valid one");
    ProgressBar::new(turns as u64).with_style(style)
}

/// Collects the rounds that were finished, and keeps them. None of them, if there is none.
fn keep_rounds(
    title: &str,
    names: &[String],
    runs: &[Vec<Measured>],
    finished: usize,
) -> Result<Vec<SampleSet>> {
    if finished == 0 {
        return Ok(Vec::new());
    }
    let runs: Vec<Vec<Measured>> = runs.iter().map(|runs| runs[..finished].to_vec()).collect();
    ensure_comparable(names, &runs)?;
    let contenders: Vec<_> =
        names.iter().zip(&runs).map(|(name, runs)| collect(name, runs)).collect();
    ledger::keep(&Rounds { title, finished, contenders: &contenders });
    Ok(contenders)
}

/// Rounds that were finished.
#[derive(Serialize)]
struct Rounds<'a> {
    title: &'a str,
    finished: usize,
    contenders: &'a [SampleSet],
}

impl fmt::Display for Rounds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{} (rounds finished: {})", self.title, self.finished);
        Table::of_samples(title, self.contenders, 0).fmt(f)
    }
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
        let sets = interleave("", 2, &mut contenders).unwrap();
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
            let error = take_turns("easy", 3, &names, run).unwrap_err();
            (format!("{error:#}"), ledger::take())
        };
        let (error, kept) = ended(5);
        assert_eq!(error, "a: the guest is gone");
        let text = kept.to_string();
        assert!(text.contains("easy (rounds finished: 2)"), "{text}");
        assert!(text.contains("25.0  10.0..40.0"), "{text}");
        assert!(text.contains("26.0  21.0..31.0"), "{text}");
        let json = serde_json::to_value(&kept).unwrap();
        assert_eq!(json["finished"][0]["contenders"][1]["name"], "b");
        assert!(ended(2).1.is_empty(), "no round was finished");
    }
}
