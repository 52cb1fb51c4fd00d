//! The last ten minutes, a sample a second: for lines on the dashboard.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bindery_advisor::Mode;
use serde::Serialize;

use crate::status::HostStatus;

/// How often a sample is taken.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Samples that are kept: ten minutes.
const SAMPLES_MAX: usize = 600;

/// Names each sample, for [`Sample`] and for the columns of [`Columns`].
macro_rules! samples {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// The daemon at one time. CPU times are sums since it began.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub(super) struct Sample {
            $($(#[$doc])* pub(super) $name: $type,)*
        }

        /// Samples, a list for each figure, from the oldest to the newest.
        #[derive(Debug, Default, PartialEq, Serialize)]
        pub(super) struct Columns {
            $($(#[$doc])* pub(super) $name: Vec<$type>,)*
        }

        impl Columns {
            fn push(&mut self, sample: &Sample) {
                $(self.$name.push(sample.$name);)*
            }
        }
    };
}

samples! {
    /// Since the daemon began, in milliseconds.
    time_ms: u64,
    /// Guests.
    guests: u32,
    /// Memory saved after all metadata, in bytes.
    general_profit: i64,
    /// Memory that the stores hold, in bytes.
    store_bytes: u64,
    /// Pages saved by canonical pages.
    pages_sharing: u64,
    /// Pages that are the zero page.
    zero_pages: u64,
    /// Writes to merged pages so far.
    breaks: u64,
    /// CPU time of the daemon, in milliseconds.
    cpu_ms: u64,
    /// CPU time in guests' processes, in milliseconds.
    guest_cpu_ms: u64,
    /// Resident memory of the daemon, in bytes.
    resident_bytes: u64,
    /// How long the last scan took, in microseconds.
    scan_time_us: u64,
    /// How long it may take, in microseconds; `None` where nothing sets the pace.
    target_scan_time_us: Option<u64>,
    /// Pages of a batch, between two rests; `None`: as fast as it goes.
    pages_to_scan: Option<u64>,
    /// CPU time of what the advisor's ceiling holds for, in milliseconds.
    merge_cpu_ms: u64,
}

impl Sample {
    /// What is to be remembered of `status`.
    pub(super) fn of(status: &HostStatus, uptime: Duration) -> Self {
        let mut sample = Self {
            time_ms: uptime.as_millis() as u64,
            cpu_ms: status.cpu_ms,
            resident_bytes: status.resident_bytes,
            scan_time_us: status.advisor.scan_time_us,
            target_scan_time_us: target_us(status),
            pages_to_scan: status.advisor.pages_to_scan,
            merge_cpu_ms: status.merge_cpu_us / 1000,
            ..Self::default()
        };
        let mut guest_cpu_us = 0;
        for domain in &status.domains {
            sample.guests += domain.guests;
            sample.general_profit += domain.general_profit;
            sample.store_bytes += domain.store_bytes;
            sample.pages_sharing += domain.pages_sharing;
            sample.zero_pages += domain.counts.zero_pages;
            sample.breaks += domain.counts.breaks;
            guest_cpu_us += domain.counts.guest_cpu_time_us;
        }
        Self { guest_cpu_ms: guest_cpu_us / 1000, ..sample }
    }
}

/// How long a scan may take, in microseconds; `None` while nothing paces scans.
pub(super) fn target_us(status: &HostStatus) -> Option<u64> {
    let advisor = &status.settings.advisor;
    (advisor.mode != Mode::None).then_some(advisor.target_scan_time_s * 1_000_000)
}

/// The last samples.
#[derive(Debug)]
pub(super) struct History {
    /// Whose samples they are.
    began_unix_ms: u64,
    samples: VecDeque<Sample>,
    /// How many were ever taken.
    taken: u64,
}

/// Some of the history, as clients get it.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Excerpt {
    /// When the daemon began, in milliseconds since 1970. Samples of another daemon, at the same
    /// address after a restart, are numbered anew and do not go on from these.
    began_unix_ms: u64,
    /// From one sample to the next, in milliseconds.
    interval_ms: u64,
    /// The number of the first sample told; samples are numbered from 0 on.
    first: u64,
    /// The number that the next sample will have: what to ask for next.
    next: u64,
    samples: Columns,
}

impl History {
    /// Of a daemon that began at this time.
    pub(super) fn new(began: SystemTime) -> Self {
        let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_unix_ms = began.as_millis() as u64;
        Self { began_unix_ms, samples: VecDeque::new(), taken: 0 }
    }

    pub(super) fn push(&mut self, sample: Sample) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.taken += 1;
    }

    /// The samples from number `since` on, as far as they are kept.
    pub(super) fn since(&self, since: u64) -> Excerpt {
        let oldest = self.taken - self.samples.len() as u64;
        // A number of another daemon, before this one, is none of ours.
        let first = if since > self.taken { oldest } else { since.max(oldest) };
        let mut samples = Columns::default();
        let samples_since = self.samples.iter().skip((first - oldest) as usize);
        samples_since.for_each(|sample| samples.push(sample));
        let interval_ms = INTERVAL.as_millis() as u64;
        let (began_unix_ms, next) = (self.began_unix_ms, self.taken);
        Excerpt { began_unix_ms, interval_ms, first, next, samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_ten_minutes_and_tells_what_is_new() {
        let mut history = History::new(UNIX_EPOCH + Duration::from_millis(7));
        assert_eq!((history.since(0).next, history.since(9).began_unix_ms), (0, 7));
        for time_ms in 0..1000 {
            history.push(Sample { time_ms, ..Sample::default() });
        }
        let samples_since = |since| {
            let Excerpt { first, next, samples, .. } = history.since(since);
            (first, next, samples.time_ms.first().copied(), samples.time_ms.len())
        };
        assert_eq!(samples_since(0), (400, 1000, Some(400), 600));
        assert_eq!(samples_since(998), (998, 1000, Some(998), 2));
        assert_eq!(samples_since(1000), (1000, 1000, None, 0));
        assert_eq!(samples_since(5000), (400, 1000, Some(400), 600), "another daemon's number");
        assert!(history.samples.capacity() <= 1024);
    }
}
