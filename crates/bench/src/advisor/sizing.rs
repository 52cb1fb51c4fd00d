//! The rate that somebody would set by hand who has tried.

use anyhow::{Context, Result, ensure};

use super::{
    Contender, Crowds, Options,
    contender::Running,
    report::longest,
    watch::{Scans, watch},
};
use crate::{crowd::Crowd, engine::KSM_SLEEP};

/// How many scans of the start-up are watched: the first that merges is the second, and the dearest.
const SCANS: u32 = 3;

/// A `pages_to_scan` with which no scan of the start-up takes longer than the target.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedRate {
    pub(super) pages_to_scan: u64,
}

impl FixedRate {
    /// What would do if to look at a page took no time: less than is needed.
    pub(super) fn reckoned(options: &Options) -> Self {
        Self::of(options.pages_max(), options.target().as_secs_f64())
    }

    /// Goes through the start-up at the rate that was reckoned, and adds what looking proved to take.
    pub(super) fn found_by_trying(options: &Options) -> Result<Self> {
        let reckoned = Self::reckoned(options);
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
        Ok(Self::of(options.pages_max(), rests_s))
    }

    /// The rate at which the rests of a scan take so long.
    fn of(pages: u64, rests_s: f64) -> Self {
        let pages_to_scan = (pages as f64 * KSM_SLEEP.as_secs_f64() / rests_s).ceil() as u64;
        Self { pages_to_scan: pages_to_scan.max(1) }
    }
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
