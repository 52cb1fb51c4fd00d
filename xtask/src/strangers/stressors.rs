//! `cargo xtask stressors`: how fast stress-ng's stressors of memory are with all their memory offered,
//! beside plain.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::{Offer, run_within};
use crate::cargo::target_directory;
use crate::setup;

/// Stressors that map, discard, move, protect, lock, share or fill memory.
const STRESSORS: [&str; 23] = [
    "bigheap",
    "brk",
    "fault",
    "fork",
    "madvise",
    "malloc",
    "memfd",
    "memthrash",
    "mlock",
    "mmap",
    "mmapaddr",
    "mmapfixed",
    "mmapfork",
    "mmaphuge",
    "mmapmany",
    "mprotect",
    "mremap",
    "msync",
    "munmap",
    "numa",
    "shm",
    "stream",
    "vm",
];

/// What is aimed at: a program keeps half of its speed.
const AIM: f64 = 0.5;

/// Which stressors, and how long.
#[derive(Debug, Args)]
pub(crate) struct StressorArgs {
    /// As stress-ng calls them; a list of those that map much if none is named
    names: Vec<String>,
    /// For how long each runs, plain and offered
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// How often: the median is printed
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Merge as fast as it goes, instead of as the daemon does by default
    #[arg(long)]
    eager: bool,
}

pub(crate) fn run(arguments: &StressorArgs) -> Result<()> {
    ensure!(arguments.rounds > 0, "--rounds: at least one");
    let stress_ng = setup::stress_ng()?;
    let eager = ["--period", "50ms", "--set", "advisor_mode=none"];
    let daemon_arguments = if arguments.eager { &eager[..] } else { &[] };
    let Some(offer) = Offer::start(daemon_arguments)? else { return Ok(()) };
    let names: Vec<&str> = match arguments.names.as_slice() {
        [] => STRESSORS.to_vec(),
        names => names.iter().map(String::as_str).collect(),
    };
    println!("| stressor | plain, operations a second | offered | ratio |\n|---|---|---|---|");
    let mut slow = Vec::new();
    for name in names {
        // In pairs, so that what else the machine does is in both.
        let mut pairs = Vec::new();
        for _ in 0..arguments.rounds {
            let plain = rate(&stress_ng, name, arguments.seconds, None)?;
            pairs.push((plain, rate(&stress_ng, name, arguments.seconds, Some(&offer))?));
        }
        pairs.sort_by(|(a, b), (c, d)| (b / a).total_cmp(&(d / c)));
        let (plain, offered) = pairs[pairs.len() / 2];
        let ratio = offered / plain;
        println!("| `{name}` | {plain:.2} | {offered:.2} | {ratio:.2} |");
        if ratio < AIM {
            slow.push(name);
        }
    }
    match slow.as_slice() {
        [] => println!("\nall keep at least {AIM} of their speed"),
        slow => println!("\nbelow {AIM}: {}", slow.join(", ")),
    }
    Ok(())
}

/// Operations a second of one run, by stress-ng's own count. It verifies what it does.
fn rate(stress_ng: &StressNg, name: &str, seconds: u64, offer: Option<&Offer>) -> Result<f64> {
    let mut command = stress_ng.command(name, seconds);
    if let Some(offer) = offer {
        offer.apply(&mut command, name);
    }
    let ended = run_within(Duration::from_secs(seconds * 4 + 60), &mut command)?;
    let verified = ended.end == "exit status 0";
    ensure!(verified, "stress-ng --{name} ended with {}:\n{}", ended.end, ended.output);
    rate_in(&ended.output, name).with_context(|| format!("no figures of {name}: {}", ended.output))
}

/// The rate, in a line as `stress-ng: metrc: [1] mmap 2 3.12 0.49 2.23 0.64 0.74 86.99 264984`: by
/// real time.
fn rate_in(output: &str, name: &str) -> Option<f64> {
    output.lines().filter(|line| line.contains("metrc:")).find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != name);
        words.nth(5)?.parse().ok()
    })
}

/// stress-ng of the kit.
#[derive(Debug)]
pub(crate) struct StressNg {
    pub(crate) directory: PathBuf,
}

impl StressNg {
    fn command(&self, name: &str, seconds: u64) -> Command {
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
        let libraries = libraries.map(|path| self.directory.join(path).display().to_string());
        let mut command = Command::new(self.directory.join("usr/bin/stress-ng"));
        command.env("LD_LIBRARY_PATH", libraries.join(":"));
        command.arg(format!("--{name}")).args(["1", "--timeout"]).arg(seconds.to_string());
        command.args(["--metrics", "--verify", "--temp-path"]).arg(temporary());
        command
    }
}

fn temporary() -> PathBuf {
    let path: &Path = &target_directory();
    path.join("strangers")
}

#[cfg(test)]
mod tests {
    use super::rate_in;

    #[test]
    fn the_rate_by_real_time_is_read() {
        let output = "stress-ng: metrc: [7] stressor bogo ops real time\n\
             stress-ng: metrc: [7] mmap 2 3.12 0.49 2.23 0.64 0.74 86.99 264984\n";
        assert_eq!(rate_in(output, "mmap"), Some(0.64));
        assert_eq!(rate_in(output, "vm"), None);
    }
}
