//! `cargo xtask selftests`: the kernel's own tests of memory management, from Debian's source package,
//! run plainly and with all their memory offered. What they say must be the same.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::{Ended, Offer, run_within};
use crate::cargo::target_directory;
use crate::setup;

/// Tests that compile with the C library alone, each with its arguments. Not `droppable`, which fills all memory
/// of the machine.
const TESTS: [(&str, &[&str]); 24] = [
    ("cow", &[]),
    ("gup_longterm", &[]),
    ("hugetlb_fault_after_madv", &[]),
    ("hugetlb_madv_vs_map", &[]),
    ("madv_populate", &[]),
    ("map_fixed_noreplace", &[]),
    ("map_hugetlb", &[]),
    ("map_populate", &[]),
    ("mdwe_test", &[]),
    ("mkdirty", &[]),
    ("mlock2-tests", &[]),
    ("mrelease_test", &[]),
    ("mremap_dontunmap", &[]),
    ("mremap_test", &[]),
    ("mseal_test", &[]),
    ("on-fault-limit", &[]),
    ("pagemap_ioctl", &[]),
    ("pkey_sighandler_tests", &[]),
    ("seal_elf", &[]),
    ("soft-dirty", &[]),
    ("uffd-stress", &["anon", "16", "8"]),
    ("uffd-stress", &["shmem", "16", "8"]),
    ("uffd-unit-tests", &[]),
    ("va_high_addr_switch", &[]),
];

/// Sources that several tests share.
const SHARED_SOURCES: [&str; 3] = ["vm_util.c", "thp_settings.c", "uffd-common.c"];

/// Lines that may differ, each with why that is no fault of Bindery's: a test, a part of the line.
const LEGITIMATE: [(&str, &str, &str); 3] = [
    ("mkdirty", "SIGSEGV generated", NO_HUGE_PAGES),
    ("mkdirty", "Did not get a THP populated", NO_HUGE_PAGES),
    ("pagemap_ioctl", "transact_test Extra pages", "it counts what its own threads race for"),
];

const NO_HUGE_PAGES: &str = "memory that is managed has small pages";

/// How long a test may take.
const LIMIT: Duration = Duration::from_secs(90);

/// Mappings of this size are offered: the tests' are small.
const OFFER_BYTES: &str = "4096";

/// After so many a test waits until they are taken.
const OFFER_RESTS: &str = "30";

pub(crate) fn run(wanted: &[String]) -> Result<()> {
    let source = match setup::linux_source() {
        Ok(source) => source,
        Err(error) => {
            eprintln!(
                "SKIPPED: the kernel's tests: Debian's linux-source cannot be had: {error:#}"
            );
            return Ok(());
        }
    };
    let arguments = ["--period", "20ms", "--set", "advisor_mode=none"];
    let Some(offer) = Offer::start(&arguments)? else { return Ok(()) };
    let (mut failed, mut ran) = (Vec::new(), 0);
    for (name, arguments) in TESTS {
        if !wanted.is_empty() && !wanted.iter().any(|one| one == name) {
            continue;
        }
        let Some(program) = build(&source, name)? else { continue };
        ran += 1;
        let differences = compare(&offer, &program, name, arguments)?;
        let verdict = if differences.is_empty() { "the same" } else { "DIFFERENT" };
        println!("{name} {}: {verdict}", arguments.join(" "));
        differences.iter().for_each(|line| println!("    {line}"));
        if !differences.is_empty() {
            failed.push(name);
        }
    }
    ensure!(ran > 0, "no test was run: none of that name, or none compiles here");
    if failed.is_empty() {
        return Ok(());
    }
    bail!("different with Bindery: {}", failed.join(", "))
}

/// Builds a test; says so if it does not compile here.
fn build(source: &Path, name: &str) -> Result<Option<PathBuf>> {
    let directory = source.join("tools/testing/selftests/mm");
    let program = target_directory().join("strangers").join(name);
    // What `make` finds out about liburing: it is not there.
    std::fs::write(directory.join("local_config.h"), "")?;
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-O2", "-D_GNU_SOURCE=", "-I..", "-I../../../include/uapi", "-o"]);
    compiler.arg(&program).arg(format!("{name}.c"));
    let shared = if name.starts_with("uffd") { &SHARED_SOURCES[..] } else { &SHARED_SOURCES[..2] };
    compiler.args(shared).args(["-lrt", "-lpthread", "-lm"]).current_dir(directory);
    let built = compiler.output()?;
    if built.status.success() {
        return Ok(Some(program));
    }
    let said = String::from_utf8_lossy(&built.stderr);
    let why = said.lines().find(|line| line.contains("error")).unwrap_or("unknown");
    println!("SKIPPED: {name} does not compile here: {why}");
    Ok(None)
}

/// What a test said and how it ended, as far as that is the same in every run: its verdicts.
fn verdicts(Ended { end, output }: &Ended) -> Vec<String> {
    let is_verdict = |line: &&str| {
        ["ok ", "not ok ", "1..", "Testing "].iter().any(|start| line.starts_with(start))
    };
    // How much memory `mrelease_test` needs until it is quick enough is the scheduler's to say.
    let verdict = |line: &str| match line.split_once(" reaping a child with ") {
        Some((before, _)) => before.to_owned(),
        None => line.to_owned(),
    };
    let mut lines: Vec<String> = output.lines().filter(is_verdict).map(verdict).collect();
    lines.push(end.clone());
    lines
}

/// Verdicts that are different in two pairs of runs: tests that race differ by themselves now and then.
fn compare(offer: &Offer, program: &Path, name: &str, arguments: &[&str]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for _ in 0..2 {
        let plain = verdicts(&run_within(LIMIT, &mut command(program, arguments))?);
        let mut offered = command(program, arguments);
        offer.apply(&mut offered, name);
        offered.env("OFFER_BYTES", OFFER_BYTES).env("OFFER_RESTS", OFFER_RESTS);
        let with = verdicts(&run_within(LIMIT, &mut offered)?);
        found = differences(name, &plain, &with);
        if found.is_empty() {
            break;
        }
    }
    Ok(found)
}

fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(directory) = program.parent() {
        command.current_dir(directory);
    }
    command
}

/// Verdicts that only one of two runs has.
fn differences(name: &str, plain: &[String], with: &[String]) -> Vec<String> {
    let is_legitimate = |line: &String| {
        LEGITIMATE.iter().any(|(test, part, _)| *test == name && line.contains(part))
    };
    let only = |of: &'static str, these: &[String], others: &[String]| -> Vec<String> {
        let here = these.iter().filter(|line| !others.contains(line) && !is_legitimate(line));
        here.map(|line| format!("{of}: {line}")).collect()
    };
    [only("plain", plain, with), only("with Bindery", with, plain)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_compared_and_nothing_else() {
        let ended = |output: &str| Ended { end: "exit status 0".into(), output: output.into() };
        let plain = verdicts(&ended("TAP version 13\n1..2\n# at 0x7f01\nok 1 a\nok 2 b\n"));
        let with = verdicts(&ended("TAP version 13\n1..2\n# at 0x7f02\nok 1 a\nnot ok 2 b\n"));
        assert_eq!(differences("t", &plain, &plain), Vec::<String>::new());
        let found = differences("t", &plain, &with);
        assert_eq!(found, ["plain: ok 2 b", "with Bindery: not ok 2 b"]);
    }
}
