//! When a device answers: pure arithmetic.
//!
//! A request takes its part of the device's rate, which requests that are there together share evenly, as
//! the commands in a disk's queue share its flash and its link (processor sharing: Kleinrock, "Time-shared
//! systems", JACM 1967). Its answer comes a fixed time after that. So a request that finds the device idle
//! is answered after the latency and its own transfer, and no time is saved up for bursts: a token bucket
//! such as blk-throttle's lets some hundreds of requests pass at the speed of the disk below, and then
//! makes whoever is next wait for the rest of a slice of 100 ms.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rates {
    /// From the end of its transfer to its answer; may be 0.
    pub latency: Duration,
    /// Bytes a second, both ways together; at least 1.
    pub bytes_per_s: u64,
    /// Requests a second, if they are small; at least 1.
    pub requests_per_s: u64,
}

impl Rates {
    /// Rates of a device that transfers so many MiB and serves so many requests a second. None if there is
    /// no rate, or no latency.
    #[must_use]
    pub fn of(
        mib_and_requests_per_s: Option<(u64, u64)>,
        latency: Option<Duration>,
    ) -> Option<Self> {
        let ((mib_per_s, requests_per_s), latency) = mib_and_requests_per_s.zip(latency)?;
        Some(Self { latency, bytes_per_s: mib_per_s << 20, requests_per_s })
    }

    /// # Errors
    /// If nothing would ever be answered.
    pub(super) fn check(self) -> Result<()> {
        let is_some = self.bytes_per_s > 0 && self.requests_per_s > 0;
        ensure!(is_some, "a device of 0 bytes or requests a second never answers: {self:?}");
        Ok(())
    }

    /// How long a device that does nothing else transfers a request, in nanoseconds.
    fn transfer_ns(self, bytes: u64) -> u64 {
        let of = |amount: u64, per_s: u64| {
            (u128::from(amount) * 1_000_000_000 / u128::from(per_s)) as u64
        };
        of(bytes, self.bytes_per_s).max(of(1, self.requests_per_s))
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { latency, bytes_per_s, requests_per_s } = self;
        let (latency_us, mib_per_s) = (latency.as_micros(), bytes_per_s >> 20);
        write!(f, "{mib_per_s} MiB/s, {requests_per_s} requests/s, {latency_us} µs")
    }
}

/// The requests that a device has. Times are counted from some beginning; one that is before the last
/// counts as that.
#[derive(Debug)]
pub(super) struct Service<T> {
    rates: Rates,
    /// Up to when what follows holds.
    at_ns: u64,
    /// How much each of the requests that were there all the time would have been served: grows as fast
    /// as time, divided by how many there are.
    served_ns: u64,
    /// Transfers, by how much `served_ns` is when they end, and by the order in which they came.
    transfers: BTreeMap<(u64, u64), T>,
    count: u64,
    /// What is transferred, and when it is to be answered.
    answers: VecDeque<(u64, T)>,
}

impl<T> Service<T> {
    pub(super) fn new(rates: Rates) -> Self {
        let (transfers, answers) = (BTreeMap::new(), VecDeque::new());
        Self { rates, at_ns: 0, served_ns: 0, transfers, count: 0, answers }
    }

    /// Takes a request.
    pub(super) fn admit(&mut self, now: Duration, bytes: u64, request: T) {
        self.advance(now);
        let ends = self.served_ns + self.rates.transfer_ns(bytes);
        self.transfers.insert((ends, self.count), request);
        self.count += 1;
    }

    /// What is answered by now, in order.
    pub(super) fn answered(&mut self, now: Duration) -> Vec<T> {
        self.advance(now);
        let now_ns = now.as_nanos() as u64;
        let due = self.answers.partition_point(|(at_ns, _)| *at_ns <= now_ns);
        self.answers.drain(..due).map(|(_, request)| request).collect()
    }

    /// When something is to be answered, if nothing comes.
    pub(super) fn next(&self) -> Option<Duration> {
        let transferred = self.transfers.keys().next().map(|(ends, _)| self.time_of(*ends));
        let answered = self.answers.front().map(|(at_ns, _)| *at_ns);
        let next = answered.or(transferred.map(|at_ns| at_ns + self.latency_ns()));
        next.map(Duration::from_nanos)
    }

    const fn latency_ns(&self) -> u64 {
        self.rates.latency.as_nanos() as u64
    }

    /// When so much will have been served, if nothing comes or goes before.
    fn time_of(&self, served_ns: u64) -> u64 {
        self.at_ns + (served_ns - self.served_ns) * self.transfers.len() as u64
    }

    fn advance(&mut self, now: Duration) {
        let now_ns = self.at_ns.max(now.as_nanos() as u64);
        let latency_ns = self.latency_ns();
        while let Some((&(ends, _), _)) = self.transfers.first_key_value() {
            let ended_ns = self.time_of(ends);
            if ended_ns > now_ns {
                self.served_ns += (now_ns - self.at_ns) / self.transfers.len() as u64;
                break;
            }
            (self.at_ns, self.served_ns) = (ended_ns, ends);
            let (_, request) = self.transfers.pop_first().expect("it was the first");
            self.answers.push_back((ended_ns + latency_ns, request));
        }
        self.at_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATES: Rates = Rates {
        latency: Duration::from_micros(80),
        bytes_per_s: 500_000_000,
        requests_per_s: 100_000,
    };

    /// Lets all requests come at their times, and says when each is answered, in nanoseconds.
    fn answers(requests: &[(u64, u64)]) -> Vec<u64> {
        let (mut service, mut answered) = (Service::new(RATES), vec![0; requests.len()]);
        let mut coming = requests.iter().enumerate().peekable();
        loop {
            let next = service.next();
            let arrival = coming.peek().map(|(_, (at_ns, _))| Duration::from_nanos(*at_ns));
            let Some(now) = next.into_iter().chain(arrival).min() else { return answered };
            for at in service.answered(now) {
                answered[at] = now.as_nanos() as u64;
            }
            if arrival == Some(now) {
                let (at, (_, bytes)) = coming.next().unwrap();
                service.admit(now, *bytes, at);
            }
        }
    }

    #[test]
    fn alone_a_request_takes_the_latency_and_its_transfer() {
        // 10 µs is the least, by the number of requests a second.
        assert_eq!(answers(&[(0, 512)]), [90_000]);
        assert_eq!(answers(&[(5_000, 100_000)]), [5_000 + 200_000 + 80_000]);
    }

    #[test]
    fn without_latency_an_answer_comes_with_the_end_of_its_transfer() {
        let mut service = Service::new(Rates { latency: Duration::ZERO, ..RATES });
        service.admit(Duration::ZERO, 512, ());
        let next = service.next().unwrap();
        assert_eq!(next, Duration::from_micros(10));
        assert!(service.answered(next - Duration::from_nanos(1)).is_empty());
        assert_eq!((service.answered(next).len(), service.next()), (1, None));
    }

    #[test]
    fn those_that_are_there_together_share_the_rate() {
        // Two alike take twice as long; a small one beside a large one waits for no more than itself.
        assert_eq!(answers(&[(0, 100_000), (0, 100_000)]), [480_000, 480_000]);
        assert_eq!(answers(&[(0, 100_000), (50_000, 5_000)]), [290_000, 150_000]);
    }

    proptest! {
        #[test]
        fn the_device_is_never_idle_while_there_is_work_and_never_faster_than_its_rates(
            gaps in prop::collection::vec((0..400_000u64, 1..200_000u64), 1..60),
        ) {
            let mut at_ns = 0;
            let requests: Vec<(u64, u64)> =
                gaps.iter().map(|(gap, bytes)| { at_ns += gap; (at_ns, *bytes) }).collect();
            // When a queue that serves one after the other would be through: the last ends with it.
            let through = requests.iter().fold(0, |through, (at_ns, bytes)| {
                at_ns.max(&through) + RATES.transfer_ns(*bytes)
            });
            let answers = answers(&requests);
            let last = answers.iter().max().unwrap() - 80_000;
            // Each event rounds a share down by less than a nanosecond a request.
            let rounding = 4 * (requests.len() * requests.len()) as u64;
            prop_assert!(last >= through && last <= through + rounding, "{last} {through}");
            for ((at_ns, bytes), answer) in requests.iter().zip(answers) {
                prop_assert!(answer >= at_ns + RATES.transfer_ns(*bytes) + 80_000);
            }
        }
    }
}
