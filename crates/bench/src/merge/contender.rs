//! One contender's run: from memory given up to memory merged.

use std::{
    fmt,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bindery_host::{
    client::Client,
    protocol::{Answer, Request},
};
use bindery_testkit::machine::{
    KsmCounters, KsmGuard, KsmSettings, MemorySnapshot, ksmd_cpu_time, process_cpu_time,
};

use super::dataset::Dataset;
use crate::harness::Measured;

/// Who merges.
#[derive(Clone, Debug)]
pub enum Engine {
    /// The kernel, at full speed.
    Ksm,
    /// A daemon.
    Bindery {
        /// How many workers it has.
        workers: u32,
        /// Its merge period.
        period: Duration,
        /// The program.
        program: PathBuf,
    },
}

/// A contender that has not merged 98% by then has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// The share of all duplicates that counts as done, in percent.
const DONE_PERCENT: u64 = 98;

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ksm => f.write_str("KSM"),
            Self::Bindery { workers: 1, .. } => f.write_str("Bindery, 1 worker"),
            Self::Bindery { workers, .. } => write!(f, "Bindery, {workers} workers"),
        }
    }
}

/// A figure for a run that failed; the failure itself is reported beside it.
pub(super) fn nothing() -> Measured {
    Measured::new("time", "s", f64::NAN).unchecked()
}

/// Runs `engine` over fresh processes until 98% of their duplicates are merged.
pub(super) fn converge(engine: &Engine, dataset: &Dataset, program: &Path) -> Result<Measured> {
    let merger = Merger::start(engine)?;
    let mut guests = (0..dataset.processes)
        .map(|process| Guest::start(&merger, dataset, process, program))
        .collect::<Result<Vec<_>>>()?;
    guests.iter_mut().try_for_each(|guest| guest.expect("filled"))?;
    let used_before = used_memory()?;
    let (wall, cpu) = (Instant::now(), merger.cpu_time(&guests)?);
    for guest in &mut guests {
        guest.ask("merge", "given up")?;
    }
    let enough = dataset.duplicates() * DONE_PERCENT / 100;
    while merger.pages_saved()? < enough {
        if wall.elapsed() > PATIENCE {
            bail!("{engine} saved {} of {enough} pages in {PATIENCE:?}", merger.pages_saved()?);
        }
        thread::sleep(Duration::from_millis(10));
    }
    let (time, cpu_time) = (wall.elapsed(), merger.cpu_time(&guests)?.saturating_sub(cpu));
    // What is left of the work ends by itself; memory is compared when both are done.
    thread::sleep(Duration::from_millis(500));
    let used_after = used_memory()?;
    let saved = merger.pages_saved()?;
    merger.pause()?;
    for guest in &mut guests {
        guest.ask("verify", "verified")?;
    }
    drop(guests);
    merger.stop()?;
    let mib = |bytes: i64| bytes as f64 / f64::from(1 << 20);
    Ok(Measured::new("time", "s", time.as_secs_f64())
        .and("CPU", "s", cpu_time.as_secs_f64())
        .and("µs a page saved", "µs", cpu_time.as_secs_f64() * 1e6 / saved as f64)
        .and("memory before", "MiB", mib(used_before))
        .and("memory after", "MiB", mib(used_after))
        .unchecked())
}

/// Memory used by the whole machine, kernel structures included, in bytes.
fn used_memory() -> Result<i64> {
    let now = MemorySnapshot::take()?;
    Ok(now.total.0 as i64 - now.available.0 as i64)
}

/// Who merges, running.
enum Merger {
    Ksm(KsmGuard),
    Bindery { daemon: Child, socket: PathBuf, _stopped: KsmGuard, _directory: tempfile::TempDir },
}

impl Merger {
    fn start(engine: &Engine) -> Result<Self> {
        let Engine::Bindery { workers, period, program } = engine else {
            return Ok(Self::Ksm(KsmGuard::start(KsmSettings::full_speed())?));
        };
        let stopped = KsmGuard::stopped()?;
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("bindery.sock");
        let daemon = Command::new(program)
            .args(["daemon", "--workers", &workers.to_string(), "--period"])
            .arg(format!("{}ms", period.as_millis()))
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let started = Instant::now();
        while Client::connect(&socket).is_err() {
            ensure!(started.elapsed() < Duration::from_secs(10), "the daemon does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Self::Bindery { daemon, socket, _stopped: stopped, _directory: directory })
    }

    fn cpu_time(&self, guests: &[Guest]) -> Result<Duration> {
        match self {
            Self::Ksm(_) => Ok(ksmd_cpu_time()?),
            Self::Bindery { daemon, .. } => {
                let mut sum = process_cpu_time(daemon.id())?;
                for guest in guests {
                    sum += process_cpu_time(guest.process.id())?;
                }
                Ok(sum)
            }
        }
    }

    fn pages_saved(&self) -> Result<u64> {
        let Self::Bindery { socket, .. } = self else {
            return Ok(KsmCounters::read()?.pages_sharing);
        };
        let answer = Client::connect(socket)?.ask(&Request::Status {}, Duration::from_secs(5))?;
        let Answer::Status(status) = answer else { bail!("the daemon answered {answer:?}") };
        Ok(status.domains.iter().map(|domain| domain.pages_sharing).sum())
    }

    fn pause(&self) -> Result<()> {
        match self {
            Self::Ksm(guard) => Ok(guard.pause()?),
            Self::Bindery { .. } => Ok(()),
        }
    }

    fn stop(self) -> Result<()> {
        if let Self::Bindery { mut daemon, socket, .. } = self {
            let stop = Request::Stop { unmerge: false };
            Client::connect(&socket)?.ask(&stop, Duration::from_secs(10))?;
            daemon.wait()?;
        }
        Ok(())
    }
}

/// A process with memory to merge.
struct Guest {
    process: Child,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Guest {
    fn start(merger: &Merger, dataset: &Dataset, process: u32, program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        if let Merger::Bindery { socket, .. } = merger {
            command.arg("run").arg("--socket").arg(socket);
            command.args(["--name", &format!("guest{process}"), "--"]).arg(program);
        }
        let mut process = command
            .args(["bench", "guest-process", "--content", &dataset.content.to_string()])
            .args(["--pages", &dataset.pages.to_string()])
            .args(["--extent-pages", &dataset.extent_pages.to_string()])
            .args(["--processes", &dataset.processes.to_string()])
            .args(["--process", &process.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let (Some(words), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            unreachable!("both were asked for")
        };
        Ok(Self { process, words, answers: BufReader::new(answers) })
    }

    fn ask(&mut self, word: &str, answer: &str) -> Result<()> {
        writeln!(self.words, "{word}")?;
        self.expect(answer)
    }

    fn expect(&mut self, answer: &str) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(line.trim() == answer, "a guest's process said {line:?} instead of {answer:?}");
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It is ours; nothing of it is needed any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
