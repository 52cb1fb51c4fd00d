//! The law of the kernel's own advisor, integer for integer (mm/ksm.c, `scan_time_advisor`, Linux 6.8
//! to 6.18).
//!
//! Its quirks are kept: the first change is weighed against nothing and comes to 0.3 of itself; scans
//! shorter than a second count as one; the CPU share is in whole percents; what the thread used in all
//! its life before counts as used in the first scan; `advisor_min_pages_to_scan` is where it begins and
//! no bound afterwards; and at least a tenth of a CPU may be used whatever the ceiling is.

use serde::{Deserialize, Serialize};

use crate::{AdvisorSettings, Scan};

/// The weight of the latest change, in percent.
const EWMA_WEIGHT: u64 = 30;

/// What a scan may cost at least, in percent of one CPU.
const MIN_CPU_PERCENT: u64 = 10;

/// What the kernel keeps between scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanTime {
    pages_to_scan: u64,
    previous_time_s: u64,
    change_percent: u64,
}

/// What the kernel's trace event `ksm:ksm_advisor` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Whole seconds, at least one.
    pub scan_time_s: u64,
    /// For the next scan.
    pub pages_to_scan: u64,
    /// Whole percents, at least one.
    pub cpu_percent: u64,
}

impl ScanTime {
    /// As after `scan-time` was written to `advisor_mode`.
    #[must_use]
    pub fn new(settings: &AdvisorSettings) -> Self {
        Self { pages_to_scan: settings.min_pages_to_scan, previous_time_s: 0, change_percent: 0 }
    }

    /// What it advises now.
    #[must_use]
    pub fn pages_to_scan(&self) -> u64 {
        self.pages_to_scan
    }

    /// What the kernel does at the end of each full scan.
    pub fn end_scan(&mut self, settings: &AdvisorSettings, scan: Scan) -> Event {
        let scan_time_s = (scan.time_us / 1_000_000).max(1);
        let cpu_percent = (scan.cpu_us / 1000 * 100 / scan_time_s / 1000).max(1);
        self.step(settings, scan_time_s, cpu_percent)
    }

    /// The same from what the kernel's trace event tells.
    ///
    /// # Panics
    /// If `scan_time_s` or `cpu_percent` is zero: the kernel counts both from one.
    pub fn step(
        &mut self,
        settings: &AdvisorSettings,
        scan_time_s: u64,
        cpu_percent: u64,
    ) -> Event {
        assert!(scan_time_s > 0 && cpu_percent > 0, "the kernel counts both from one");
        let last_time_s = if self.previous_time_s > 0 { self.previous_time_s } else { scan_time_s };
        let factor = (settings.target_scan_time_s.saturating_mul(100) / scan_time_s).max(1);
        let change = (scan_time_s.saturating_mul(100) / last_time_s).max(1);
        let change = ewma(self.change_percent, change);
        let pages = self.pages_to_scan.saturating_mul(100) / factor;
        let pages = pages.saturating_mul(change) / 100;
        let pages_a_percent = (self.pages_to_scan / cpu_percent).max(1);
        let pages = pages
            .min(pages_a_percent.saturating_mul(settings.max_cpu_percent))
            .max(pages_a_percent.saturating_mul(MIN_CPU_PERCENT))
            .min(settings.max_pages_to_scan);
        *self = Self { pages_to_scan: pages, previous_time_s: scan_time_s, change_percent: change };
        Event { scan_time_s, pages_to_scan: pages, cpu_percent }
    }
}

/// The exponentially weighted moving average, in whole percents.
const fn ewma(before: u64, now: u64) -> u64 {
    let before = before.saturating_mul(100 - EWMA_WEIGHT);
    before.saturating_add(now.saturating_mul(EWMA_WEIGHT)) / 100
}
