//! `bindery-bench pool vma`: objects mapped each by itself, beside maps of collections.
//!
//! The question of October 2020 (linux-kernel, on mpool): what does one mapping a collection save over one
//! an object? The contenders map the same number of objects of 128 KiB: each a file that is opened, mapped
//! and closed; each a slice of one file, mapped; and, a hundred at a time, as maps of either back end. All
//! are read at random (`MADV_RANDOM`). Kernel memory is what `/proc/slabinfo` says of mappings and of the
//! trees that hold them, before and after; of all its slabs beside, which takes in inodes and whatever else
//! the machine does. Faults are of the first byte of an object: *cold*, with nothing cached, so that the
//! device is read; and *warm*, in memory and not mapped here yet.

mod scene;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::scene::{Kind, Scene};
use crate::harness::{Measured, SampleSet, Table, median, take_turns, timed};

/// The length of each object.
pub const OBJECT_BYTES: u64 = 128 << 10;

/// Objects of which faults are timed.
const FAULTS: usize = 200;

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of objects.
    pub objects: Vec<usize>,
    /// Objects of one map.
    pub collection: usize,
    /// Where files are made; they are removed at the end.
    pub directory: PathBuf,
    /// Interleaved rounds; the tables show medians over them.
    pub rounds: usize,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The length of each object.
    pub object_bytes: u64,
    /// Objects of one map.
    pub collection: usize,
    /// One entry for each number of objects.
    pub comparisons: Vec<Comparison>,
}

/// All contenders with so many objects, taken in turns.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// How many objects.
    pub objects: usize,
    /// Kernel memory, mappings, times and faults of each contender.
    pub contenders: Vec<SampleSet>,
}

/// Measures all numbers of objects.
///
/// # Errors
/// If an option is zero, if the kernel does not allow so many mappings, if `/proc/slabinfo` cannot be
/// read (it is root's), or if the directory has no room.
pub fn run(options: &Options) -> Result<Report> {
    let Options { objects, collection, directory, rounds } = options;
    ensure!(*rounds > 0, "--rounds must be at least 1");
    ensure!(*collection > 0, "--collection must be at least 1");
    ensure!(!objects.is_empty() && !objects.contains(&0), "--objects must be at least 1");
    let most = objects.iter().copied().max().unwrap_or(0);
    let limit = mappings_max().context("cannot read vm.max_map_count")?;
    ensure!(
        most + 1_000 <= limit,
        "{most} mappings are too many: vm.max_map_count is {limit}; raise it or lower --objects"
    );
    slab_bytes().context("cannot tell what mappings cost the kernel; be root")?;
    let place = tempfile::tempdir_in(directory)
        .with_context(|| format!("cannot make files in {}", directory.display()))?;
    let scene = Scene::new(place.path(), most, *collection)?;
    let names: Vec<String> = Kind::ALL.iter().map(|kind| kind.name().to_owned()).collect();
    let compare = |&objects: &usize| {
        for kind in Kind::ALL {
            // A round that is thrown away: slabs and page tables that stay are made in it.
            measure(&scene, kind, objects)?;
        }
        let turn = |who: usize| measure(&scene, Kind::ALL[who], objects);
        let contenders = take_turns(&format!("{objects} objects"), *rounds, &names, turn)?;
        Ok(Comparison { objects, contenders })
    };
    let comparisons = objects.iter().map(compare).collect::<Result<_>>()?;
    Ok(Report { object_bytes: OBJECT_BYTES, collection: *collection, comparisons })
}

fn measure(scene: &Scene, kind: Kind, objects: usize) -> Result<Measured> {
    shrink_slabs();
    let (slab_before, mappings_before) = (slab_bytes()?, mappings()?);
    let all_before = all_slabs_kib()?;
    let (map_time, mapped) = timed(|| scene.map(kind, objects));
    let mapped = mapped?;
    let slab = slab_bytes()?.saturating_sub(slab_before);
    let mappings = mappings()?.saturating_sub(mappings_before);
    let all_slabs = all_slabs_kib()? - all_before;
    let faults = FAULTS.min(objects);
    scene.evict(&mapped, faults)?;
    let mut check = 0;
    let mut fault = |mapped: &scene::Mapped, object: usize| {
        let (time, byte) = timed(|| mapped.byte(object));
        check += u64::from(byte);
        time.as_secs_f64() * 1e6
    };
    let cold: Vec<f64> = (0..faults).map(|object| fault(&mapped, object)).collect();
    let again = scene.map_again(kind, &mapped, faults)?;
    let warm: Vec<f64> = (0..faults).map(|object| fault(&again, object)).collect();
    drop(again);
    let (unmap_time, ()) = timed(|| drop(mapped));
    let each = |time: Duration| time.as_secs_f64() * 1e6 / objects as f64;
    Ok(Measured::new("kernel memory", "KiB", slab as f64 / 1024.0)
        .and("all slabs", "KiB", all_slabs)
        .and("mappings", "count", mappings as f64)
        .and("map", "µs/object", each(map_time))
        .and("unmap", "µs/object", each(unmap_time))
        .and("cold fault", "µs", median(&cold))
        .and("warm fault", "µs", median(&warm))
        .checked(check))
}

/// The caches of mappings and of the trees that hold them.
const CACHES: [&str; 2] = ["vm_area_struct", "maple_node"];

/// Has the kernel take back what its caches keep of mappings that are gone, which counts as in use, and from
/// which the next ones would be made.
fn shrink_slabs() {
    for cache in CACHES {
        // Where it is not to be had (a kernel without CONFIG_SYSFS), what is measured is less than it takes.
        let _ = std::fs::write(format!("/sys/kernel/slab/{cache}/shrink"), "1");
    }
}

/// What mappings and the trees that hold them take of the kernel's memory.
fn slab_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/slabinfo").context("/proc/slabinfo")?;
    let bytes = |cache: &str| {
        let line = text.lines().find(|line| line.split(' ').next() == Some(cache));
        let mut fields =
            line.with_context(|| format!("no {cache} in it"))?.split_ascii_whitespace();
        let active: u64 = fields.nth(1).context("no count")?.parse()?;
        let bytes: u64 = fields.nth(1).context("no size")?.parse()?;
        Ok::<u64, anyhow::Error>(active * bytes)
    };
    CACHES.into_iter().map(bytes).sum()
}

/// What all that the kernel keeps in slabs takes: inodes and names of files as well, and whatever else
/// happens on the machine.
fn all_slabs_kib() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:")).context("no Slab in it")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn mappings() -> Result<usize> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count())
}

fn mappings_max() -> Result<usize> {
    Ok(std::fs::read_to_string("/proc/sys/vm/max_map_count")?.trim().parse()?)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.object_bytes / 1024;
        for Comparison { objects, contenders } in &self.comparisons {
            let title =
                format!("{objects} objects of {kib} KiB, maps of {} objects", self.collection);
            writeln!(f, "{}", Table::by_figure(title, contenders, Kind::Slices as usize))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_contenders_map_the_same() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let options = Options {
            objects: vec![7, 30],
            collection: 10,
            directory: directory.path().into(),
            rounds: 1,
        };
        if let Err(error) = slab_bytes() {
            return bindery_testkit::skipped!("{error:#}");
        }
        let report = run(&options).unwrap();
        assert_eq!(report.comparisons.len(), 2);
        let of = |kind: Kind, figure: &str| {
            let set = &report.comparisons[1].contenders[kind as usize];
            set.figure(figure).unwrap().median
        };
        assert!(of(Kind::Files, "mappings") >= 30.0 && of(Kind::Maps, "mappings") <= 2.0);
        assert!(of(Kind::MemoryMaps, "cold fault") > of(Kind::MemoryMaps, "warm fault"));
        assert!(report.to_string().contains("30 objects of 128 KiB"), "{report}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        for wrong in [
            Options { rounds: 0, ..options.clone() },
            Options { objects: vec![0], ..options.clone() },
            Options { objects: vec![usize::MAX / 2], ..options.clone() },
            Options { collection: 0, ..options },
        ] {
            assert!(run(&wrong).is_err());
        }
    }
}
