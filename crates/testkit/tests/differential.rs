//! Random sequences of what programs do to their memory, with Bindery and without: every result, every
//! errno and every byte is the same.
//!
//! The program is `src/bin/differential`. It runs once plainly, and twice at once under a daemon that
//! merges at full speed, so that the twins' pages are merged. On a difference the sequence is shortened
//! as long as the difference stays, and printed with what runs it again.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bindery_testkit::bindery::{Bindery, Daemon};
use bindery_testkit::skipped;
use rustix::process::{Pid, Signal, kill_process_group};

const OPERATIONS_VARIABLE: &str = "BINDERY_DIFFERENTIAL_OPERATIONS";
const SEED_VARIABLE: &str = "BINDERY_DIFFERENTIAL_SEED";
const SEQUENCE_VARIABLE: &str = "BINDERY_DIFFERENTIAL_SEQUENCE";
const AT_ONCE_VARIABLE: &str = "BINDERY_DIFFERENTIAL_AT_ONCE";

/// Operations of the short form.
const OPERATIONS: u32 = 2 * RUN;

/// Operations that one run of the program does: a new one, with another seed, goes on.
const RUN: u32 = 1000;

/// Runs at once in the short form: most of each is waiting until memory is merged.
const AT_ONCE: usize = 4;

/// Runs at once in a longer form: it has the machine for itself.
const AT_ONCE_LONG: usize = 16;

/// How often a sequence that may be wrong only sometimes is run before it is believed to be right.
const TRIES: u32 = 3;

/// How long a sequence is shortened.
const SHRINKING: Duration = Duration::from_secs(240);

/// A run that has written nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// What came of a run.
struct Run {
    /// The log, and how the program ended: what must be the same.
    lines: Vec<String>,
    /// Pages that were seen merged.
    merged: u64,
}

/// Waits until the program has ended, or hangs: then it is ended with its children.
fn finish(mut command: Command) -> Run {
    let (log, errors) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap());
    let mut child = command.stderr(errors.try_clone().unwrap()).process_group(0).spawn().unwrap();
    let (mut length, mut since) = (0, Instant::now());
    let end = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.to_string();
        }
        let now = log.metadata().unwrap().len();
        if now > length {
            (length, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
            child.wait().unwrap();
            break "it hangs".to_owned();
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (text, said) = (whole(log), whole(errors));
    let merged = said.lines().find_map(|line| line.strip_prefix("merged ")?.parse().ok());
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.push(match merged {
        Some(_) => end,
        None => format!("{end}: {said}"),
    });
    Run { lines, merged: merged.unwrap_or(0) }
}

fn whole(mut file: File) -> String {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Numbers of operations as the program takes them: `0-7,9`.
fn sequence_text(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let text = |run: &[u32]| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    };
    runs.map(text).collect::<Vec<_>>().join(",")
}

fn parse_sequence(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse().unwrap()..=last.parse::<u32>().unwrap()
    };
    text.split(',').flat_map(range).collect()
}

/// The differences that a sequence shows, and how much was merged.
struct Outcome {
    difference: Option<String>,
    merged: u64,
}

fn compare(daemon: &Daemon, seed: u64, numbers: &[u32]) -> Outcome {
    let program = env!("CARGO_BIN_EXE_differential");
    let words = [seed.to_string(), sequence_text(numbers)];
    let mut plain = Command::new(program);
    plain.args(&words);
    // A guest of the run before may still be known.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let twins = ["one", "two"].map(|name| {
        let launcher = daemon.launcher(&format!("{name}-{run}"));
        let mut command = Command::new(&launcher[0]);
        command.args(&launcher[1..]).arg(program).args(&words).env("DIFFERENTIAL_MANAGED", "1");
        command.env("BINDERY_LOG_FILE", "/dev/null");
        thread::spawn(move || finish(command))
    });
    let plain = finish(plain);
    let mut outcome = Outcome { difference: None, merged: 0 };
    for twin in twins {
        let with = twin.join().unwrap();
        outcome.merged += with.merged;
        let mut lines = with.lines.iter().zip(&plain.lines);
        if let Some((line, plain)) = lines.find(|(with, plain)| with != plain) {
            let end = with.lines.last().unwrap();
            outcome.difference = Some(format!("with:  {line}\nplain: {plain}\nin the end: {end}"));
        }
    }
    outcome
}

/// Some difference of a sequence that may show one only sometimes.
fn find(daemon: &Daemon, seed: u64, numbers: &[u32]) -> Option<String> {
    (0..TRIES).find_map(|_| compare(daemon, seed, numbers).difference)
}

/// Shortens a sequence by leaving out ever smaller parts of it (delta debugging).
fn shrink(daemon: &Daemon, seed: u64, mut numbers: Vec<u32>) -> Vec<u32> {
    let start = Instant::now();
    let mut part = numbers.len().div_ceil(2);
    while start.elapsed() < SHRINKING {
        let mut at = numbers.len();
        let before = numbers.len();
        // From the end: what comes after the difference goes first.
        while at > 0 && start.elapsed() < SHRINKING {
            let from = at.saturating_sub(part);
            let rest = [&numbers[..from], &numbers[at..]].concat();
            if !rest.is_empty() && find(daemon, seed, &rest).is_some() {
                numbers = rest;
            }
            at = from;
        }
        match part {
            1 if numbers.len() == before => break,
            _ => part = part.div_ceil(2).max(1),
        }
    }
    numbers
}

/// Shortens what differs and fails with the shortest.
fn report(daemon: &Daemon, seed: u64, numbers: Vec<u32>, first: &str) -> ! {
    let shortest = shrink(daemon, seed, numbers);
    let last = find(daemon, seed, &shortest).unwrap_or_else(|| "now and then only".to_owned());
    let text = sequence_text(&shortest);
    panic!(
        "memory is different with Bindery\n{first}\nshortened to {} operations:\n{last}\nagain: \
         {SEED_VARIABLE}={seed} {SEQUENCE_VARIABLE}={text} cargo test -p bindery-testkit --test \
         differential",
        shortest.len(),
    );
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number is expected")))
}

#[test]
fn memory_is_the_same_with_bindery() {
    let bindery = match Bindery::locate() {
        Ok(bindery) => bindery,
        Err(error) => return skipped!("differential: {error}"),
    };
    let operations = variable(OPERATIONS_VARIABLE).unwrap_or(OPERATIONS);
    let sequence = std::env::var(SEQUENCE_VARIABLE);
    let arguments = ["--period", "20ms", "--set", "advisor_mode=none"];
    let daemon = bindery.daemon(&arguments).unwrap_or_else(|error| panic!("{error}"));
    let seed = variable(SEED_VARIABLE).unwrap_or(1);
    let usual = if operations > OPERATIONS { AT_ONCE_LONG } else { AT_ONCE };
    let at_once = variable(AT_ONCE_VARIABLE).unwrap_or(usual);
    if let Ok(text) = sequence {
        let numbers = parse_sequence(&text);
        if let Some(difference) = find(&daemon, seed, &numbers) {
            report(&daemon, seed, numbers, &difference);
        }
        return;
    }
    let merged = AtomicU64::new(0);
    let runs = Mutex::new((seed..).zip((0..operations).step_by(RUN as usize)));
    let differing = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while differing.lock().unwrap().is_none() {
                    let Some((seed, done)) = runs.lock().unwrap().next() else { return };
                    let numbers: Vec<u32> = (0..RUN.min(operations - done)).collect();
                    let outcome = compare(&daemon, seed, &numbers);
                    merged.fetch_add(outcome.merged, Ordering::Relaxed);
                    if let Some(difference) = outcome.difference {
                        *differing.lock().unwrap() = Some((seed, numbers, difference));
                    }
                }
            });
        }
    });
    if let Some((seed, numbers, difference)) = differing.into_inner().unwrap() {
        report(&daemon, seed, numbers, &difference);
    }
    let merged = merged.into_inner();
    println!("{operations} operations, {merged} merged pages seen");
    assert!(merged > 0, "nothing was merged, so nothing was shown: {}", daemon.log());
}

#[test]
fn sequences_are_written_as_they_are_read() {
    let numbers = [0, 1, 2, 5, 7, 8];
    assert_eq!(sequence_text(&numbers), "0-2,5,7-8");
    assert_eq!(parse_sequence("0-2,5,7-8"), numbers);
}
