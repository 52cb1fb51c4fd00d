//! Whether the daemon is well: it merges, and takes connections.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::Pulse;
use crate::status::HostStatus;

/// How long merging may tell nothing of itself, beyond a period: longer than any guest is waited for.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What `/healthz` says.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Health {
    /// `ok`, or `unwell`.
    pub(super) status: &'static str,
    /// What is wrong and what to do; `None` while all is well.
    pub(super) reason: Option<String>,
}

impl Health {
    pub(super) const fn is_ok(&self) -> bool {
        self.reason.is_none()
    }
}

/// How the daemon is, if merging last told of itself `silence` ago.
pub(super) fn judge(status: &HostStatus, silence: Duration) -> Health {
    let period = Duration::from_millis(status.settings.period_ms);
    let reason = if silence > period + SILENCE_MAX {
        Some(format!(
            "merging has not gone on for {} s: see the daemon's log, or restart it; guests go on",
            silence.as_secs()
        ))
    } else if status.state.name == "short-of-resources" {
        status.state.advice.clone()
    } else {
        None
    };
    Health { status: if reason.is_none() { "ok" } else { "unwell" }, reason }
}

/// When merging last told of itself.
#[derive(Debug)]
pub(super) struct Watchdog {
    last: Pulse,
    heard: Instant,
}

impl Watchdog {
    pub(super) fn new(now: Instant) -> Self {
        Self { last: Pulse::default(), heard: now }
    }

    /// Takes in how far merging is. While it waits for memory to get short, nothing is to be heard.
    pub(super) fn note(&mut self, pulse: Pulse, is_idle: bool, now: Instant) {
        if is_idle || pulse != self.last {
            (self.last, self.heard) = (pulse, now);
        }
    }

    /// For how long merging has told nothing new.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }
}

#[cfg(test)]
mod tests {
    use super::super::alone::host;
    use super::*;
    use crate::status::State;

    #[test]
    fn it_is_well_while_merging_goes_on() {
        let mut status = host();
        assert!(judge(&status, Duration::from_secs(60)).is_ok());
        let stuck = judge(&status, Duration::from_secs(62));
        assert!(!stuck.is_ok() && stuck.reason.unwrap().contains("62 s"));
        status.settings.period_ms = 10_000;
        assert!(judge(&status, Duration::from_secs(62)).is_ok());
        status.state = State { name: "short-of-resources".into(), advice: Some("raise it".into()) };
        assert_eq!(judge(&status, Duration::ZERO).reason.as_deref(), Some("raise it"));
    }

    #[test]
    fn any_progress_counts() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut watchdog = Watchdog::new(start);
        watchdog.note(Pulse { full_scans: 0, period_time_us: 5 }, false, after(1));
        watchdog.note(Pulse { full_scans: 0, period_time_us: 5 }, false, after(9));
        assert_eq!(watchdog.silence(after(9)), Duration::from_secs(8));
        watchdog.note(Pulse { full_scans: 0, period_time_us: 6 }, false, after(9));
        assert_eq!(watchdog.silence(after(9)), Duration::ZERO);
        watchdog.note(Pulse { full_scans: 0, period_time_us: 6 }, true, after(99));
        assert_eq!(watchdog.silence(after(99)), Duration::ZERO, "it waits as it is told to");
    }
}
