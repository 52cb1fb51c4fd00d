//! `cargo xtask sanitize`: the lock-free structures under Miri and under ThreadSanitizer.
//!
//! Both come with nightly toolchains only, and build the standard library for themselves.

use std::io::ErrorKind;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

use crate::cargo::{Cargo, NIGHTLY, host, target_directory};
use crate::steps::Steps;

/// What a nightly toolchain must have: Miri, and the standard library's source.
const COMPONENTS: [&str; 2] = ["miri", "rust-src"];

/// What looks at the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sanitizer {
    /// An interpreter: what the language does not define, and what other memory orders would show
    Miri,
    /// The machine, with every access recorded: data races
    Thread,
}

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct SanitizeArgs {
    /// One of the two; both if none is named
    sanitizer: Option<Sanitizer>,
    /// In how many ways Miri runs each test
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
}

/// Tests of one package that are short under Miri, and those of them that have several threads.
struct Subject {
    package: &'static str,
    tests: &'static [&'static str],
    threads: &'static [&'static str],
    miri_flags: &'static str,
}

const SUBJECTS: [Subject; 2] = [
    Subject {
        package: "bindery-dirty",
        tests: &["stress", "front", "oracle"],
        threads: &["stress", "front"],
        miri_flags: "",
    },
    Subject {
        package: "bindery-index",
        tests: &["stress"],
        threads: &["stress"],
        // crossbeam-epoch goes from a list's links to what holds them, which Stacked Borrows refuses, and
        // never frees the last garbage.
        miri_flags: "-Zmiri-tree-borrows -Zmiri-ignore-leaks",
    },
];

pub(crate) fn run(arguments: &SanitizeArgs) -> Result<()> {
    let is_wanted = |sanitizer| arguments.sanitizer.is_none_or(|wanted| wanted == sanitizer);
    install()?;
    let mut steps = Steps::default();
    for subject in SUBJECTS.iter().filter(|_| is_wanted(Sanitizer::Miri)) {
        let name = format!("Miri, {} seeds: {}", arguments.seeds, subject.package);
        steps.run(name, || miri(subject, arguments.seeds));
    }
    for subject in SUBJECTS.iter().filter(|_| is_wanted(Sanitizer::Thread)) {
        steps.run(format!("ThreadSanitizer: {}", subject.package), || thread(subject));
    }
    steps.finish()
}

/// Installs the toolchain, or what it lacks.
fn install() -> Result<()> {
    let listed = Command::new("rustup")
        .args(["component", "list", "--installed", "--toolchain", NIGHTLY])
        .output();
    let listed = match listed {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "this takes a nightly toolchain with {}, and there is no rustup here to install one: see \
             https://rustup.rs",
            COMPONENTS.join(" and ")
        ),
        listed => listed.context("starting rustup")?,
    };
    if listed.status.success() && has_all(&String::from_utf8_lossy(&listed.stdout)) {
        return Ok(());
    }
    let components = COMPONENTS.join(",");
    println!("rustup installs a nightly toolchain with {components}");
    let status = Command::new("rustup")
        .args(["toolchain", "install", NIGHTLY, "--profile", "minimal", "--component", &components])
        .status()
        .context("starting rustup")?;
    ensure!(status.success(), "rustup could not install the nightly toolchain: {status}");
    Ok(())
}

/// Whether all components are among those that rustup lists, some of which have the host's name behind
/// their own.
fn has_all(listed: &str) -> bool {
    let is_listed = |component: &&str| {
        let is_it = |line: &str| {
            line.strip_prefix(component)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        listed.lines().any(is_it)
    };
    COMPONENTS.iter().all(is_listed)
}

fn miri(subject: &Subject, seeds: u32) -> Result<()> {
    // Random numbers and clocks are the host's.
    let flags =
        format!("-Zmiri-disable-isolation -Zmiri-many-seeds=0..{seeds} {}", subject.miri_flags);
    let mut command = vec!["miri", "test", "--package", subject.package];
    command.extend(of_tests(subject.tests));
    Cargo::nightly(&command)
        .env("MIRIFLAGS", flags)
        .env("CARGO_TARGET_DIR", target_directory().join("miri"))
        .run()
}

fn thread(subject: &Subject) -> Result<()> {
    let host = host()?;
    // The standard library's accesses are recorded only if it is built in the same way.
    let mut command = vec!["test", "-Zbuild-std", "--target", &host, "--release"];
    command.extend(["--package", subject.package]);
    command.extend(of_tests(subject.threads));
    Cargo::nightly(&command)
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env("CARGO_TARGET_DIR", target_directory().join("tsan"))
        .run()
}

fn of_tests<'t>(tests: &'t [&'t str]) -> impl Iterator<Item = &'t str> {
    tests.iter().flat_map(|test| ["--test", *test])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_known_by_their_names() {
        assert!(has_all(
            "cargo-x86_64-unknown-linux-gnu\nmiri-x86_64-unknown-linux-gnu\nrust-src\n"
        ));
        assert!(has_all("miri\nrust-src"));
        assert!(!has_all("miri-x86_64-unknown-linux-gnu\nrust-std\n"));
        assert!(!has_all(""));
    }
}
