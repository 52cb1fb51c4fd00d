//! `cargo xtask fuzz`: libFuzzer over what strangers can send, with the toolchain that builds all else.
//!
//! Coverage counters are a pass of LLVM's that stable rustc can be told to run. What they are put into
//! forbids unsafe code or is a parser, so no sanitizer is asked for, which would take a nightly
//! toolchain (`cargo +nightly fuzz run TARGET` has one).

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cargo::{Cargo, host, root, target_directory};
use crate::steps::Steps;

/// As `cargo fuzz` has them, but for the sanitizer.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// The most memory that a target may have, in MiB, and the longest input, in bytes: more than the
/// daemon reads in one go.
const LIMITS: [&str; 3] = ["-rss_limit_mb=512", "-max_len=20000", "-timeout=10"];

/// What to fuzz.
#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// One of `fuzz/fuzz_targets`; all of them if none is named
    target: Option<String>,
    /// For how long, each
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// What goes to libFuzzer
    #[arg(last = true)]
    more: Vec<String>,
}

pub(crate) fn run(arguments: &FuzzArgs) -> Result<()> {
    let mut targets = targets()?;
    if let Some(wanted) = &arguments.target {
        ensure!(targets.contains(wanted), "no target {wanted}; there are {}", targets.join(", "));
        targets = vec![wanted.clone()];
    }
    // With a target named, what runs while building is built without counters.
    let host = host()?;
    let mut steps = Steps::default();
    for target in targets {
        steps.run(format!("fuzzing {target}"), || fuzz(&target, &host, arguments));
    }
    steps.finish()
}

/// The names of all targets.
fn targets() -> Result<Vec<String>> {
    let directory = root().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&directory).context("reading fuzz/fuzz_targets")? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Runs one target. What it learns stays in `target/fuzz`; the seeds in `fuzz/corpus` are only read.
fn fuzz(target: &str, host: &str, arguments: &FuzzArgs) -> Result<()> {
    let directory = target_directory().join("fuzz");
    let [learned, artifacts] =
        ["corpus", "artifacts"].map(|kind| directory.join(kind).join(target));
    for made in [&learned, &artifacts] {
        std::fs::create_dir_all(made).with_context(|| format!("making {}", made.display()))?;
    }
    let seconds = format!("-max_total_time={}", arguments.seconds);
    let prefix = format!("-artifact_prefix={}/", artifacts.display());
    let (learned, seeds) = (learned.display().to_string(), format!("fuzz/corpus/{target}"));
    let mut command = vec!["run", "--quiet", "--release", "--manifest-path", "fuzz/Cargo.toml"];
    command.extend(["--target", host, "--bin", target, "--", &seconds, &prefix]);
    command.extend(LIMITS);
    command.extend(arguments.more.iter().map(String::as_str));
    // A file that is named is all that is to be run.
    if !arguments.more.iter().any(|argument| !argument.starts_with('-')) {
        command.extend([&*learned, &*seeds]);
    }
    let dictionary = format!("-dict=fuzz/{target}.dict");
    if root().join(format!("fuzz/{target}.dict")).exists() {
        command.push(&dictionary);
    }
    Cargo::new(&command).env("RUSTFLAGS", RUSTFLAGS).env("CARGO_TARGET_DIR", directory).run()
}
