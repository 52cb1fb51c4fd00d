//! Many checkpoints of a guest that works, beside archivers over the same memory.
//!
//! The guest builds, deletes and builds again. At each step it is stopped, checkpointed, and its RAM is
//! written to a file by QEMU's `pmemsave`; then it goes on. Afterwards each archiver that is installed takes the files
//! in their order, one at a time as they would have come; `zstd` takes them as one stream with its longest window.
//! Bindery's time is that of its commands, in which the guest was stopped already.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bindery_testkit::guest::QemuGuest;
use serde::Serialize;
use serde_json::json;

use super::Common;
use super::stage::{Stage, boot, bytes_on_disk};
use crate::harness::{Bar, Table, significant};
use crate::interrupt;

/// The guest and its checkpoints.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of all parts; rounds are not used.
    pub common: Common,
    /// Number of checkpoints.
    pub checkpoints: u32,
    /// RAM of the guest, in MiB.
    pub memory_mib: u32,
    /// Memory that its work takes, in MiB.
    pub work_mib: u32,
    /// Time for which it works between two checkpoints.
    pub interval: Duration,
    /// True if Bindery compresses.
    pub compress: bool,
}

/// Time and space that one store took.
#[derive(Clone, Debug, Serialize)]
pub struct Stored {
    /// Name of the store.
    pub name: String,
    /// Bytes that it keeps.
    pub bytes: u64,
    /// Time that it took, in seconds.
    pub seconds: f64,
}

/// Figures of all stores.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Number of checkpoints.
    pub checkpoints: u32,
    /// RAM of the guest, in MiB.
    pub memory_mib: u32,
    /// Bindery first.
    pub stores: Vec<Stored>,
    /// Archivers that are not installed.
    pub skipped: Vec<String>,
    /// Bars.
    pub bars: Vec<Bar>,
}

const GUEST: &str = "bench";

/// Time, as a share of the fastest archiver's.
const TIME_SHARE: f64 = 0.1;

/// Key of restic's repository, which is deleted in the end.
const KEY: &str = "benchmark";

/// Measures.
///
/// # Errors
/// If the guests' kit is incomplete, the guest or the daemon cannot be started, or a store fails.
pub fn run(options: &Options) -> Result<Report> {
    interrupt::catch()?;
    let pool_mib = u64::from(options.memory_mib) * u64::from(options.checkpoints).min(24) + 1024;
    let stage = Stage::new(&options.common, pool_mib)?;
    let images = stage.path("images");
    fs::create_dir(&images)?;
    let (bindery, files) = bindery(&stage, options, &images)?;
    let (mut stores, mut skipped) = (vec![bindery], Vec::new());
    for archiver in [Archiver::Zstd, Archiver::Borg, Archiver::Restic] {
        match archiver.is_installed() {
            true => stores.push(archiver.store(&stage, &files)?),
            false => skipped.push(archiver.program().to_owned()),
        }
    }
    let Options { checkpoints, memory_mib, .. } = *options;
    let bars = bars(&stores);
    Ok(Report { checkpoints, memory_mib, stores, skipped, bars })
}

fn bindery(stage: &Stage, options: &Options, images: &Path) -> Result<(Stored, Vec<PathBuf>)> {
    let mut guest = boot(stage.managed(GUEST, options.memory_mib))?;
    let mib = options.work_mib;
    guest.run_in_background("work", &format!("guest_agent load compile --mib {mib}"))?;
    let more: &[&str] = if options.compress { &["--compress"] } else { &[] };
    let (mut bytes, mut seconds, mut files) = (0, 0.0, Vec::new());
    for number in 1..=options.checkpoints {
        interrupt::rest(options.interval)?;
        guest.qmp()?.execute("stop", &json!({}))?;
        let name = format!("c{number}");
        let (took, created) = stage.checkpoint_with(GUEST, &name, more)?;
        bytes += created.checkpoint.written_bytes;
        seconds += took.as_secs_f64();
        let file = images.join(format!("image-{number:03}"));
        save_memory(&mut guest, options.memory_mib, &file)?;
        files.push(file);
        guest.qmp()?.execute("cont", &json!({}))?;
    }
    guest.shut_down();
    let name = if options.compress { "Bindery, --compress" } else { "Bindery" }.to_owned();
    Ok((Stored { name, bytes, seconds }, files))
}

fn save_memory(guest: &mut QemuGuest, memory_mib: u32, file: &Path) -> Result<()> {
    let size = u64::from(memory_mib) << 20;
    let arguments = json!({ "val": 0, "size": size, "filename": file });
    guest.qmp()?.execute("pmemsave", &arguments)?;
    Ok(())
}

/// A program that stores files.
#[derive(Clone, Copy)]
enum Archiver {
    Zstd,
    Borg,
    Restic,
}

impl Archiver {
    const fn program(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Borg => "borg",
            Self::Restic => "restic",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd --long=31",
            Self::Borg => "borg create",
            Self::Restic => "restic backup",
        }
    }

    fn is_installed(self) -> bool {
        let argument = if matches!(self, Self::Restic) { "version" } else { "--version" };
        let mut command = Command::new(self.program());
        command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn store(self, stage: &Stage, files: &[PathBuf]) -> Result<Stored> {
        let place = stage.path(self.program());
        let start = Instant::now();
        match self {
            Self::Zstd => compress(files, &place)?,
            Self::Borg => {
                run_program(self.command(stage).args(["init", "-e", "none"]).arg(&place))?;
                for (number, file) in files.iter().enumerate() {
                    let archive = format!("{}::{number}", place.display());
                    run_program(self.command(stage).arg("create").arg(archive).arg(file))?;
                }
            }
            Self::Restic => {
                let restic = || {
                    let mut command = self.command(stage);
                    command.env("RESTIC_PASSWORD", KEY).arg("--repo").arg(&place);
                    command
                };
                run_program(restic().arg("init"))?;
                for file in files {
                    run_program(restic().args(["backup", "--quiet"]).arg(file))?;
                }
            }
        }
        sync(&place)?;
        let seconds = start.elapsed().as_secs_f64();
        let bytes = size_of(&place)?;
        Ok(Stored { name: self.name().to_owned(), bytes, seconds })
    }

    /// Returns a command that keeps its cache beside its store.
    fn command(self, stage: &Stage) -> Command {
        let mut command = Command::new(self.program());
        command.env("BORG_BASE_DIR", stage.path("borg-base"));
        command.env("RESTIC_CACHE_DIR", stage.path("restic-cache"));
        command
    }
}

/// Compresses all files as one stream with `zstd`.
fn compress(files: &[PathBuf], place: &Path) -> Result<()> {
    let mut command = Command::new("zstd");
    command.args(["--long=31", "-q", "-c"]).stdin(Stdio::piped()).stdout(File::create(place)?);
    let mut child = command.spawn().context("starting zstd")?;
    let mut input = child.stdin.take().context("zstd's input")?;
    for file in files {
        io::copy(&mut File::open(file)?, &mut input).context("writing to zstd")?;
    }
    drop(input);
    ensure!(child.wait()?.success(), "zstd failed");
    Ok(())
}

fn run_program(command: &mut Command) -> Result<()> {
    interrupt::check()?;
    let output = command.stdin(Stdio::null()).output()?;
    let name = command.get_program().to_string_lossy().into_owned();
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", words.trim());
    Ok(())
}

/// Makes all of the file system durable that `place` is in.
fn sync(place: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(place)?)?)
}

/// Bytes of a file, or of all files below a directory.
fn size_of(place: &Path) -> Result<u64> {
    if !place.is_dir() {
        return bytes_on_disk(place);
    }
    let mut sum = 0;
    for entry in fs::read_dir(place)? {
        sum += size_of(&entry?.path())?;
    }
    Ok(sum)
}

fn bars(stores: &[Stored]) -> Vec<Bar> {
    let [bindery, others @ ..] = stores else { return Vec::new() };
    let least = |of: fn(&Stored) -> f64| others.iter().map(of).fold(f64::NAN, f64::min);
    let (bytes, seconds) = (least(|store| store.bytes as f64), least(|store| store.seconds));
    vec![
        Bar::at_most("bytes ÷ the least of the archivers", bindery.bytes as f64 / bytes, 1.0),
        Bar::at_most("time ÷ the fastest archiver's", bindery.seconds / seconds, TIME_SHARE),
    ]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title =
            format!("{} checkpoints of a guest of {} MiB", self.checkpoints, self.memory_mib);
        let mut table = Table::new(title, &["", "stored (MiB)", "time (s)"]);
        for Stored { name, bytes, seconds } in &self.stores {
            let mib = super::written(Some(*bytes));
            table.push(vec![name.clone(), significant(mib), significant(*seconds)]);
        }
        writeln!(f, "{table}")?;
        for program in &self.skipped {
            writeln!(f, "SKIPPED: {program} is not installed")?;
        }
        Bar::table(&self.bars).fmt(f)
    }
}
