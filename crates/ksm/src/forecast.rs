//! How many pages the next scan will look at, and what they will cost.
//!
//! Without `smart_scan` that is every page that KSM knows. With it (Linux 6.7), a page that did not
//! merge in its first scans is passed over in 1, then 2, 4 and 8 scans in a row (mm/ksm.c,
//! `skip_age`), and pages that came together are passed over together: one scan may look at a tenth
//! of what the next one does. A pace that suits the small one is ten times too slow for the large one,
//! so the largest share in a whole cycle counts.

use std::collections::VecDeque;

use bindery_advisor::Scan;

/// The longest cycle of `smart_scan`: 8 scans without a page and one with it.
const CYCLE: usize = 9;

/// The scale of shares.
const WHOLE: u64 = 1 << 20;

/// A scan in which KSM met one page in so many is dearer the next time.
const MANY_NEW: u64 = 8;

/// What a page costs that KSM has met before.
///
/// The first time it only takes a page's checksum; from the second on it looks for the page in its
/// trees, which costs two or three times as much (mm/ksm.c, `cmp_and_merge_page`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownCost {
    page_ns: u64,
}

impl KnownCost {
    /// What `scan` would have taken without first meetings, of which there were `new`.
    pub(crate) fn without_first(&mut self, scan: Scan, new: u64) -> Scan {
        let page_ns = scan.cpu_us.saturating_mul(1000) / scan.pages.max(1);
        if new < scan.pages / MANY_NEW {
            self.page_ns = page_ns;
        }
        let missing_ns = self.page_ns.saturating_sub(page_ns);
        let more_us = missing_ns.saturating_mul(scan.pages) / 1000;
        // Work that was not done: rests were as long as they were.
        Scan {
            time_us: scan.time_us + more_us,
            busy_us: scan.busy_us + more_us,
            cpu_us: scan.cpu_us + more_us,
            ..scan
        }
    }
}

/// What share of all pages the last scans looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forecast {
    shares: VecDeque<u64>,
}

impl Forecast {
    /// Takes in that a scan looked at `pages` of `items`.
    pub(crate) fn learn(&mut self, pages: u64, items: u64) {
        if self.shares.len() == CYCLE {
            self.shares.pop_front();
        }
        let share = u128::from(pages) * u128::from(WHOLE) / u128::from(items.max(1));
        // Items may have gone since they were looked at.
        self.shares.push_back(u64::try_from(share).unwrap_or(WHOLE).min(WHOLE));
    }

    /// The most that the next scan is likely to look at, of `items`.
    pub(crate) fn most(&self, items: u64) -> u64 {
        self.of(self.shares.iter().max(), items)
    }

    /// The least.
    pub(crate) fn least(&self, items: u64) -> u64 {
        self.of(self.shares.iter().min(), items)
    }

    fn of(&self, share: Option<&u64>, items: u64) -> u64 {
        let pages = u128::from(items) * u128::from(share.copied().unwrap_or(WHOLE));
        u64::try_from(pages.div_ceil(u128::from(WHOLE))).unwrap_or(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_known_is_all_pages() {
        let forecast = Forecast::default();
        assert_eq!((forecast.least(1000), forecast.most(1000)), (1000, 1000));
    }

    #[test]
    fn the_largest_of_a_cycle_counts() {
        let mut forecast = Forecast::default();
        forecast.learn(1000, 1000);
        (0..8).for_each(|_| forecast.learn(100, 1000));
        assert_eq!(forecast.most(4000), 4000);
        assert!(forecast.least(1000).abs_diff(100) <= 1);
        forecast.learn(100, 1000);
        assert!(forecast.most(4000).abs_diff(400) <= 1, "a cycle without it");
    }

    #[test]
    fn first_meetings_do_not_count_as_cheap() {
        let scan = |pages, cpu_us| Scan { time_us: 1_000_000, busy_us: cpu_us, cpu_us, pages };
        let mut known = KnownCost::default();
        assert_eq!(known.without_first(scan(1000, 2000), 1000), scan(1000, 2000), "all are new");
        assert_eq!(known.without_first(scan(1000, 6000), 0), scan(1000, 6000));
        let grown = known.without_first(scan(4000, 9000), 3000);
        assert_eq!((grown.cpu_us, grown.time_us - grown.busy_us), (24_000, 991_000));
        assert_eq!(known.without_first(scan(4000, 8000), 0), scan(4000, 8000), "cheap for good");
    }

    #[test]
    fn items_that_went_away_count_once() {
        let mut forecast = Forecast::default();
        forecast.learn(1000, 10);
        assert_eq!(forecast.most(50), 50);
        forecast.learn(5, 0);
        assert_eq!(forecast.most(u64::MAX), u64::MAX);
    }
}
