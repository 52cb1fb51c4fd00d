//! One guest within its domain.
//!
//! # Concurrency
//! A phase gives a guest's [`State`] to one worker at a time (its lock says so), but for `examine` and
//! `apply`: there several share it by turns, and change the links of pages of their own. A guest whose [`Health`] is not [`Health::Well`] is
//! skipped by every worker that has not begun with it.

mod blocks;
mod breaks;
mod doubt;
mod foreign;
mod mending;
mod round;
mod state;
mod tracking;
mod usage;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bindery_guest::{Connection, GuestError, Identity, Lane};
use bindery_units::PageIndex;
use bindery_wire::control::StoreId;

use crate::gains::Gains;
pub(crate) use crate::guest::blocks::{Cause, Fingerprints, Gained, Reading, Step};
pub(crate) use crate::guest::round::Inferred;
pub(crate) use crate::guest::state::State;
use crate::guest::usage::Usage;
use crate::links::{Link, Links};
use crate::meter::Meter;
use crate::patience::{Lateness, TimedLane};
use crate::status::{Counts, GuestState, GuestStatus};
use crate::tally::Tally;
use crate::troubles::{Troubles, guest_of};

/// Fitness of a guest for work in this period, from good to bad.
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
pub(crate) struct Guest {
    /// Number within the domain, of no other guest at the time.
    pub(crate) number: u32,
    pub(crate) connection: Arc<dyn Connection>,
    /// Pages of its process may have been merged before it was connected: it has to be asked.
    pub(crate) has_past: bool,
    pub(crate) links: Links,
    pub(crate) gains: Gains,
    pub(crate) tally: Tally,
    state: Mutex<State>,
    health: AtomicU8,
    meter: Arc<Meter>,
    troubles: Arc<Troubles>,
    pub(crate) lateness: Lateness,
    digested: AtomicU64,
    linked: [AtomicU64; 3],
}

impl Guest {
    /// `returns`: its process has been here before.
    pub(crate) fn new(
        number: u32,
        connection: Arc<dyn Connection>,
        returns: bool,
        meter: Arc<Meter>,
        troubles: Arc<Troubles>,
    ) -> Self {
        let has_past = returns || connection.holds_other_stores();
        Self {
            number,
            connection,
            has_past,
            links: Links::default(),
            gains: Gains::default(),
            tally: Tally::default(),
            state: Mutex::new(State::new(number, has_past)),
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
        self.state.lock().expect("no worker panicked with a guest's state")
    }

    pub(crate) fn state_mut(&mut self) -> &mut State {
        self.state.get_mut().expect("no worker panicked with a guest's state")
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
        self.state().tracking.ready()
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

    /// A lane; if there is none to be had, the guest is done with for this period.
    pub(crate) fn lane(&self) -> Option<TimedLane<'_>> {
        if !self.is_well() {
            return None;
        }
        let lane = self.lateness.check("requests").and_then(|()| self.connection.lane());
        lane.map(|lane| TimedLane::new(lane, &self.lateness))
            .map_err(|error| self.note(&error))
            .ok()
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
            // As every guest's is when it ends: whoever listens to the connection logs that.
            GuestError::Gone => tracing::debug!(name, pid, "a guest's connection is closed"),
            _ if self.troubles.note(guest_of(pid), error) => {
                tracing::warn!(name, pid, %error, "a guest is left alone");
            }
            _ => tracing::debug!(name, pid, %error, "a guest is left alone still"),
        }
        // The worst holds: what another request still owes is not forgotten for a failure since.
        self.health.fetch_max(health as u8, Ordering::Relaxed);
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
    pub(crate) fn note_gauges(&self, lane: &mut TimedLane<'_>, usage: &mut Usage) {
        self.meter.add_lane(usage.note_gauges(&lane.gauges()));
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
            pages_managed: state.pages_managed(),
            pages_unshared: count(0),
            pages_merged: count(1),
            zero_pages: count(2),
            pages_pending: state.tracking.ready(),
            pages_foreign: state.foreign.len(),
            pages_digested: self.digested.load(Ordering::Relaxed),
            guest_cpu_time_us: state.usage.cpu_time_us(),
            ..state.counts
        }
    }

    /// Mappings that merging has cost its process.
    pub(crate) fn merge_mappings(&self) -> u64 {
        u64::from(self.state().usage.merge_mappings())
    }

    /// Memory held for it, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let tables =
            self.links.memory_bytes() + self.gains.memory_bytes() + self.tally.memory_bytes();
        (size_of::<Self>() + tables + self.state().memory_bytes()) as u64
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
            node: None,
            pid: identity.pid,
            uid: identity.uid,
            command: identity.command,
            state: match self.health() {
                Health::Stalled => GuestState::Stalled,
                Health::Lost => GuestState::Disconnected,
                Health::Failing => GuestState::Failing,
                Health::Well if state.is_unmerged => GuestState::Unmerged,
                Health::Well if state.usage.is_short_of_mappings => GuestState::MappingsShort,
                Health::Well => GuestState::Merging,
            },
            counts,
            mappings: state.usage.mappings(),
            mappings_max: state.usage.mappings_max(),
            transit_max_us: state.usage.transit_max_us(),
            metadata_bytes,
        }
    }
}
