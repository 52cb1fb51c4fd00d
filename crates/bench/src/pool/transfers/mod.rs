//! `bindery bench pool`: what the pool costs over the bare file.
//!
//! The rival is a plain io_uring loop on a file opened with O_DIRECT, with none of the pool's code in
//! between. Every contender has a file of its own in the same directory, and they take turns. A write is
//! of 1 MiB after the other into a file without blocks, and ends with its sync; reads are of 4 KiB at
//! random places, the same for all. Objects are appended to by 1 MiB, with their checksums, and each is
//! committed, which is two syncs and the catalogue's record; they are read and verified by as many
//! threads as reads are to be under way.

mod contender;
mod mblocks;
mod raw;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bindery_pool::device::Engine;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use self::contender::{Contender, Pooled};
use self::mblocks::Mblocks;
use self::raw::Raw;
use super::cpu::with_cpu;
use crate::harness::{Measured, SampleSet, Table, take_turns};

/// Bytes of one sequential write.
pub const WRITE_BYTES: usize = 1 << 20;
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
    /// Length of each file, in MiB.
    pub file_mib: u64,
    /// Length of each object, in MiB.
    pub object_mib: u64,
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
    /// Length of each file, in MiB.
    pub file_mib: u64,
    /// Length of each object, in MiB.
    pub object_mib: u64,
    /// Random reads in each round.
    pub reads: usize,
    /// One entry for each depth.
    pub depths: Vec<Depth>,
}

/// All contenders at one depth, taken in turns.
#[derive(Debug, Serialize)]
pub struct Depth {
    /// How many transfers are under way at once.
    pub depth: usize,
    /// Rate and CPU time of each contender; the bare file comes first.
    pub contenders: Vec<SampleSet>,
}

/// Measures all depths.
///
/// # Errors
/// If an option is zero, empty or too large, if the directory has no room, or has no direct I/O.
pub fn run(options: &Options) -> Result<Report> {
    let Options { work, directory, file_mib, object_mib, depths, reads, rounds } = options;
    ensure!(*rounds > 0, "--rounds must be at least 1");
    ensure!(*reads > 0, "--reads must be at least 1");
    ensure!((1..=1 << 20).contains(file_mib), "--file-mib must be from 1 to {}", 1 << 20);
    ensure!((1..=1 << 20).contains(object_mib), "--object-mib must be from 1 to {}", 1 << 20);
    ensure!(
        !depths.is_empty() && depths.iter().all(|depth| (1..=4096).contains(depth)),
        "--depths must be from 1 to 4096"
    );
    let place = tempfile::tempdir_in(directory)
        .with_context(|| format!("cannot make files in {}", directory.display()))?;
    let compare = |&depth: &usize| {
        let contenders = contenders(place.path(), file_mib << 20, object_mib << 20, depth)?;
        let contenders = match work {
            Work::Write => write(contenders, *file_mib, *rounds)?,
            Work::Read => read(contenders, file_mib << 20, *reads, *rounds)?,
        };
        Ok(Depth { depth, contenders })
    };
    let depths = depths.iter().map(compare).collect::<Result<_>>()?;
    let (work, file_mib, object_mib, reads) = (*work, *file_mib, *object_mib, *reads);
    Ok(Report { work, file_mib, object_mib, reads, depths })
}

/// The bare file first. An engine that the kernel refuses does not take part.
fn contenders(
    directory: &Path,
    bytes: u64,
    object_bytes: u64,
    depth: usize,
) -> Result<Vec<Box<dyn Contender>>> {
    let mut contenders: Vec<Box<dyn Contender>> =
        vec![Box::new(Raw::create(&directory.join("raw"), bytes, depth)?)];
    for engine in Engine::ALL {
        contenders.push(Box::new(Pooled::create(directory, bytes, engine, depth)?));
    }
    contenders.push(Box::new(Mblocks::create(directory, bytes, object_bytes, depth)?));
    Ok(contenders)
}

fn names(contenders: &[Box<dyn Contender>]) -> Vec<String> {
    contenders.iter().map(|contender| contender.name()).collect()
}

fn write(
    mut contenders: Vec<Box<dyn Contender>>,
    mib: u64,
    rounds: usize,
) -> Result<Vec<SampleSet>> {
    take_turns(rounds, &names(&contenders), |who| {
        let contender = &mut contenders[who];
        contender.empty()?;
        let (elapsed, cpu, outcome) = with_cpu(|| contender.write());
        outcome?;
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
    take_turns(rounds, &names(&contenders), |who| {
        let (elapsed, cpu, check) = with_cpu(|| contenders[who].read(&offsets));
        Ok(Measured::new("read", "k/s", reads as f64 / elapsed.as_secs_f64() / 1e3)
            .and("CPU", "µs/read", cpu.as_secs_f64() * 1e6 / reads as f64)
            .checked(check?))
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Depth { depth, contenders } in &self.depths {
            let title = match self.work {
                Work::Write => {
                    format!("{} MiB written by 1 MiB and synced, {depth} at once", self.file_mib)
                }
                Work::Read => format!("{} random reads of 4 KiB, {depth} at once", self.reads),
            };
            writeln!(f, "{}", Table::of_samples(title, contenders, 0))?;
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
            file_mib: 3,
            object_mib: 2,
            depths: vec![1, 4],
            reads: 300,
            rounds: 1,
        };
        for work in [Work::Read, Work::Write] {
            let report = match run(&Options { work, ..options.clone() }) {
                Ok(report) => report,
                Err(error) => return bindery_testkit::skipped!("{error:#}"),
            };
            assert_eq!(report.depths.len(), 2);
            assert!(report.to_string().contains("4 at once"), "{report}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        for wrong in [
            Options { rounds: 0, ..options.clone() },
            Options { depths: vec![0], ..options.clone() },
            Options { file_mib: 0, ..options.clone() },
            Options { object_mib: 0, ..options.clone() },
            Options { directory: "/nonexistent".into(), ..options },
        ] {
            assert!(run(&wrong).is_err());
        }
    }
}
