//! When to look at ksmd, and how far its scan is.

use bindery_advisor::Scan;

use super::{Pilot, TICK_US, sleep_ms};
use crate::Sample;

/// How often ksmd is looked at near the end of a scan: after so many percent of its rest. What is left
/// of the rest is for late timers, on a busy machine.
const LOOK_PERCENT: u64 = 40;

/// How often that is, at most and at least.
const FINE_US: (u64, u64) = (1000, 50_000);

/// A scan that has not ended has not looked at more than so many percent of all pages, whatever was
/// reckoned.
const RECKONED_PERCENT_MAX: u64 = 90;

impl Pilot {
    /// What was done from one look to another.
    pub(super) fn part(&self, from: Sample, to: Sample) -> Scan {
        let time_us = to.at_us.saturating_sub(from.at_us);
        let cpu_us = to.cpu_us.saturating_sub(from.cpu_us);
        let pages = match to.pages_scanned.zip(from.pages_scanned) {
            Some((to, from)) => to.saturating_sub(from),
            // As many batches as there were rests, on a kernel that does not count.
            None => {
                let rests = time_us.saturating_sub(cpu_us) / (sleep_ms(self.pace) * 1000).max(1);
                rests.saturating_mul(self.pace.pages_to_scan)
            }
        };
        Scan { time_us, busy_us: cpu_us, cpu_us, pages }
    }

    /// Pages that the scan under way has looked at, of `items`.
    pub(super) fn pages_so_far(&self, items: u64) -> u64 {
        if self.reported.pages_scanned.is_some() {
            return self.scans.pages();
        }
        self.reckoned.min(items / 100 * RECKONED_PERCENT_MAX)
    }

    /// How long to wait before the next look.
    pub(super) fn patience_us(&self) -> u64 {
        if !self.runs {
            return TICK_US;
        }
        let fine_us = (sleep_ms(self.pace) * 10 * LOOK_PERCENT).clamp(FINE_US.0, FINE_US.1);
        let now_us = self.meter.now_us();
        let left_us = match &self.pause {
            Some(pause) => pause.quiet_us(now_us),
            None => self.fine_from_us.saturating_sub(now_us),
        };
        left_us.clamp(fine_us, TICK_US.max(fine_us))
    }

    /// From when on ksmd must be looked at often, by what it had done at the last look: the scan
    /// cannot end before.
    pub(super) fn fine_from_us(&self) -> u64 {
        // Of a scan that began before we looked, nobody knows how far it is.
        if !self.scans.is_whole() {
            return 0;
        }
        let least = self.forecast.least(self.items.all).min(self.items.never_skipped);
        // Where pages are not counted: as if all of the scan went at the fastest of its paces.
        let (since_us, left, pace) = if self.reported.pages_scanned.is_some() {
            (self.scans.last_us(), least.saturating_sub(self.scans.pages()), self.pace)
        } else {
            (self.scans.begun_us(), least, self.fastest)
        };
        let batches = left / pace.pages_to_scan.max(1);
        let least_us = batches.saturating_mul(sleep_ms(pace) * 1000);
        // A part of it, since pages may go.
        since_us.saturating_add(least_us / 4 * 3)
    }
}
