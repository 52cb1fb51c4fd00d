//! Repeating what may succeed the next time, until the time is over.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::fault::{Fault, Subject};

/// Limits of attempts and of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Longest time that one request may take, from its first byte to its last. A whole part goes in one.
    pub request: Duration,
    /// Longest time that a request and its repetitions may take together.
    pub deadline: Duration,
    /// Longest time that opening an archive may take: somebody waits for it, who may have mistyped the endpoint.
    pub opening: Duration,
    /// Longest wait before the second attempt; twice as long before each next one.
    pub first_delay: Duration,
    /// Longest wait between attempts.
    pub longest_delay: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(60),
            deadline: Duration::from_secs(300),
            opening: Duration::from_secs(10),
            first_delay: Duration::from_millis(100),
            longest_delay: Duration::from_secs(10),
        }
    }
}

impl Patience {
    /// Returns the limits for a request of opening.
    pub(super) fn for_opening(self) -> Self {
        Self { deadline: self.deadline.min(self.opening), ..self }
    }

    /// Makes attempts until one succeeds, fails for good, or the time is over.
    pub(super) async fn attempt<T, Attempt>(
        self,
        subject: &Subject,
        mut request: impl FnMut() -> Attempt,
    ) -> Result<T, Fault>
    where
        Attempt: Future<Output = Result<T, Fault>>,
    {
        let start = Instant::now();
        let mut attempts = 0;
        let mut met = None;
        loop {
            attempts += 1;
            let left = self.deadline.saturating_sub(start.elapsed());
            let limit = self.request.min(left);
            let fault = match timeout(limit, request()).await {
                Ok(Err(fault)) if fault.is_transient() => fault,
                Ok(final_outcome) => return final_outcome,
                // Of an attempt that was cut off by the deadline, the one before it says more.
                Err(_) if limit < self.request => met.take().unwrap_or_else(|| subject.late(limit)),
                Err(_) => subject.late(limit),
            };
            let delay = self.delay(attempts);
            if start.elapsed() + delay >= self.deadline {
                let (key, waited) = (subject.key.clone(), start.elapsed());
                return Err(Fault::Deadline { key, attempts, waited, last: Box::new(fault) });
            }
            tracing::debug!(attempts, ?delay, "repeating: {fault}");
            met = Some(fault);
            sleep(delay).await;
        }
    }

    /// Some time up to twice the one before ("full jitter"): clients that were throttled together
    /// must not come back together (Brooker, "Exponential Backoff and Jitter", 2015).
    fn delay(self, attempts: u32) -> Duration {
        let doubled = self.first_delay.saturating_mul(1 << (attempts - 1).min(20));
        doubled.min(self.longest_delay).mul_f64(rand::random_range(0.0..=1.0))
    }
}

#[cfg(test)]
#[path = "retry_tests.rs"]
mod tests;
