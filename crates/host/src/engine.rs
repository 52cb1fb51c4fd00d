//! The seam to merging: guests go in under their user's domains, and what the engine knows comes
//! out in the operators' words ([`report`](crate::report)).
//!
//! A domain of the merge engine has a name; here it is a user and a name. The two are joined by
//! [`domain_key`], in which no name can be mistaken for another user's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bindery_guest::{Arrival, Connection, Guest, GuestError, Welcome};
use bindery_merge::status::{Counts, GuestState};
use bindery_merge::{DomainError, MemoryLevel, PageMap, STORE_SLOTS, Troubles, UnmergeError};
use bindery_units::PAGE_BYTES;

use crate::daemon_settings::{Change, DaemonSettings, Refused};
use crate::http::Pulse;
use crate::report;
use crate::status::{AdvisorStatus, DomainStatus, GuestStatus, PhaseStatus};

/// The domain of guests that ask for none.
pub(crate) const DEFAULT_DOMAIN: &str = "default";

/// Why something was not done to a guest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    /// It is not there any more.
    #[error("the guest has just left")]
    Gone,
    /// Its domain cannot be made.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// The guest failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// It cannot be unmerged, or merged again.
    #[error(transparent)]
    Unmerge(#[from] UnmergeError),
    /// It was unmerged in part.
    #[error(
        "{pages} pages are private again, {left} are still merged: the guest's process is short of \
         memory or of mappings (vm.max_map_count); repeat once it is not"
    )]
    Incomplete {
        /// Private again.
        pages: u64,
        /// Still merged.
        left: u64,
    },
}

/// The merge engine and the guests that it has.
pub(crate) struct HostEngine {
    merge: bindery_merge::Engine,
    settings: Mutex<DaemonSettings>,
    guests: Mutex<Guests>,
}

#[derive(Default)]
struct Guests {
    connected: BTreeMap<u32, Arc<Guest>>,
    /// Those whose connection has ended without their stepping aside, as long as the engine knows
    /// them.
    lost: BTreeSet<u32>,
}

impl HostEngine {
    pub(crate) fn new(settings: DaemonSettings, store_bytes_max: Option<u64>) -> Self {
        let merge = bindery_merge::Engine::new(bindery_merge::MergeSettings {
            workers: settings.workers as usize,
            period: settings.period(),
            store_slots: store_bytes_max.map_or(STORE_SLOTS, store_slots),
            advisor: settings.advisor,
            pages_to_scan: settings.rate(),
            huge_pages: settings.huge.settings(),
            spare_cpu: settings.spare_cpu,
            across_nodes: settings.across_nodes,
            ..Default::default()
        });
        Self { merge, settings: Mutex::new(settings), guests: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Guests> {
        // Each change is an insertion or a removal: a panic elsewhere leaves the maps whole.
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Merges until [`HostEngine::stop`].
    pub(crate) fn run(&self) {
        self.merge.run();
    }

    /// Makes [`HostEngine::run`] return, soon.
    pub(crate) fn stop(&self) {
        self.merge.stop();
    }

    pub(crate) fn settings(&self) -> DaemonSettings {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes settings, all of them or none. Waits for the period at work if `across_nodes` changes.
    pub(crate) fn set(&self, change: &Change) -> Result<DaemonSettings, Refused> {
        // Held throughout, here and below: two who change settings at once take turns.
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let new = change.apply(&settings)?;
        self.take_up(&mut settings, new)?;
        Ok(new)
    }

    /// Takes up settings that were checked, all of them or none.
    pub(crate) fn replace_settings(&self, new: DaemonSettings) -> Result<(), Refused> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        self.take_up(&mut settings, new)
    }

    fn take_up(&self, settings: &mut DaemonSettings, new: DaemonSettings) -> Result<(), Refused> {
        let across_nodes = self.merge.set_across_nodes(new.across_nodes);
        across_nodes.map_err(|_| Refused::across_nodes(new.across_nodes))?;
        *settings = new;
        self.merge.set_workers(new.workers as usize);
        self.merge.set_period(new.period());
        self.merge.set_pace(new.advisor, new.rate());
        self.merge.set_spare_cpu(new.spare_cpu);
        self.merge.set_huge_pages(new.huge.settings());
        Ok(())
    }

    /// What goes wrong for longer, so that it is logged once.
    pub(crate) fn troubles(&self) -> &Troubles {
        self.merge.troubles()
    }

    /// Says how much memory the machine has left.
    pub(crate) fn set_memory(&self, level: MemoryLevel) {
        self.merge.set_memory(level);
    }

    /// Has merging wait, or go on.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.merge.set_idle(is_idle);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.merge.status().is_idle
    }

    /// What pacing reaches.
    pub(crate) fn advisor(&self) -> AdvisorStatus {
        self.merge.status().advisor
    }

    /// Returns the figures of the phases of merging.
    pub(crate) fn phases(&self) -> Vec<PhaseStatus> {
        self.merge.status().phases.clone()
    }

    /// CPU time of workers, and of guests' threads that work for them, in microseconds.
    pub(crate) fn merge_cpu_us(&self) -> u64 {
        let status = self.merge.status();
        status.cpu_time_us + status.lanes_cpu_time_us
    }

    /// Welcomes a guest to the domain that it asks for, among those of its user.
    pub(crate) fn add(
        &self,
        arrival: Arrival,
        id: u32,
        name: String,
    ) -> Result<Arc<Guest>, EngineError> {
        let domain = arrival.domain.clone().unwrap_or_else(|| DEFAULT_DOMAIN.into());
        // Not refused for want of descriptors or memory: hung up on, it tries again.
        let grant = self.merge.domain(&domain_key(arrival.peer.uid, &domain))?;
        let guest = arrival.welcome(Welcome {
            id,
            name,
            domain,
            digest_key: grant.digest_key(),
            slots: grant.slots(),
            segment_slots: grant.segment_slots(),
        })?;
        self.merge.add_guest(&grant, Arc::<Guest>::clone(&guest));
        self.lock().connected.insert(id, Arc::clone(&guest));
        Ok(guest)
    }

    /// Returns true if a guest has this number, or had it until its connection ended and its process
    /// still maps pages of the store.
    pub(crate) fn knows(&self, id: u32) -> bool {
        let guests = self.lock();
        guests.connected.contains_key(&id) || guests.lost.contains(&id)
    }

    /// Takes out a guest whose connection has ended.
    pub(crate) fn remove(&self, id: u32) {
        let status = self.merge.status();
        let mut guests = self.lock();
        let known = |id: &u32| {
            let mut guests = status.domains.iter().flat_map(|domain| &domain.guests);
            guests.any(|guest| guest.id == *id)
        };
        guests.lost.retain(known);
        let left = guests.connected.remove(&id);
        if left.is_some_and(|guest| !guest.has_released()) {
            guests.lost.insert(id);
        }
        drop(guests);
        self.merge.remove_guest(id);
    }

    /// Closes the connections of all guests, which then look for another daemon.
    pub(crate) fn close_guests(&self) {
        let connected = self.lock().connected.clone();
        connected.values().for_each(|guest| guest.hang_up());
    }

    /// Makes all pages of a guest private; returns how many were not.
    pub(crate) fn unmerge(&self, id: u32) -> Result<u64, EngineError> {
        let bindery_merge::Unmerging { pages, left } = self.merge.unmerge(id)?;
        if left > 0 { Err(EngineError::Incomplete { pages, left }) } else { Ok(pages) }
    }

    /// Merges a guest again that was unmerged.
    pub(crate) fn merge(&self, id: u32) -> Result<u64, EngineError> {
        self.merge.merge(id)?;
        Ok(0)
    }

    /// A guest, as long as it is connected.
    pub(crate) fn guest(&self, id: u32) -> Option<Arc<Guest>> {
        self.lock().connected.get(&id).cloned()
    }

    /// Returns the guest of a process, as long as it is connected.
    pub(crate) fn guest_of(&self, pid: i32) -> Option<Arc<Guest>> {
        let guests = self.lock();
        guests.connected.values().find(|guest| guest.identity().pid == pid).cloned()
    }

    /// Returns the figures of a guest's pages, from its first period on.
    pub(crate) fn counts(&self, id: u32) -> Option<Counts> {
        let status = self.merge.status();
        let mut guests = status.domains.iter().flat_map(|domain| &domain.guests);
        guests.find(|guest| guest.id == id).map(|guest| guest.counts)
    }

    /// What a guest's pages are, from its first period on.
    pub(crate) fn map(&self, id: u32) -> Option<Arc<PageMap>> {
        self.merge.map(id)
    }

    /// How far merging is.
    pub(crate) fn pulse(&self) -> Pulse {
        let status = self.merge.status();
        Pulse { full_scans: status.full_scans, period_time_us: status.period_time_us }
    }

    /// Asks a guest to step aside, and returns it. Its own thread hears when it has.
    pub(crate) fn release(&self, id: u32) -> Result<Arc<Guest>, EngineError> {
        let guest = self.guest(id).ok_or(EngineError::Gone)?;
        guest.release()?;
        Ok(guest)
    }

    /// All domains, in order of user, name and node.
    pub(crate) fn domains(&self) -> Vec<DomainStatus> {
        let status = self.merge.status();
        let named = status.domains.iter().filter_map(|domain| {
            let (uid, name) = split_domain_key(&domain.name)?;
            Some(report::domain(uid, name, domain, status.full_scans))
        });
        let mut domains: Vec<DomainStatus> = named.collect();
        domains.sort_by(|a, b| (a.uid, &a.name, a.node).cmp(&(b.uid, &b.name, b.node)));
        domains
    }

    /// All guests, by name: those connected, and those that have lost their connection and not
    /// come back.
    pub(crate) fn guests(&self) -> Vec<GuestStatus> {
        let status = self.merge.status();
        let (connected, lost) = {
            let guests = self.lock();
            (guests.connected.clone(), guests.lost.clone())
        };
        let mut known: BTreeMap<u32, _> = status
            .domains
            .iter()
            .flat_map(|domain| &domain.guests)
            .map(|guest| (guest.id, guest))
            .collect();
        let mut guests: Vec<GuestStatus> = connected
            .iter()
            .map(|(id, guest)| match known.remove(id) {
                Some(status) => report::guest(status),
                None => report::new_guest(guest.identity(), &guest.regions()),
            })
            .collect();
        let pids: Vec<i32> = guests.iter().map(|guest| guest.pid).collect();
        let lost = known.into_values().filter(|guest| {
            let is_back = pids.contains(&guest.pid);
            guest.state == GuestState::Disconnected && lost.contains(&guest.id) && !is_back
        });
        guests.extend(lost.map(report::guest));
        guests.sort_by(|a, b| a.name.cmp(&b.name));
        guests
    }
}

impl std::fmt::Debug for HostEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostEngine").finish_non_exhaustive()
    }
}

/// How many slots a store of at most `bytes` has.
fn store_slots(bytes: u64) -> u32 {
    let slots = u32::try_from(bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
    slots.clamp(1, STORE_SLOTS)
}

/// How the merge engine calls the domain `name` of user `uid`.
fn domain_key(uid: u32, name: &str) -> String {
    format!("{uid}:{name}")
}

/// The user and the name of [`domain_key`]. The first colon ends the user, whatever the name has.
fn split_domain_key(key: &str) -> Option<(u32, &str)> {
    let (uid, name) = key.split_once(':')?;
    Some((uid.parse().ok()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_the_slots_that_fit() {
        assert_eq!([0, 4096, 8191, 1 << 20].map(store_slots), [1, 1, 1, 256]);
        assert_eq!(store_slots(u64::MAX), STORE_SLOTS);
    }

    #[test]
    fn no_name_leads_into_another_users_domain() {
        let names = [(0, "1000:web"), (0, "web"), (1000, "web"), (10, "00:web"), (1, "000:web")];
        for (at, (uid, name)) in names.into_iter().enumerate() {
            let key = domain_key(uid, name);
            assert_eq!(split_domain_key(&key), Some((uid, name)));
            assert!(names[..at].iter().all(|(uid, name)| domain_key(*uid, name) != key));
        }
    }
}
