//! A fixed rate of scanning, as somebody would set it by hand.

use super::Options;
use crate::engine::KSM_SLEEP;

/// A `pages_to_scan` with which no scan of the start-up takes longer than the target.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedRate {
    pub(super) pages_to_scan: u64,
}

impl FixedRate {
    /// Returns the rate that would do if to look at a page took no time: less than is needed.
    pub(super) fn reckoned(options: &Options) -> Self {
        Self::of(options.pages_max(), options.target().as_secs_f64())
    }

    /// Returns the rate at which the rests of a scan of `pages` take so many seconds.
    pub(super) fn of(pages: u64, rests_s: f64) -> Self {
        let pages_to_scan = (pages as f64 * KSM_SLEEP.as_secs_f64() / rests_s).ceil() as u64;
        Self { pages_to_scan: pages_to_scan.max(1) }
    }
}
