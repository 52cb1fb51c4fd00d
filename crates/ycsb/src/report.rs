//! What a run measured.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// How long requests of one kind took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many there were.
    pub requests: u64,
    /// The median.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// 999 of 1,000.
    pub p999_us: f64,
    /// 9,999 of 10,000.
    pub p9999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    /// Of a histogram of nanoseconds.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            requests: histogram.len(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
            max_us: histogram.max() as f64 / 1e3,
        }
    }
}

/// A run's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Requests a second, of all threads together.
    pub requests_per_s: f64,
    /// How long it ran.
    pub elapsed_s: f64,
    /// What was read from devices meanwhile, in bytes, where the kernel says.
    pub device_read_bytes: Option<u64>,
    /// Its reads.
    pub reads: Latency,
    /// Its updates.
    pub updates: Latency,
}
