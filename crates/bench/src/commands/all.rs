//! `bindery-bench all`: every measurement with its defaults, into a file of figures.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use bindery_bench::harness::ledger;
use bindery_bench::machine::Machine;
use clap::{Args, Parser};
use serde_json::{Map, Value, json};

use super::{Arguments, Outcome};

/// Every measurement, by the words that start it.
const ALL: [&str; 21] = [
    "page",
    "index",
    "dirty",
    "merge",
    "steady",
    "idle",
    "guests",
    "overhead",
    "huge",
    "advisor",
    "pool write",
    "pool read",
    "pool faults",
    "pool vma",
    "pool ycsb",
    "checkpoint pause",
    "checkpoint restore",
    "checkpoint clones",
    "checkpoint store",
    "checkpoint guest",
    "checkpoint library",
];

#[derive(Debug, Args)]
pub(super) struct AllArgs {
    /// Measure only these, as in `merge,pool write`
    #[arg(long, value_delimiter = ',', value_name = "MEASUREMENT", value_parser = ALL)]
    only: Vec<String>,
    /// Interleaved rounds of each [default: its own]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Where the files of all machines are
    #[arg(long, default_value = "docs/measurements")]
    directory: PathBuf,
    /// This machine's name, a directory [default: made from its processor]
    #[arg(long)]
    machine: Option<String>,
}

impl AllArgs {
    /// Measures, and writes what came of it after every measurement.
    ///
    /// # Errors
    /// If the file cannot be written, if a measurement failed, or if it was interrupted.
    pub(super) fn run(&self, bindery: Option<&Path>) -> Result<Option<Outcome>> {
        let machine = Machine::look();
        let name = self.machine.clone().unwrap_or_else(|| machine.name());
        let date = date_of(SystemTime::now());
        let path = self.directory.join(name).join(format!("{date}.json"));
        let mut figures = Map::new();
        let (mut text, mut failed) = (String::new(), Vec::new());
        for words in ALL.iter().filter(|words| self.is_wanted(words)) {
            eprintln!("bindery-bench: measuring {words}");
            let (measured, shown) = self.measure(words, bindery);
            if measured.get("error").is_some() {
                failed.push(*words);
            }
            text.push_str(&format!("# {words}\n\n{shown}\n"));
            figures.insert((*words).to_owned(), measured);
            let file = json!({ "date": date, "machine": machine, "figures": figures });
            write(&path, &file)?;
            bindery_bench::stop_if_interrupted()?;
        }
        text.push_str(&format!("written to {}", path.display()));
        let outcome = Outcome { text, json: json!({ "file": path, "figures": figures }) };
        if failed.is_empty() {
            return Ok(Some(outcome));
        }
        outcome.print(false)?;
        ensure!(
            failed.is_empty(),
            "these failed, each for the reason in the file: {}",
            failed.join(", ")
        );
        Ok(None)
    }

    fn is_wanted(&self, words: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == words)
    }

    /// The figures of one measurement, or why there are none; and the same for people.
    fn measure(&self, words: &str, bindery: Option<&Path>) -> (Value, String) {
        let rounds = self.rounds.map(|rounds| format!("--rounds={rounds}"));
        let line = ["bindery-bench"].into_iter().chain(words.split(' ')).chain(rounds.as_deref());
        let outcome = Arguments::try_parse_from(line)
            .context("starting a measurement")
            .and_then(|arguments| arguments.command.run(bindery));
        match outcome {
            Ok(outcome) => {
                let Outcome { text, json } = outcome.expect("a measurement has an outcome");
                drop(ledger::take());
                (json, text)
            }
            Err(error) => {
                let message = format!("{error:#}");
                let finished = ledger::take();
                let shown = format!("failed: {message}\n\n{finished}");
                (json!({ "error": message, "finished": finished }), shown)
            }
        }
    }
}

fn write(path: &Path, file: &Value) -> Result<()> {
    let written = path.parent().map_or(Ok(()), fs::create_dir_all);
    written
        .and_then(|()| fs::write(path, format!("{file:#}\n")))
        .with_context(|| format!("writing {}", path.display()))
}

/// The day of a time in UTC, as `2024-02-29`.
fn date_of(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(since.as_secs() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The year, month and day of a number of days since 1970-01-01 (Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", `civil_from_days`).
const fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + (month <= 2) as u64, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(19_783), (2024, 3, 1));
        assert_eq!(civil(20_818), (2026, 12, 31));
    }

    #[test]
    fn every_measurement_is_a_command() {
        for words in ALL {
            let line = ["bindery-bench"].into_iter().chain(words.split(' ')).chain(["--rounds=1"]);
            assert!(Arguments::try_parse_from(line).is_ok(), "{words}");
        }
    }
}
