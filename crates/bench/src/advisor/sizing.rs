//! The rate that somebody would set by hand who has tried.

use anyhow::{Context, Result, ensure};

use super::{
    Contender, Crowds, Options,
    contender::Running,
    fixed_rate::FixedRate,
    report::longest,
    watch::{Scans, watch},
};
use crate::{crowd::Crowd, engine::KSM_SLEEP};

/// How many scans of the start-up are watched: the first that merges is the second, and the dearest.
const SCANS: u32 = 3;

/// Goes through the start-up at the rate that was reckoned, and adds what looking proved to take.
///
/// # Errors
/// If no rate scans in time, or a contender or process cannot be started.
pub(super) fn rate_by_trying(options: &Options) -> Result<FixedRate> {
    let reckoned = FixedRate::reckoned(options);
    let longest_s = longest_scan_s(options, reckoned)?;
    let batches = options.pages_max().div_ceil(reckoned.pages_to_scan);
    let busy_s = (longest_s - batches as f64 * KSM_SLEEP.as_secs_f64()).max(0.0);
    let rests_s = options.target().as_secs_f64() - busy_s;
    ensure!(
        rests_s > 0.0,
        "no rate scans {} MiB in {} s: to look at them takes {busy_s:.1} s; choose a longer \
         --target-scan-time or a smaller --process-mib",
        options.pages_max() >> 8,
        options.target_scan_time_s,
    );
    Ok(FixedRate::of(options.pages_max(), rests_s))
}

fn longest_scan_s(options: &Options, rate: FixedRate) -> Result<f64> {
    let running = Running::hold(Contender::Fixed, options, rate)?;
    let mut crowds = Crowds::start(&running, options)?;
    running.begin()?;
    crowds.all_mut().try_for_each(Crowd::merge)?;
    // Half as long again as they would take if looking took no time.
    let mut scans = Scans::begin(&running)?;
    let watched = options.target() * SCANS * 3 / 2;
    let course = watch(&running, &crowds, &mut scans, watched)?;
    running.pause()?;
    drop(crowds);
    running.stop()?;
    longest(&course.scans_s).with_context(|| {
        format!("no scan ended in {watched:?}: choose a longer --target-scan-time")
    })
}
