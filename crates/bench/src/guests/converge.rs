//! One contender's run: guests booted, at rest, merged until nothing more is found.

use std::time::Duration;

use anyhow::{Result, ensure};
use bindery_testkit::machine::{MemorySnapshot, back_free_memory, drop_caches};
use bindery_units::{ByteCount, PAGE_BYTES};

use super::{Options, fleet::Fleet};
use crate::{
    engine::{Engine, Merger},
    harness::Measured,
    settle::{self, Course, Patience},
};

/// An engine that still gains by then never comes to rest.
const PATIENCE: Duration = Duration::from_secs(120);

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
    let course = watch(&merger, &fleet)?;
    let (after, metadata) = (Memory::now(&fleet)?, merger.metadata()?);
    let mappings = fleet.mappings()?.saturating_sub(mappings);
    let (done, busy) = (course.converged(), course.busy_afterwards());
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
fn watch(merger: &Merger, fleet: &Fleet) -> Result<Course> {
    let cpu_time = || merger.threads_cpu_time(fleet.pids());
    let course = settle::watch(merger, Patience { idle: PATIENCE, limit: PATIENCE }, cpu_time)?;
    ensure!(
        course.is_settled && course.last().saved_pages > 0,
        "merging has not come to rest after {PATIENCE:?}: {} pages saved in {} scans",
        course.last().saved_pages,
        course.scans
    );
    Ok(course)
}
