//! One guest within its domain.
//!
//! # Concurrency
//! A phase gives a member's [`State`] to one worker at a time (its lock says so); several may look
//! at its links while pages are digested. A member whose [`Health`] is not [`Health::Well`] is
//! skipped by every worker that has not begun with it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bindery_dirty::Reader;
use bindery_guest::{Connection, GuestError, Identity, Lane};
use bindery_units::{PageIndex, PageRange};
use bindery_wire::control::StoreId;

use crate::links::{Link, Links};
use crate::meter::Meter;
use crate::patience::{Lateness, TimedLane};
use crate::rhythm::Rhythm;
use crate::runs::Merge;
use crate::settings::MEND_BREAKS;
use crate::stable::Stable;
use crate::status::{Counts, GuestState, GuestStatus};
use crate::tally::Tally;
use crate::troubles::{Troubles, guest_of};

/// Whether work on a member goes on in this period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Health {
    Well,
    /// Something failed: no more in this period.
    Failing,
    /// It owes an answer: nothing until it has come.
    Stalled,
    /// Its connection is of no further use.
    Lost,
}

/// A guest in a domain.
pub(crate) struct Member {
    /// Its number within the domain, never used again.
    pub(crate) number: u32,
    pub(crate) connection: Arc<dyn Connection>,
    /// Pages of its process may have been merged before it was connected: it has to be asked.
    pub(crate) has_past: bool,
    pub(crate) links: Links,
    pub(crate) tally: Tally,
    state: Mutex<State>,
    health: AtomicU8,
    meter: Arc<Meter>,
    troubles: Arc<Troubles>,
    pub(crate) lateness: Lateness,
    digested: AtomicU64,
    linked: [AtomicU64; 3],
}

/// What one worker at a time changes.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) stable: Stable,
    pub(crate) rhythm: Rhythm,
    /// Managed pages, ascending.
    pub(crate) managed: Vec<PageRange>,
    /// Pages that were written and not taken in yet, once there was memory to keep track of them.
    pub(crate) written: Option<Reader>,
    /// Stable pages that may be looked at in this period, and have not been.
    pub(crate) ready: u64,
    /// Pages found to be zero in this round.
    pub(crate) zeros: Vec<u32>,
    /// Merges of this round, by page once they were given their places (`copies`). Each holds a
    /// reference of its slot.
    pub(crate) merges: Vec<Merge>,
    /// Pages of this round that were inferred to hold what they are to be merged with (`between`).
    pub(crate) inferred: Vec<u32>,
    /// Merges of a request that was not answered. Each holds a reference of its slot until the
    /// guest has said what it maps.
    pub(crate) in_flight: Vec<Merge>,
    pub(crate) doubt: Doubt,
    /// Pages merged with a store of a daemon that ended.
    pub(crate) foreign: BTreeSet<u32>,
    /// How many times all of its stable pages were looked at since it has reported what is merged.
    pub(crate) laps: u32,
    /// Left alone until told otherwise.
    pub(crate) unmerged: bool,
    pub(crate) mappings_short: bool,
    pub(crate) unmended_breaks: u64,
    /// Breaks after which mending is worth another try.
    pub(crate) mend_after: u64,
    pub(crate) counts: Counts,
    pub(crate) mappings: u32,
    pub(crate) mappings_min: Option<u32>,
    pub(crate) mappings_max: u32,
    pub(crate) transit_max_ns: u64,
    pub(crate) lane_cpu_ns: u64,
    pub(crate) handler_cpu_ns: u64,
}

impl State {
    /// Gives about `most` stable pages to `pages`. False once its turn is over.
    pub(crate) fn tell(&mut self, most: usize, pages: &mut Vec<u32>) -> bool {
        self.inferred.clear();
        let goes_on = self.stable.tell(most, pages);
        // Pages may be told again that were put back before.
        self.ready = if goes_on { self.ready.saturating_sub(pages.len() as u64) } else { 0 };
        if !goes_on {
            self.end_lap();
        }
        goes_on
    }

    /// All that was stable has been looked at.
    pub(crate) fn end_lap(&mut self) {
        self.laps = self.laps.saturating_add(1);
    }
}

/// What has to be asked, because nobody told it yet, or an answer never came.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// Which pages are there. All of them may have been written.
    pub(crate) present: bool,
    /// Which pages are merged, and with what.
    pub(crate) merged: bool,
}

impl Member {
    /// `returns`: its process has been here before.
    pub(crate) fn new(
        number: u32,
        connection: Arc<dyn Connection>,
        returns: bool,
        meter: Arc<Meter>,
        troubles: Arc<Troubles>,
    ) -> Self {
        let has_past = returns || connection.holds_other_stores();
        // Another daemon may have been told before what is there: a scan would not tell again.
        let doubt = Doubt { present: true, merged: has_past };
        Self {
            number,
            connection,
            has_past,
            links: Links::default(),
            tally: Tally::default(),
            state: Mutex::new(State { doubt, mend_after: MEND_BREAKS, ..State::default() }),
            health: AtomicU8::new(Health::Well as u8),
            meter,
            troubles,
            lateness: Lateness::none(),
            digested: AtomicU64::new(0),
            linked: Default::default(),
        }
    }

    /// The state, for one worker.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A worker that panics takes the engine down with it: there is no half-done state to save.
        self.state.lock().expect("no worker panicked with a member's state")
    }

    pub(crate) fn state_mut(&mut self) -> &mut State {
        self.state.get_mut().expect("no worker panicked with a member's state")
    }

    pub(crate) fn health(&self) -> Health {
        // Relaxed, here and below: a hint to stop early; phases order the rest.
        match self.health.load(Ordering::Relaxed) {
            health if health == Health::Well as u8 => Health::Well,
            health if health == Health::Failing as u8 => Health::Failing,
            health if health == Health::Stalled as u8 => Health::Stalled,
            _ => Health::Lost,
        }
    }

    pub(crate) fn set_health(&self, health: Health) {
        self.health.store(health as u8, Ordering::Relaxed);
    }

    pub(crate) fn is_well(&self) -> bool {
        self.health() == Health::Well
    }

    /// Stable pages that may be looked at in this period, and have not been.
    pub(crate) fn ready(&self) -> u64 {
        self.state().ready
    }

    /// Whether it is a connection of this one's process, too. The process id comes from the kernel:
    /// nobody else can claim to be this guest.
    pub(crate) fn is_of_process(&self, other: &Identity) -> bool {
        let own = self.connection.identity();
        own.pid == other.pid && own.instance == other.instance
    }

    /// How its shim calls the domain's store.
    pub(crate) fn store(&self) -> StoreId {
        self.connection.store()
    }

    /// A lane; if there is none to be had, the member is done with for this period.
    pub(crate) fn lane(&self) -> Option<TimedLane<'_>> {
        if !self.is_well() {
            return None;
        }
        let lane = self.lateness.check("requests").and_then(|()| self.connection.lane());
        lane.map(|lane| TimedLane::new(lane, self)).map_err(|error| self.note(&error)).ok()
    }

    /// Takes in that something failed.
    pub(crate) fn note(&self, error: &GuestError) {
        let guest = self.connection.identity();
        let (name, pid) = (&guest.name, guest.pid);
        let health = match error {
            GuestError::Stalled { .. } => Health::Stalled,
            error if error.is_fatal() => Health::Lost,
            _ => Health::Failing,
        };
        // Several workers may meet the same silence: one line is enough.
        match error {
            _ if !self.is_well() => {}
            // As every guest's is when it ends: whoever listens to the connection tells of that.
            GuestError::Gone => tracing::debug!(name, pid, "a guest's connection is closed"),
            _ if self.troubles.note(guest_of(pid), error) => {
                tracing::warn!(name, pid, %error, "a guest is left alone");
            }
            _ => tracing::debug!(name, pid, %error, "a guest is left alone still"),
        }
        if self.health() != Health::Lost {
            self.set_health(health);
        }
    }

    /// Takes in that a period is over. A guest that fails no more is logged once, as its failing was.
    pub(crate) fn end_period(&self) {
        let guest = self.connection.identity();
        let (name, pid) = (&guest.name, guest.pid);
        if self.is_well() && self.troubles.is_over(guest_of(pid)) {
            tracing::info!(name, pid, "a guest is well again");
        }
    }

    /// Takes in what a lane's answers said about the process, and meters what they cost.
    pub(crate) fn take_gauges(&self, lane: &mut TimedLane<'_>, state: &mut State) {
        self.meter.add_lane(self.take_gauges_unmetered(lane, state));
    }

    /// The same for what an operator asked for, which is not merging's to pay. Returns the CPU time, in
    /// nanoseconds.
    pub(crate) fn take_gauges_unmetered(&self, lane: &mut TimedLane<'_>, state: &mut State) -> u64 {
        let gauges = lane.gauges();
        if gauges.mappings_max > 0 {
            state.mappings = gauges.mappings;
            state.mappings_max = gauges.mappings_max;
            let least = state.mappings_min.unwrap_or(u32::MAX);
            state.mappings_min = Some(least.min(gauges.mappings));
        }
        state.transit_max_ns = state.transit_max_ns.max(gauges.transit_max_ns);
        state.lane_cpu_ns += gauges.lane_cpu_ns;
        state.handler_cpu_ns = state.handler_cpu_ns.max(gauges.handler_cpu_ns);
        gauges.lane_cpu_ns
    }

    /// Takes in that `pages` were digested.
    pub(crate) fn count_digested(&self, pages: usize) {
        self.digested.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Links `page`, keeps count, and returns what it was linked to.
    pub(crate) fn link(&self, page: PageIndex, link: Link) -> Link {
        let old = self.links.set(page, link);
        self.tally.relink(page, old, link);
        for (link, gains) in [(old, false), (link, true)] {
            let count = match link {
                Link::None => continue,
                Link::Candidate(_) => &self.linked[0],
                Link::Merged(_) => &self.linked[1],
                Link::Zero => &self.linked[2],
            };
            // Relaxed: figures for status; exact between phases.
            if gains {
                count.fetch_add(1, Ordering::Relaxed);
            } else {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
        old
    }

    /// Pages that map a slot of the domain's store.
    pub(crate) fn merged(&self) -> u64 {
        self.linked[1].load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.state();
        let count = |at: usize| self.linked[at].load(Ordering::Relaxed);
        Counts {
            pages_managed: state.managed.iter().map(|range| u64::from(range.count)).sum(),
            pages_unshared: count(0),
            pages_merged: count(1),
            zero_pages: count(2),
            pages_pending: state.ready,
            pages_foreign: state.foreign.len() as u64,
            pages_digested: self.digested.load(Ordering::Relaxed),
            guest_cpu_time_us: (state.lane_cpu_ns + state.handler_cpu_ns) / 1000,
            ..state.counts
        }
    }

    /// Mappings that merging has cost its process: those above the fewest it was ever seen with.
    pub(crate) fn merge_mappings(&self) -> u64 {
        let state = self.state();
        u64::from(state.mappings - state.mappings_min.unwrap_or(state.mappings))
    }

    /// Memory held for it, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let state = self.state();
        let lists = (state.zeros.capacity() + state.inferred.capacity()) * size_of::<u32>()
            + (state.merges.capacity() + state.in_flight.capacity()) * size_of::<Merge>()
            // A B-tree's nodes are at least half full.
            + state.foreign.len() * 2 * size_of::<u32>()
            + written_bytes(&state.managed);
        let tables = self.links.memory_bytes()
            + self.tally.memory_bytes()
            + state.stable.memory_bytes()
            + state.rhythm.memory_bytes();
        (size_of::<Self>() + lists + tables) as u64
    }

    pub(crate) fn status(&self) -> GuestStatus {
        let identity = self.connection.identity().clone();
        let counts = self.counts();
        let metadata_bytes = self.memory_bytes();
        let state = self.state();
        GuestStatus {
            id: identity.id,
            name: identity.name,
            domain: identity.domain,
            pid: identity.pid,
            uid: identity.uid,
            command: identity.command,
            state: match self.health() {
                Health::Stalled => GuestState::Stalled,
                Health::Lost => GuestState::Disconnected,
                Health::Failing => GuestState::Failing,
                Health::Well if state.unmerged => GuestState::Unmerged,
                Health::Well if state.mappings_short => GuestState::MappingsShort,
                Health::Well => GuestState::Merging,
            },
            counts,
            mappings: state.mappings,
            mappings_max: state.mappings_max,
            transit_max_us: state.transit_max_ns / 1000,
            metadata_bytes,
        }
    }
}

/// What a reader's tree of these pages takes, if all of them were ever written: a bit each, and its
/// summaries.
fn written_bytes(managed: &[PageRange]) -> usize {
    let pages: usize = managed.iter().map(|range| range.count as usize).sum();
    pages.div_ceil(8) * 65 / 64
}
