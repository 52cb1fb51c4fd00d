//! Limits of rates: a token bucket, shared by all streams of a migration.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which a bucket can save up what is not used.
const BURST: Duration = Duration::from_millis(20);

/// Token bucket of bytes. Pure: it is given the time.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    bytes_per_second: u64,
    /// Time at which all that was taken is paid for.
    paid: Instant,
}

impl TokenBucket {
    /// Makes a bucket of that rate.
    ///
    /// # Panics
    /// If the rate is 0.
    #[must_use]
    pub fn new(bytes_per_second: u64, now: Instant) -> Self {
        assert!(bytes_per_second > 0, "a rate of nothing never ends");
        Self { bytes_per_second, paid: now }
    }

    /// Takes so many bytes, and returns how long to wait before they are sent.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        let saved = now.checked_sub(BURST).unwrap_or(now);
        let start = self.paid.max(saved);
        let costs = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        self.paid = start + Duration::from_nanos(costs.min(u128::from(u64::MAX >> 1)) as u64);
        start.saturating_duration_since(now)
    }
}

/// Limit of the bytes a second of several threads.
#[derive(Debug, Default)]
pub struct RateLimit(Mutex<Option<TokenBucket>>);

impl RateLimit {
    /// Makes a limit; `None` for none.
    #[must_use]
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        let limit = Self::default();
        limit.set(bytes_per_second);
        limit
    }

    /// Sets another limit, at any time.
    pub fn set(&self, bytes_per_second: Option<u64>) {
        let bucket = bytes_per_second.map(|rate| TokenBucket::new(rate.max(1), Instant::now()));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = bucket;
    }

    /// Returns true if there is a limit.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until so many bytes may be sent.
    pub fn wait(&self, bytes: u64) {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = bucket.as_mut().map_or(Duration::ZERO, |it| it.take(bytes, Instant::now()));
        drop(bucket);
        if !wait.is_zero() {
            thread::sleep(wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Over any time, at most the rate and a burst are sent.
        #[test]
        fn the_rate_holds(sends in prop::collection::vec((1..100_000_u64, 0..50_u64), 1..200)) {
            let start = Instant::now();
            let (mut bucket, mut now, mut sent) = (TokenBucket::new(1_000_000, start), start, 0);
            for (bytes, idle_ms) in sends {
                now += Duration::from_millis(idle_ms);
                now += bucket.take(bytes, now);
                let allowed = (now - start + BURST).as_micros() as u64;
                prop_assert!(sent <= allowed, "{sent} of {allowed}");
                sent += bytes;
            }
        }
    }
}
