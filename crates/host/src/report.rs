//! What the merge engine knows, in the operators' words: bytes beside pages, and for every state
//! what to do about it.

use std::fs;

use bindery_guest::Identity;
use bindery_merge::DomainState;
use bindery_merge::status::{
    Counts, DomainStatus as MergeDomain, GuestState, GuestStatus as MergeGuest,
};
use bindery_units::PageCount;
use bindery_wire::control::Region;
use bindery_wire::lane::BLOCK_PAGES;

use crate::status::{DomainStatus, GuestStatus, State};

/// A domain of user `uid`.
pub(crate) fn domain(uid: u32, name: &str, domain: &MergeDomain, full_scans: u64) -> DomainStatus {
    let counts = &domain.counts;
    DomainStatus {
        uid,
        name: name.to_owned(),
        node: domain.node,
        guests: domain.guests.len() as u32,
        state: domain_state(domain.state),
        pages_shared: domain.pages_shared,
        pages_sharing: domain.pages_sharing,
        full_scans,
        general_profit: domain.general_profit,
        store_bytes: domain.store_bytes,
        metadata_bytes: domain.metadata_bytes,
        mappings_bytes: domain.mappings_bytes,
        counts: *counts,
    }
}

/// A guest that the engine has met.
pub(crate) fn guest(guest: &MergeGuest) -> GuestStatus {
    let counts = guest.counts;
    GuestStatus {
        name: guest.name.clone(),
        pid: guest.pid,
        uid: guest.uid,
        domain: guest.domain.clone(),
        node: guest.node,
        command: guest.command.clone(),
        state: guest_state(guest.state),
        ram_bytes: bytes(counts.pages_managed),
        private_bytes: private_bytes(guest.pid, &counts),
        merged_bytes: bytes(counts.pages_merged),
        zero_bytes: bytes(counts.zero_pages),
        huge_bytes: bytes(counts.huge_pages * u64::from(BLOCK_PAGES)),
        mappings: guest.mappings,
        mappings_max: guest.mappings_max,
        transit_max_us: guest.transit_max_us,
        metadata_bytes: guest.metadata_bytes,
        counts,
    }
}

/// A guest that has just come: the engine takes it in with the next period.
pub(crate) fn new_guest(identity: &Identity, regions: &[Region]) -> GuestStatus {
    let pages_managed = regions.iter().map(|region| u64::from(region.pages.count)).sum();
    let counts = Counts { pages_managed, ..Counts::default() };
    GuestStatus {
        name: identity.name.clone(),
        pid: identity.pid,
        uid: identity.uid,
        domain: identity.domain.clone(),
        node: None,
        command: identity.command.clone(),
        state: State { name: "new".into(), advice: None },
        ram_bytes: bytes(pages_managed),
        private_bytes: private_bytes(identity.pid, &counts),
        merged_bytes: 0,
        zero_bytes: 0,
        huge_bytes: 0,
        mappings: 0,
        mappings_max: 0,
        transit_max_us: 0,
        metadata_bytes: 0,
        counts,
    }
}

fn bytes(pages: u64) -> u64 {
    PageCount(pages).bytes().0
}

/// What of a guest's managed memory is private and there, at most: the kernel counts anonymous
/// memory for the process as a whole, the VMM's own included, and managed pages may be absent.
fn private_bytes(pid: i32, counts: &Counts) -> u64 {
    let elsewhere = counts.pages_merged + counts.zero_pages + counts.pages_foreign;
    let managed = bytes(counts.pages_managed.saturating_sub(elsewhere));
    // Unknown for a process of another PID namespace, or one that has just ended.
    let anonymous = status_bytes(&pid.to_string(), "RssAnon:");
    anonymous.map_or(managed, |anonymous| anonymous.min(managed))
}

/// A field of `/proc/PROCESS/status` that is in KiB (proc_pid_status(5)), in bytes.
pub(crate) fn status_bytes(process: &str, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Every state that the daemon can be in.
pub(crate) const DAEMON_STATES: [&str; 3] = ["running", "idle", "short-of-resources"];

/// Every state that a guest can be in.
pub(crate) const GUEST_STATES: [&str; 7] =
    ["new", "merging", "unmerged", "stalled", "mappings-short", "failing", "disconnected"];

/// Every state that a domain can be in.
pub(crate) const DOMAIN_STATES: [&str; 6] =
    ["merging", "storm", "store-full", "index-full", "memory-short", "descriptors-short"];

fn guest_state(state: GuestState) -> State {
    let (name, advice) = match state {
        GuestState::Merging => ("merging", None),
        GuestState::Unmerged => ("unmerged", None),
        GuestState::Stalled => (
            "stalled",
            Some(
                "its process does not answer (stopped, frozen, or starved of CPU): it is left alone \
                 until it does",
            ),
        ),
        GuestState::MappingsShort => (
            "mappings-short",
            Some(
                "its process has no room for more mappings: merging goes on within what it has. \
                 Raise the limit with `sysctl -w vm.max_map_count=1048576`",
            ),
        ),
        GuestState::Failing => (
            "failing",
            Some("something failed in the last period and is tried again: see the daemon's log"),
        ),
        GuestState::Disconnected => (
            "disconnected",
            Some(
                "its connection has failed; its process goes on with the pages it has, and is taken \
                 back when it connects again; see the VMM's log if it does not",
            ),
        ),
    };
    State { name: name.into(), advice: advice.map(Into::into) }
}

fn domain_state(state: DomainState) -> State {
    let (name, advice) = match state {
        DomainState::Merging => ("merging", None),
        DomainState::Storm => (
            "storm",
            Some(
                "many merged pages were written to: merging pauses for longer and longer. If it \
                 stays so, lengthen the period: `bindery set period=5s`",
            ),
        ),
        DomainState::StoreFull => (
            "store-full",
            Some(
                "every slot of the store is in use: merging pauses until some are free. Spread the \
                 guests over several domains",
            ),
        ),
        DomainState::IndexFull => (
            "index-full",
            Some("the index is full: merging pauses. Spread the guests over several domains"),
        ),
        DomainState::MemoryShort => (
            "memory-short",
            Some(
                "there is no memory for canonical pages: merging pauses and is tried again. Free \
                 memory, or raise the memory limit of the daemon's cgroup",
            ),
        ),
        DomainState::DescriptorsShort => (
            "descriptors-short",
            Some(
                "the daemon has no descriptor for more canonical pages (one for every 2 MiB): merging \
                 pauses and is tried again. Raise its limit on open files: LimitNOFILE= in its unit, or \
                 `ulimit -Hn`",
            ),
        ),
    };
    State { name: name.into(), advice: advice.map(Into::into) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_states_have_them_all() {
        for state in [
            GuestState::Merging,
            GuestState::Stalled,
            GuestState::MappingsShort,
            GuestState::Unmerged,
            GuestState::Failing,
            GuestState::Disconnected,
        ] {
            assert!(GUEST_STATES.contains(&&*guest_state(state).name), "{state:?}");
        }
        for state in [
            DomainState::Merging,
            DomainState::Storm,
            DomainState::StoreFull,
            DomainState::IndexFull,
            DomainState::MemoryShort,
            DomainState::DescriptorsShort,
        ] {
            assert!(DOMAIN_STATES.contains(&&*domain_state(state).name), "{state:?}");
        }
    }
}
