//! What requests are answered from.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use super::Source;
use super::access::Access;
use super::health::{Health, Watchdog, judge};
use super::heat::Heat;
use super::history::{Excerpt, History, Sample};
use super::map::{Map, draw};

/// The state of a daemon that merges only while memory is short, and it is not.
const IDLE: &str = "idle";

/// The daemon, as seen over HTTP.
pub(super) struct Site {
    pub(super) source: Arc<dyn Source>,
    pub(super) access: Access,
    begun: Instant,
    seen: Mutex<Seen>,
}

/// What is remembered.
struct Seen {
    history: History,
    heat: Heat,
    watchdog: Watchdog,
    /// Requests answered so far, by status code.
    requests: BTreeMap<u16, u64>,
}

impl Site {
    pub(super) fn new(source: Arc<dyn Source>, access: Access, now: Instant) -> Self {
        let seen = Seen {
            history: History::new(SystemTime::now()),
            heat: Heat::default(),
            watchdog: Watchdog::new(now),
            requests: BTreeMap::new(),
        };
        Self { source, access, begun: now, seen: Mutex::new(seen) }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Each part is whole after every change of it: one request that failed stops no other.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers how the daemon is at the moment, and forgets what is too old.
    pub(super) fn sample(&self, now: Instant) {
        let (status, pulse) = (self.source.status(), self.source.pulse());
        let sample = Sample::of(&status, now.saturating_duration_since(self.begun));
        let mut seen = self.seen();
        seen.history.push(sample);
        seen.watchdog.note(pulse, status.state.name == IDLE, now);
        seen.heat.forget(now);
    }

    /// Whether the daemon is well.
    pub(super) fn health(&self, now: Instant) -> Health {
        let (status, pulse) = (self.source.status(), self.source.pulse());
        let mut seen = self.seen();
        seen.watchdog.note(pulse, status.state.name == IDLE, now);
        judge(&status, seen.watchdog.silence(now))
    }

    /// The samples from number `since` on.
    pub(super) fn history(&self, since: u64) -> Excerpt {
        self.seen().history.since(since)
    }

    /// The map of a guest, in at most `cells` cells or one for each region.
    pub(super) fn map(&self, guest: &str, cells: u32, now: Instant) -> Option<Map> {
        let memory = self.source.memory(guest)?;
        let writes = self.seen().heat.of(memory.id, &memory.guest, &memory.regions, now);
        Some(draw(&memory, &writes, cells))
    }

    /// Counts a request that was answered.
    pub(super) fn count(&self, status: u16) {
        *self.seen().requests.entry(status).or_insert(0) += 1;
    }

    /// Requests answered so far, by status code.
    pub(super) fn requests(&self) -> Vec<(u16, u64)> {
        self.seen().requests.iter().map(|(status, count)| (*status, *count)).collect()
    }
}
