//! One contender's run: guests booted, at rest, merged until nothing more is found.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bindery_testkit::machine::{MemorySnapshot, back_free_memory, drop_caches};
use bindery_units::{ByteCount, PAGE_BYTES};

use super::{Options, fleet::Fleet};
use crate::{
    engine::{Engine, Merger},
    harness::Measured,
    interrupt,
};

/// An engine that still gains by then never comes to rest.
const PATIENCE: Duration = Duration::from_secs(120);

/// Merging has converged when for so long, and for so many scans of all memory, it gained less than
/// [`GAIN`].
const QUIET: Duration = Duration::from_secs(8);
const SCANS: u64 = 4;
const GAIN: f64 = 0.01;

/// The share of the final saving at which an engine counts as done: what is left is the noise of
/// the guests' own work.
const DONE: f64 = 0.98;

const INTERVAL: Duration = Duration::from_millis(100);

/// One look at merging.
#[derive(Clone, Copy)]
struct Sample {
    time: Duration,
    cpu: Duration,
    saved_pages: u64,
}

/// The machine's memory and the guests'.
struct Memory {
    used: ByteCount,
    pss: ByteCount,
}

impl Memory {
    fn now(fleet: &Fleet) -> Result<Self> {
        Ok(Self { used: MemorySnapshot::take_settled()?.used(), pss: fleet.pss()? })
    }
}

/// Boots the guests, has `engine` merge them, and verifies them.
pub(super) fn run(engine: &Engine, options: &Options) -> Result<Measured> {
    // Caches are in no figure, but to reclaim them would take time later.
    drop_caches()?;
    let idle = MemorySnapshot::take_settled()?.used();
    let merger = Merger::hold(engine)?;
    let mut fleet = Fleet::boot(&merger, &options.kinds(), options.memory_mib)?;
    let digests = fleet.digest_images()?;
    fleet.work()?;
    let (before, mappings) = (Memory::now(&fleet)?, fleet.mappings()?);
    // Contents and tables take less than this.
    back_free_memory(ByteCount(options.memory().0 / 4));
    let samples = watch(&merger, &fleet)?;
    let (after, metadata) = (Memory::now(&fleet)?, merger.metadata()?);
    let mappings = fleet.mappings()?.saturating_sub(mappings);
    let (done, busy) = (converged(&samples), busy_afterwards(&samples));
    fleet.verify(&digests)?;
    fleet.end();
    merger.stop()?;
    let since_idle = |used: ByteCount| used.mib() - idle.mib();
    Ok(Measured::new("used before", "MiB", since_idle(before.used))
        .and("used after", "MiB", since_idle(after.used))
        .and("fell by", "MiB", before.used.mib() - after.used.mib())
        .and("guests' Pss before", "MiB", before.pss.mib())
        .and("guests' Pss after", "MiB", after.pss.mib())
        .and("saved by own account", "MiB", pages(done.saved_pages).mib())
        .and("CPU to converge", "s", done.cpu.as_secs_f64())
        .and("time to converge", "s", done.time.as_secs_f64())
        .and("CPU afterwards", "%", 100.0 * busy)
        .and("new mappings", "count", mappings as f64)
        .and("metadata", "B/page", metadata.tables_bytes_a_page())
        .and("mappings", "B/page", metadata.mappings_bytes_a_page()))
}

const fn pages(count: u64) -> ByteCount {
    ByteCount(count * PAGE_BYTES as u64)
}

/// Merges until nothing more is found.
fn watch(merger: &Merger, fleet: &Fleet) -> Result<Vec<Sample>> {
    let cpu_time = || -> Result<Duration> { Ok(merger.own_cpu_time()? + fleet.shim_cpu_time()?) };
    let (cpu_before, scans_before) = (cpu_time()?, merger.full_scans()?);
    merger.begin()?;
    let start = Instant::now();
    let mut samples = Vec::new();
    loop {
        let saved_pages = merger.pages_saved()?;
        let cpu = cpu_time()?.saturating_sub(cpu_before);
        samples.push(Sample { time: start.elapsed(), cpu, saved_pages });
        // A question costs the daemon CPU time, and ksmd none.
        let scans = || Ok::<_, anyhow::Error>(merger.full_scans()? - scans_before);
        if saved_pages > 0 && is_quiet(&samples) && scans()? >= SCANS {
            return Ok(samples);
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "merging has not come to rest after {PATIENCE:?}: {saved_pages} pages saved in {} scans",
            scans()?
        );
        interrupt::rest(INTERVAL)?;
    }
}

/// The sample that was the last one [`QUIET`] before the end.
fn before_quiet(samples: &[Sample]) -> Option<&Sample> {
    let end = samples.last()?.time;
    samples.iter().rev().find(|sample| end - sample.time >= QUIET)
}

fn is_quiet(samples: &[Sample]) -> bool {
    let (Some(last), Some(earlier)) = (samples.last(), before_quiet(samples)) else { return false };
    let gained = last.saved_pages.saturating_sub(earlier.saved_pages);
    (gained as f64) < GAIN * last.saved_pages as f64
}

/// The first sample that has nearly all of the final saving.
fn converged(samples: &[Sample]) -> Sample {
    let last = samples.last().expect("watching takes a sample first");
    let enough = DONE * last.saved_pages as f64;
    *samples.iter().find(|sample| sample.saved_pages as f64 >= enough).unwrap_or(last)
}

/// The share of a CPU that merging takes once it has converged.
fn busy_afterwards(samples: &[Sample]) -> f64 {
    let (Some(last), Some(earlier)) = (samples.last(), before_quiet(samples)) else {
        return f64::NAN;
    };
    (last.cpu - earlier.cpu).as_secs_f64() / (last.time - earlier.time).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(saved_pages: &[u64]) -> Vec<Sample> {
        let sample = |(&saved_pages, second)| Sample {
            time: Duration::from_secs(second),
            cpu: Duration::from_millis(100 * second),
            saved_pages,
        };
        saved_pages.iter().zip(0..).map(sample).collect()
    }

    #[test]
    fn convergence_is_where_nearly_all_is_saved() {
        let done = converged(&samples(&[0, 500, 979, 981, 1000, 1000]));
        assert_eq!((done.time, done.cpu), (Duration::from_secs(3), Duration::from_millis(300)));
    }

    #[test]
    fn quiet_is_a_long_stretch_without_gain() {
        let growing: Vec<u64> = (0..20).map(|second| second * 100).collect();
        assert!(!is_quiet(&samples(&growing)));
        let mut level = growing;
        level.extend([1900; 7]);
        assert!(!is_quiet(&samples(&level)));
        level.extend([1900; 2]);
        assert!(is_quiet(&samples(&level)));
        assert!((busy_afterwards(&samples(&level)) - 0.1).abs() < 1e-9);
    }
}
