//! Runs test binaries: two at once, but those alone that need the machine for themselves.
//!
//! Tests wait for most of their time: for guests to boot, memory to be merged, processes to end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::binaries::TestBinary;

/// Binaries that run at once: more would have guests wait for CPUs on a small machine, and tests fail
/// that allow for some delay.
const AT_ONCE: usize = 2;

/// Tests that change a setting of the whole machine or measure all of it: these run alone. A package
/// without a target: all of its tests.
const ALONE: &[(&str, Option<&str>)] = &[
    ("advisor", None),
    ("bench", None),
    ("cli", Some("--test cases")),
    ("cli", Some("--test fire_domains")),
    ("cli", Some("--test fire_huge_pages")),
    ("cli", Some("--test fire_limits")),
    ("cli", Some("--test fire_qemu")),
    ("cli", Some("--test http_load")),
    ("cli", Some("--test ksm")),
    ("cli", Some("--test ksm_kernels")),
    ("ksm", None),
    ("space", Some("--test primitive")),
    ("space", Some("--test torture")),
    ("testkit", Some("--lib")),
    ("testkit", Some("--test ksm")),
];

/// How many binaries the closing table names.
const SLOWEST: usize = 12;

/// How a binary ended.
struct Ended {
    binary: TestBinary,
    status: ExitStatus,
    time: Duration,
}

/// Runs all of `tests`, and prints what each says when it has ended, then which took longest. Blocks for
/// minutes.
///
/// # Errors
/// When a test fails; names all binaries that have one.
pub(super) fn run(tests: &[TestBinary], program: &Path) -> Result<()> {
    let (alone, others): (Vec<_>, Vec<_>) = tests.iter().cloned().partition(runs_alone);
    let mut ended = run_some(alone, 1, program)?;
    ended.extend(run_some(others, AT_ONCE, program)?);
    ended.sort_by_key(|ended| std::cmp::Reverse(ended.time));
    println!("\nslowest of {} binaries:", ended.len());
    for Ended { binary, time, .. } in ended.iter().take(SLOWEST) {
        println!("{:>8.1} s  {binary}", time.as_secs_f64());
    }
    let failed = ended.iter().filter(|ended| !ended.status.success());
    let names: Vec<String> = failed.map(|ended| ended.binary.command()).collect();
    ensure!(names.is_empty(), "failed; once more:\n{}", names.join("\n"));
    Ok(())
}

fn runs_alone(binary: &TestBinary) -> bool {
    let has_all_of = |target: &Option<&str>| target.is_none_or(|target| target == binary.target);
    ALONE.iter().any(|(package, target)| *package == binary.package() && has_all_of(target))
}

fn run_some(tests: Vec<TestBinary>, at_once: usize, program: &Path) -> Result<Vec<Ended>> {
    let (left, ended) = (Mutex::new(VecDeque::from(tests)), Mutex::new(Vec::new()));
    let next = || left.lock().expect("nobody panics with it").pop_front();
    let work = || -> Result<()> {
        while let Some(binary) = next() {
            let (done, mut output) = run_one(binary, program)?;
            let mut ended = ended.lock().expect("nobody panics with it");
            // With the lock: what two say is not mixed.
            println!("\n-- {}", done.binary);
            io::copy(&mut output, &mut io::stdout().lock())?;
            ended.push(done);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("it does not panic"))
    })?;
    Ok(ended.into_inner().expect("nobody panics with it"))
}

/// Runs a binary as cargo would. Returns how it ended, and what it said.
fn run_one(binary: TestBinary, program: &Path) -> Result<(Ended, impl Read + use<>)> {
    let start = Instant::now();
    let mut output: File = tempfile::tempfile().context("a file for what a test says")?;
    let status = Command::new(&binary.program)
        .current_dir(&binary.directory)
        .env("CARGO_MANIFEST_DIR", &binary.directory)
        .env("BINDERY_PROGRAM", program)
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .status()
        .with_context(|| format!("starting {}", binary.program.display()))?;
    output.rewind()?;
    Ok((Ended { binary, status, time: start.elapsed() }, output))
}
