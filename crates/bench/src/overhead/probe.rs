//! A guest that measures itself while it is merged.

use std::{thread, time::Duration};

use anyhow::{Context, Result, ensure};
use bindery_testkit::guest::{ImageKind, QemuGuest};
use serde::Deserialize;

use super::Options;
use crate::{
    engine::{Engine, Merger},
    guests::fleet::Fleet,
    harness::{Measured, median},
};

/// Memory that the probe writes to, and its neighbours hold too.
const PROBE_MIB: u32 = 32;

/// Time for the probe's memory to be merged before it is first written to.
const SETTLE_S: u32 = 8;

/// Timers of one millisecond.
const TIMERS: u32 = 4000;

/// The neighbours hold the probe's pages for longer than any probe takes.
const HOLD: &str = "guest_agent probe --settle 3600";

const INTERVAL: Duration = Duration::from_millis(250);

/// What `guest_agent probe` says.
#[derive(Debug, Deserialize)]
struct Probe {
    cpu_loops_per_s: f64,
    pages_written_per_s: f64,
    first_write_us: f64,
    timer_late_p50_us: f64,
    timer_late_p99_us: f64,
    timer_late_p999_us: f64,
    timer_late_max_us: f64,
}

/// What went on outside meanwhile.
#[derive(Debug, Default)]
struct Merging {
    saved_pages_max: u64,
    transit_max: Duration,
}

/// Boots guests that `engine` merges from the start, and has one of them probe itself.
pub(super) fn run(engine: &Engine, options: &Options) -> Result<Measured> {
    let merger = Merger::start(engine)?;
    let kinds = vec![ImageKind::Server; options.guests as usize];
    let mut fleet = Fleet::boot(&merger, &kinds, options.memory_mib)?;
    let boots: Vec<f64> = fleet.members.iter().map(|member| member.boot.as_secs_f64()).collect();
    let (probed, neighbours) =
        fleet.members.split_first_mut().context("there are at least two guests")?;
    for neighbour in neighbours {
        let script = format!("{HOLD} --mib {PROBE_MIB}");
        neighbour.guest.run_in_background("hold", &script)?;
    }
    let (probe, merging) = probe_while_merged(&mut probed.guest, &merger, options)?;
    let merges = !matches!(engine, Engine::Neither);
    ensure!(!merges || merging.saved_pages_max > 0, "{engine} has not merged a single page");
    fleet.verify(&[])?;
    fleet.end();
    merger.stop()?;
    Ok(Measured::new("boot", "s", median(&boots))
        .and("CPU-bound loop", "/s", probe.cpu_loops_per_s)
        .and("pages written", "/s", probe.pages_written_per_s)
        .and("first pass of writes", "µs/page", probe.first_write_us)
        .and("1 ms timer, p50", "µs late", probe.timer_late_p50_us)
        .and("1 ms timer, p99", "µs late", probe.timer_late_p99_us)
        .and("1 ms timer, p99.9", "µs late", probe.timer_late_p999_us)
        .and("1 ms timer, longest", "µs late", probe.timer_late_max_us)
        .and("pages in transit, longest", "µs", merging.transit_max.as_secs_f64() * 1e6)
        .and("pages saved", "count", merging.saved_pages_max as f64))
}

fn probe_while_merged(
    guest: &mut QemuGuest,
    merger: &Merger,
    options: &Options,
) -> Result<(Probe, Merging)> {
    let script = format!(
        "guest_agent probe --mib {PROBE_MIB} --settle {SETTLE_S} --samples {TIMERS} --seconds {}",
        options.loop_time.as_secs_f64()
    );
    let mut merging = Merging::default();
    let line = thread::scope(|scope| -> Result<String> {
        let probing = scope.spawn(|| guest.check(&script));
        while !probing.is_finished() {
            merging.saved_pages_max = merging.saved_pages_max.max(merger.pages_saved()?);
            merging.transit_max = merging.transit_max.max(merger.transit_max()?);
            thread::sleep(INTERVAL);
        }
        Ok(probing.join().expect("asking a guest does not panic")?)
    })?;
    let probe = serde_json::from_str(&line).with_context(|| format!("the probe said {line:?}"))?;
    Ok((probe, merging))
}
