//! `bindery-bench pool faults`: what a page costs that is touched first, and one that is there.
//!
//! *Cold*: nothing is in memory, and threads touch random pages of maps of many objects, no page twice.
//! The rivals are as many threads that read the same pages of the same file by pread(2) past the page
//! cache, which is what the device gives at that queue depth, and that touch a plain mapping of the file.
//! Once each way has all threads for itself, and once all ways are mixed (`mixed.rs`).
//! *Hits*: everything is in memory and mapped; one thread goes from page to page, where each byte decides
//! which page is next, so that one access ends before another begins. The rival is anonymous memory that
//! holds the same bytes.

mod hits;
mod mixed;
mod scene;

use std::fmt;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result, ensure};
use bindery_sys::direct::Buffer;
use bindery_units::PAGE_BYTES;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use self::scene::{Place, Scene, Way};
use super::cpu::with_cpu;
use super::medium::{Medium, Rates};
use crate::harness::{Measured, SampleSet, Table, take_turns, timed};

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the pool's file is made; it is removed at the end.
    pub directory: PathBuf,
    /// A device to play, instead of the one below that directory.
    pub device: Option<Rates>,
    /// How many objects there are.
    pub objects: usize,
    /// How long each is, in KiB.
    pub object_kib: u64,
    /// Objects of one map.
    pub collection: usize,
    /// Numbers of threads that fault at once.
    pub threads: Vec<usize>,
    /// Cold faults of a round, of all threads together.
    pub faults: usize,
    /// Touches of what is there, in a round.
    pub hits: usize,
    /// How much memory those touches are in, in MiB.
    pub hits_mib: u64,
    /// Interleaved rounds; the tables show medians over them.
    pub rounds: usize,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The device that was played, if one was.
    pub device: Option<Rates>,
    /// How many objects there are.
    pub objects: usize,
    /// How long each is, in KiB.
    pub object_kib: u64,
    /// Objects of one map.
    pub collection: usize,
    /// Cold faults of a round.
    pub faults: usize,
    /// One entry for each number of threads.
    pub cold: Vec<Cold>,
    /// Time of a touch of each contender; anonymous memory comes first.
    pub hits: Vec<SampleSet>,
}

/// All contenders with so many threads, taken in turns.
#[derive(Debug, Serialize)]
pub struct Cold {
    /// How many threads fault at once.
    pub threads: usize,
    /// Rate, latencies and CPU time of each contender; reads past the page cache come first.
    pub contenders: Vec<SampleSet>,
    /// Rate and latencies of the same contenders, when each thread takes another one for each page.
    pub mixed: Vec<SampleSet>,
}

/// Measures all numbers of threads, and hits.
///
/// # Errors
/// If an option is zero or too large, if the directory has no room, or has no direct I/O, or if the
/// kernel does not let go of what it has cached.
pub fn run(options: &Options) -> Result<Report> {
    let Options { directory, objects, object_kib, collection, threads, faults, .. } = options;
    check(options)?;
    // Twice what is written to the pool, and the file system's own.
    let device_bytes = ((*objects as u64 * object_kib) << 11) + (1 << 30);
    let medium = Medium::create_for(directory, device_bytes, options.device)?;
    let directory = medium.as_ref().map_or(&**directory, Medium::directory);
    let place = tempfile::tempdir_in(directory)
        .with_context(|| format!("cannot make files in {}", directory.display()))?;
    let scene = Scene::new(place.path(), *objects, object_kib << 10, *collection)?;
    let mut places = scene.places();
    places.shuffle(&mut SmallRng::seed_from_u64(6));
    places.truncate(*faults);
    let names: Vec<String> = Way::ALL.iter().map(|way| way.name().to_owned()).collect();
    medium.iter().for_each(|medium| medium.hold(true));
    let compare = |&threads: &usize| {
        for way in Way::ALL {
            // A round that is thrown away: page tables and the device's own cache are made in it.
            cold(&scene, way, &places, threads)?;
        }
        let turn = |who: usize| cold(&scene, Way::ALL[who], &places, threads);
        let contenders = take_turns(&format!("{threads} threads"), options.rounds, &names, turn)?;
        let mixed = mixed::run(&scene, &places, threads, options.rounds)?;
        Ok(Cold { threads, contenders, mixed })
    };
    let cold = threads.iter().map(compare).collect::<Result<_>>()?;
    scene.evict()?;
    medium.iter().for_each(|medium| medium.hold(false));
    let hits = hits::run(&scene, options.hits, options.hits_mib << 20, options.rounds)?;
    let (objects, object_kib, collection) = (*objects, *object_kib, *collection);
    let device = options.device;
    Ok(Report { device, objects, object_kib, collection, faults: places.len(), cold, hits })
}

fn check(options: &Options) -> Result<()> {
    let Options { objects, object_kib, collection, threads, faults, hits, hits_mib, .. } = options;
    ensure!(options.rounds > 0, "--rounds must be at least 1");
    ensure!(*collection > 0, "--collection must be at least 1");
    ensure!(*faults > 0 && *hits > 0, "--faults and --hits must be at least 1");
    ensure!((1..=1 << 20).contains(hits_mib), "--hits-mib must be from 1 to {}", 1 << 20);
    ensure!((1..=1 << 20).contains(objects), "--objects must be from 1 to {}", 1 << 20);
    ensure!(
        *object_kib > 0 && object_kib.is_multiple_of(4) && *object_kib <= 1 << 20,
        "--object-kib must be a multiple of 4, up to {}",
        1 << 20
    );
    let threads_are_few = threads.iter().all(|threads| (1..=1024).contains(threads));
    ensure!(!threads.is_empty() && threads_are_few, "--threads must be from 1 to 1024");
    Ok(())
}

/// Has nothing in memory, and then `threads` touch all places.
fn cold(scene: &Scene, way: Way, places: &[Place], threads: usize) -> Result<Measured> {
    scene.evict()?;
    let (elapsed, cpu, touched) = with_cpu(|| {
        thread::scope(|scope| {
            let shares = places.chunks(places.len().div_ceil(threads));
            let touchers = shares.map(|share| scope.spawn(move || touch_all(scene, way, share)));
            let touchers: Vec<_> = touchers.collect();
            let join = |toucher: thread::ScopedJoinHandle<'_, Result<Touched>>| {
                toucher.join().expect("no toucher panics")
            };
            touchers.into_iter().map(join).collect::<Result<Vec<_>>>()
        })
    });
    let touched = touched?;
    let check = touched.iter().map(|touched| touched.check).sum();
    let mut times_us: Vec<f64> = touched.into_iter().flat_map(|touched| touched.times_us).collect();
    times_us.sort_by(f64::total_cmp);
    let count = places.len() as f64;
    Ok(Measured::new("faults", "k/s", count / elapsed.as_secs_f64() / 1e3)
        .and("p50", "µs", percentile(&times_us, 50))
        .and("p99", "µs", percentile(&times_us, 99))
        .and("CPU", "µs/fault", cpu.as_secs_f64() * 1e6 / count)
        .checked(check))
}

/// That of times which are sorted.
fn percentile(times_us: &[f64], percent: usize) -> f64 {
    times_us[(times_us.len() - 1) * percent / 100]
}

/// What one thread has seen.
#[derive(Default)]
struct Touched {
    times_us: Vec<f64>,
    check: u64,
}

impl Touched {
    fn touch(&mut self, scene: &Scene, way: Way, place: Place, buffer: &mut Buffer) -> Result<()> {
        let (time, byte) = timed(|| scene.touch(way, place, buffer));
        self.times_us.push(time.as_secs_f64() * 1e6);
        self.check += u64::from(byte?);
        Ok(())
    }
}

fn touch_all(scene: &Scene, way: Way, places: &[Place]) -> Result<Touched> {
    let mut buffer = Buffer::zeroed(PAGE_BYTES);
    let mut touched = Touched { times_us: Vec::with_capacity(places.len()), check: 0 };
    for &place in places {
        touched.touch(scene, way, place, &mut buffer)?;
    }
    Ok(touched)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, object_kib, collection, faults, .. } = self;
        if let Some(device) = self.device {
            writeln!(f, "on a device that is played: {device}\n")?;
        }
        for Cold { threads, contenders, mixed } in &self.cold {
            let title = format!(
                "{faults} cold pages of {objects} objects of {object_kib} KiB, maps of {collection} \
                 objects, {threads} threads"
            );
            writeln!(f, "{}", Table::of_samples(title, contenders, 0))?;
            let title =
                format!("the same, each thread by another way for each page, {threads} threads");
            writeln!(f, "{}", Table::of_samples(title, mixed, 0))?;
        }
        write!(f, "{}", Table::of_samples("pages that are there, one thread", &self.hits, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every contender sees the same bytes: [`take_turns`] refuses them otherwise.
    #[test]
    fn all_contenders_touch_the_same() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let options = Options {
            directory: directory.path().into(),
            device: None,
            objects: 7,
            object_kib: 36,
            collection: 3,
            threads: vec![1, 2],
            faults: 50,
            hits: 1000,
            hits_mib: 1,
            rounds: 1,
        };
        let report = match run(&options) {
            Ok(report) => report,
            Err(error) => return bindery_testkit::skipped!("{error:#}"),
        };
        assert_eq!((report.cold.len(), report.hits.len()), (2, 5));
        let median = |way: Way, figure: &str| {
            report.cold[0].contenders[way as usize].figure(figure).unwrap().median
        };
        for way in Way::ALL {
            assert!(median(way, "p99") >= median(way, "p50"));
            let mixed = &report.cold[1].mixed[way as usize];
            let (faults, mean) = (mixed.figure("faults").unwrap(), mixed.figure("mean").unwrap());
            assert!((faults.median * mean.median - 2e3).abs() < 1e-3, "{mixed:?}");
        }
        assert!(report.to_string().contains("7 objects of 36 KiB"), "{report}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        for wrong in [
            Options { rounds: 0, ..options.clone() },
            Options { objects: 0, ..options.clone() },
            Options { object_kib: 6, ..options.clone() },
            Options { threads: vec![0], ..options.clone() },
            Options { faults: 0, ..options.clone() },
            Options { collection: 0, ..options },
        ] {
            assert!(run(&wrong).is_err());
        }
    }
}
