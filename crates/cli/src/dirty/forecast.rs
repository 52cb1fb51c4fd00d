//! Can a guest be moved? What pre-copy migration would do, from how fast its pages get dirty.
//!
//! Pre-copy sends everything once, then again and again what was written meanwhile, until the rest
//! fits in the downtime allowed (Clark et al., "Live Migration of Virtual Machines", NSDI 2005).
//! Whether it ends is decided by one curve: how many different pages are written within a time.
//! That curve is measured, not assumed: pages that are written over and over count once.

use bindery_units::PAGE_BYTES;
use serde::Serialize;

/// Rounds after which any migration would have been ended by its operator.
const ROUNDS_MAX: u32 = 64;

/// A round that leaves more than this share of what it sent will not be followed by a better one.
const PROGRESS: f64 = 0.98;

/// How many different pages are written within a time: points of a curve through zero.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    /// Seconds and pages, both ascending.
    points: Vec<(f64, f64)>,
    /// It never rises above all pages that there are.
    pages_max: f64,
}

/// What a migration may use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Link {
    /// Bytes that it sends each second.
    pub(crate) bytes_per_s: f64,
    /// Seconds that the guest may stand still.
    #[serde(rename = "downtime_max_s")]
    pub(crate) downtime_s: f64,
}

/// What would become of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Forecast {
    /// Whether the rest comes to fit in the downtime.
    pub(crate) converges: bool,
    /// Rounds before the guest stands still, the first with all its memory among them.
    pub(crate) rounds: u32,
    /// Seconds from the start until the guest runs on the other side; while it does not converge,
    /// until it was given up.
    pub(crate) total_s: f64,
    /// Seconds that the guest stands still: if it does not converge, those that would have been
    /// needed.
    pub(crate) downtime_s: f64,
    /// All that is sent, in bytes.
    pub(crate) sent_bytes: u64,
}

impl Curve {
    /// A curve through `points` (seconds, pages), ascending.
    ///
    /// # Panics
    /// If the points do not ascend.
    pub(crate) fn new(points: Vec<(f64, f64)>, pages_max: u64) -> Self {
        let ascends = points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        assert!(ascends, "the points of a curve ascend");
        Self { points, pages_max: pages_max as f64 }
    }

    /// Pages written within `time_s`.
    pub(crate) fn pages(&self, time_s: f64) -> f64 {
        let (mut before, mut slope) = ((0.0, 0.0), 0.0);
        for &(seconds, pages) in &self.points {
            slope = ((pages - before.1) / (seconds - before.0)).max(0.0);
            if time_s <= seconds {
                break;
            }
            before = (seconds, pages);
        }
        (before.1 + slope * (time_s - before.0)).min(self.pages_max)
    }
}

/// What becomes of a migration that has `bulk_bytes` to send at first.
pub(crate) fn forecast(bulk_bytes: u64, curve: &Curve, link: Link) -> Forecast {
    let (mut left, mut sent, mut total_s) = (bulk_bytes as f64, 0.0, 0.0);
    for round in 0..ROUNDS_MAX {
        let time_s = left / link.bytes_per_s;
        let next = curve.pages(time_s) * PAGE_BYTES as f64;
        let converges = time_s <= link.downtime_s;
        // The first round has all of memory to send, which says nothing of the next ones.
        let stalls = round > 0 && next >= left * PROGRESS;
        if converges || stalls {
            return Forecast {
                converges,
                rounds: round,
                total_s: total_s + time_s,
                downtime_s: time_s,
                sent_bytes: (sent + left) as u64,
            };
        }
        (sent, total_s, left) = (sent + left, total_s + time_s, next);
    }
    let downtime_s = left / link.bytes_per_s;
    Forecast { converges: false, rounds: ROUNDS_MAX, total_s, downtime_s, sent_bytes: sent as u64 }
}

/// The slowest link over which a migration converges, in bytes a second, within a percent.
pub(crate) fn least_bandwidth(bulk_bytes: u64, curve: &Curve, downtime_s: f64) -> f64 {
    let converges =
        |bytes_per_s: f64| forecast(bulk_bytes, curve, Link { bytes_per_s, downtime_s }).converges;
    // All of memory at once always fits: a link that fast needs no round at all.
    let (mut low, mut high) = (1.0, (bulk_bytes as f64 / downtime_s).max(1.0));
    while high / low > 1.01 {
        let middle = (low * high).sqrt();
        if converges(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn link(gbit_per_s: f64, downtime_s: f64) -> Link {
        Link { bytes_per_s: gbit_per_s * 1e9 / 8.0, downtime_s }
    }

    /// So many pages a second, each another one, of a GiB.
    fn writer(pages_per_s: f64) -> Curve {
        Curve::new(vec![(1.0, pages_per_s), (10.0, 10.0 * pages_per_s)], GIB / PAGE_BYTES as u64)
    }

    #[test]
    fn a_curve_goes_through_its_points_and_never_above_all_pages() {
        let curve = Curve::new(vec![(0.5, 100.0), (1.0, 150.0)], 200);
        let times = [0.0, 0.25, 0.5, 0.75, 1.0, 1.2, 9.0];
        let pages = times.map(|time_s| curve.pages(time_s).round());
        assert_eq!(pages, [0.0, 50.0, 100.0, 125.0, 150.0, 170.0, 200.0]);
        assert_eq!(Curve::default().pages(1.0), 0.0);
    }

    #[test]
    fn an_idle_guest_needs_one_round() {
        let forecast = forecast(GIB, &writer(0.0), link(10.0, 0.3));
        assert_eq!((forecast.converges, forecast.rounds, forecast.downtime_s), (true, 1, 0.0));
        assert_eq!(forecast.sent_bytes, GIB);
        assert!((forecast.total_s - GIB as f64 / 1.25e9).abs() < 1e-9);
    }

    #[test]
    fn a_guest_that_fits_in_the_downtime_needs_no_round() {
        let forecast = forecast(GIB / 4, &writer(0.0), link(10.0, 0.3));
        assert_eq!((forecast.converges, forecast.rounds), (true, 0));
    }

    #[test]
    fn rounds_shrink_by_the_ratio_of_writing_to_sending() {
        // Half of what can be sent is written: each round leaves half of the last.
        let forecast = forecast(GIB, &writer(1.25e9 / 2.0 / 4096.0), link(10.0, 0.1));
        // 1 GiB takes 0.86 s; 0.43, 0.21, 0.107 and then 0.054 s.
        assert_eq!((forecast.converges, forecast.rounds), (true, 4));
        assert!((forecast.downtime_s - 0.0537).abs() < 0.001, "{forecast:?}");
    }

    #[test]
    fn who_writes_faster_than_the_link_sends_never_converges() {
        let forecast = forecast(GIB, &writer(400_000.0), link(10.0, 0.3));
        assert!(!forecast.converges);
        assert!(forecast.downtime_s > 0.3, "{forecast:?}");
    }

    #[test]
    fn a_working_set_that_fits_converges_however_fast_it_is_written() {
        // 10,000 pages, all of them written every 10 ms.
        let curve = Curve::new(vec![(0.01, 10_000.0), (10.0, 10_000.0)], 262_144);
        let forecast = forecast(GIB, &curve, link(10.0, 0.3));
        assert_eq!((forecast.converges, forecast.rounds), (true, 1));
        assert!((forecast.downtime_s - 10_000.0 * 4096.0 / 1.25e9).abs() < 1e-6);
    }

    #[test]
    fn the_least_bandwidth_is_where_it_begins_to_converge() {
        let curve = writer(100_000.0);
        let least = least_bandwidth(GIB, &curve, 0.3);
        let converges =
            |bytes_per_s| forecast(GIB, &curve, Link { bytes_per_s, downtime_s: 0.3 }).converges;
        assert!(converges(least) && !converges(least / 1.02), "{least}");
    }
}
