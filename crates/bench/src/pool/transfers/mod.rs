//! `bindery-bench pool`: what the pool costs over the bare file.
//!
//! The rival is a plain io_uring loop on a file opened with O_DIRECT, with none of the pool's code in
//! between. Every contender has a file of its own in the same directory, and they take turns. Writes are
//! of 2 MiB, one after the other, from one huge page, into a file without blocks, and end with its sync.
//! What the device can do is what the fastest of those does that write without checksums: the bare
//! file at any of the depths, or a device of the pool. Objects are written in
//! the same way and from such a page, with their checksums, and each is committed, which is two syncs
//! and the catalogue's record: by a committer while the next are written; and, as those do who have it
//! simpler, from memory that is copied, and each before the next. Reads are of 4 KiB at random places,
//! the same for all; objects are read and verified by as many threads as reads are to be under way.

mod contender;
mod mblocks;
mod raw;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bindery_pool::device::IoEngine;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use self::contender::{Contender, Pooled};
use self::mblocks::{How, Mblocks};
use self::raw::Raw;
use super::cpu::with_cpu;
use super::medium::{Medium, Rates};
use crate::harness::{Measured, SampleSet, Table, take_turns};

/// Bytes of one sequential write: a huge page.
pub const WRITE_BYTES: usize = 2 << 20;
/// Bytes of one random read.
pub const READ_BYTES: usize = 4096;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Sequential writes.
    Write,
    /// Random reads.
    Read,
}

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which way.
    pub work: Work,
    /// Where the files are made; they are removed at the end.
    pub directory: PathBuf,
    /// A device to play, instead of the one below that directory.
    pub device: Option<Rates>,
    /// Length of each file, in MiB.
    pub file_mib: u64,
    /// Lengths of objects, in MiB. The first one's are read.
    pub object_mib: Vec<u64>,
    /// How many transfers are under way at once.
    pub depths: Vec<usize>,
    /// Random reads in each round.
    pub reads: usize,
    /// Interleaved rounds; the tables show medians over them.
    pub rounds: usize,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Which way.
    pub work: Work,
    /// The device that was played, if one was.
    pub device: Option<Rates>,
    /// Length of each file, in MiB.
    pub file_mib: u64,
    /// Lengths of objects, in MiB.
    pub object_mib: Vec<u64>,
    /// Random reads in each round.
    pub reads: usize,
    /// Of writes one, of all depths; of reads one for each depth.
    pub comparisons: Vec<Comparison>,
}

/// Contenders that took turns.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// How many transfers were under way at once, at most.
    pub depth: usize,
    /// The place of what the others are compared with: the bare file, or of writes what has no checksums
    /// and was fastest.
    pub base: usize,
    /// Rate and CPU time of each contender.
    pub contenders: Vec<SampleSet>,
}

/// Measures all depths.
///
/// # Errors
/// If an option is zero, empty or too large, if the directory has no room, or has no direct I/O.
pub fn run(options: &Options) -> Result<Report> {
    let Options { work, directory, device, file_mib, object_mib, depths, reads, rounds } = options;
    ensure!(*rounds > 0, "--rounds must be at least 1");
    ensure!(*reads > 0, "--reads must be at least 1");
    ensure!((1..=1 << 20).contains(file_mib), "--file-mib must be from 1 to {}", 1 << 20);
    ensure!(file_mib % 2 == 0, "--file-mib must be even: writes are of 2 MiB");
    ensure!(
        !object_mib.is_empty() && object_mib.iter().all(|mib| (1..=1 << 20).contains(mib)),
        "--object-mib must be from 1 to {}",
        1 << 20
    );
    ensure!(
        !depths.is_empty() && depths.iter().all(|depth| (1..=4096).contains(depth)),
        "--depths must be from 1 to 4096"
    );
    let contenders = (depths.len() + IoEngine::ALL.len() + 3 * object_mib.len()) as u64;
    let medium =
        Medium::create_for(directory, ((contenders * file_mib) << 20) + (1 << 30), *device)?;
    medium.iter().for_each(|medium| medium.hold(true));
    let directory = medium.as_ref().map_or(&**directory, Medium::directory);
    let place = tempfile::tempdir_in(directory)
        .with_context(|| format!("cannot make files in {}", directory.display()))?;
    let file = &Files { directory: place.path(), bytes: file_mib << 20 };
    let comparisons = match work {
        Work::Write => vec![compare_writes(file, object_mib, depths, *rounds)?],
        Work::Read => {
            let compare = |&depth| compare_reads(file, object_mib[0], depth, *reads, *rounds);
            depths.iter().map(compare).collect::<Result<_>>()?
        }
    };
    let (work, device, file_mib, reads) = (*work, *device, *file_mib, *reads);
    let object_mib = object_mib.clone();
    Ok(Report { work, device, file_mib, object_mib, reads, comparisons })
}

/// Where contenders make files, and of how many bytes.
struct Files<'a> {
    directory: &'a Path,
    bytes: u64,
}

type Contenders = Vec<Box<dyn Contender>>;

impl Files<'_> {
    fn raw(&self, depth: usize) -> Result<Box<dyn Contender>> {
        let path = self.directory.join(format!("raw-{depth}"));
        Ok(Box::new(Raw::create(&path, self.bytes, depth)?))
    }

    fn device(&self, engine: IoEngine, depth: usize) -> Result<Box<dyn Contender>> {
        Ok(Box::new(Pooled::create(self.directory, self.bytes, engine, depth)?))
    }

    fn mblocks(&self, mib: u64, depth: usize, how: How) -> Result<Box<dyn Contender>> {
        Ok(Box::new(Mblocks::create(self.directory, self.bytes, mib << 20, depth, how)?))
    }
}

/// The bare file at each depth and the pool's devices, of which the fastest is what all are compared
/// with; and objects of each length.
fn compare_writes(
    files: &Files<'_>,
    object_mib: &[u64],
    depths: &[usize],
    rounds: usize,
) -> Result<Comparison> {
    let depth = depths.iter().copied().max().expect("there is a depth");
    let mut contenders: Contenders =
        depths.iter().map(|&depth| files.raw(depth)).collect::<Result<_>>()?;
    for engine in IoEngine::ALL {
        contenders.push(files.device(engine, depth)?);
    }
    let without_checksums = contenders.len();
    let longest = object_mib.iter().max();
    for mib in object_mib {
        contenders.push(files.mblocks(*mib, depth, How::Shared)?);
        contenders.push(files.mblocks(*mib, depth, How::Copied)?);
        // Of short ones each takes as long as its syncs, and nothing is learned from that.
        if Some(mib) == longest {
            contenders.push(files.mblocks(*mib, depth, How::OneByOne)?);
        }
    }
    let contenders = write(contenders, files.bytes >> 20, rounds)?;
    let rate = |at: &usize| contenders[*at].figures[0].median;
    let base = (0..without_checksums).max_by(|a, b| rate(a).total_cmp(&rate(b)));
    Ok(Comparison { depth, base: base.expect("there is a depth"), contenders })
}

/// The bare file first.
fn compare_reads(
    files: &Files<'_>,
    object_mib: u64,
    depth: usize,
    reads: usize,
    rounds: usize,
) -> Result<Comparison> {
    let mut contenders: Contenders = vec![files.raw(depth)?];
    for engine in IoEngine::ALL {
        contenders.push(files.device(engine, depth)?);
    }
    contenders.push(files.mblocks(object_mib, depth, How::Shared)?);
    let contenders = read(contenders, files.bytes, reads, rounds)?;
    Ok(Comparison { depth, base: 0, contenders })
}

fn names(contenders: &[Box<dyn Contender>]) -> Vec<String> {
    contenders.iter().map(|contender| contender.name()).collect()
}

fn write(
    mut contenders: Vec<Box<dyn Contender>>,
    mib: u64,
    rounds: usize,
) -> Result<Vec<SampleSet>> {
    take_turns("written", rounds, &names(&contenders), |who| {
        let contender = &mut contenders[who];
        let (elapsed, cpu, outcome) = with_cpu(|| contender.write());
        outcome?;
        // So that one file at a time has blocks.
        contender.empty()?;
        Ok(Measured::new("written", "MiB/s", mib as f64 / elapsed.as_secs_f64()).and(
            "CPU",
            "µs/MiB",
            cpu.as_secs_f64() * 1e6 / mib as f64,
        ))
    })
}

fn read(
    mut contenders: Vec<Box<dyn Contender>>,
    bytes: u64,
    reads: usize,
    rounds: usize,
) -> Result<Vec<SampleSet>> {
    let mut random = SmallRng::seed_from_u64(5);
    let blocks = bytes / READ_BYTES as u64;
    let mut offsets = || random.random_range(0..blocks) * READ_BYTES as u64;
    let offsets: Vec<u64> = (0..reads).map(|_| offsets()).collect();
    for contender in &mut contenders {
        contender.write()?;
        // A round that is thrown away.
        contender.read(&offsets)?;
    }
    take_turns("read", rounds, &names(&contenders), |who| {
        let (elapsed, cpu, check) = with_cpu(|| contenders[who].read(&offsets));
        Ok(Measured::new("read", "k/s", reads as f64 / elapsed.as_secs_f64() / 1e3)
            .and("CPU", "µs/read", cpu.as_secs_f64() * 1e6 / reads as f64)
            .checked(check?))
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = self.device {
            writeln!(f, "on a device that is played: {device}\n")?;
        }
        for Comparison { depth, base, contenders } in &self.comparisons {
            let title = match self.work {
                Work::Write => format!("{} MiB written by 2 MiB and synced", self.file_mib),
                Work::Read => format!("{} random reads of 4 KiB, {depth} at once", self.reads),
            };
            writeln!(f, "{}", Table::of_samples(title, contenders, *base))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every contender reads the same bytes: [`take_turns`] refuses them otherwise.
    #[test]
    fn all_contenders_read_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            work: Work::Read,
            directory: directory.path().into(),
            device: None,
            file_mib: 6,
            object_mib: vec![4, 1],
            depths: vec![1, 4],
            reads: 300,
            rounds: 1,
        };
        for work in [Work::Read, Work::Write] {
            let report = match run(&Options { work, ..options.clone() }) {
                Ok(report) => report,
                Err(error) => return bindery_testkit::skipped!("{error:#}"),
            };
            assert_eq!(report.comparisons.len(), if work == Work::Read { 2 } else { 1 });
            assert!(report.to_string().contains("4 at once"), "{report}");
            assert!(report.to_string().contains("mblocks of 4 MiB"), "{report}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        for wrong in [
            Options { rounds: 0, ..options.clone() },
            Options { depths: vec![0], ..options.clone() },
            Options { file_mib: 0, ..options.clone() },
            Options { file_mib: 3, ..options.clone() },
            Options { object_mib: vec![0], ..options.clone() },
            Options { object_mib: vec![], ..options.clone() },
            Options { directory: "/nonexistent".into(), ..options },
        ] {
            assert!(run(&wrong).is_err());
        }
    }
}
