//! What the daemon reports to operators: numbers with their units, states with what to do.
//!
//! Part of the operators' [protocol](crate::protocol). Counters that mean what KSM's mean have
//! KSM's names (Documentation/admin-guide/mm/ksm.rst), so that existing dashboards fit.

use std::net::SocketAddr;

pub use bindery_merge::status::{AdvisorStatus, Counts, PhaseStatus};
use serde::{Deserialize, Serialize};

pub use crate::daemon_settings::DaemonSettings;

/// Something's state, and what an operator can do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Its name: one of those in the operator's guide.
    pub name: String,
    /// What happened and what to change; `None` while all is well.
    pub advice: Option<String>,
}

/// The daemon as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Process id of the daemon.
    pub pid: u32,
    /// The user it runs as.
    pub uid: u32,
    /// Version of the daemon's program.
    pub program_version: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// What can be changed.
    pub settings: DaemonSettings,
    /// What pacing reaches.
    pub advisor: AdvisorStatus,
    /// Figures of the phases of merging so far, in the order of a period.
    #[serde(default)]
    pub phases: Vec<PhaseStatus>,
    /// CPU time of the daemon's process so far, in milliseconds. What merging costs in guests'
    /// processes is with their domains.
    pub cpu_ms: u64,
    /// CPU time of what the advisor's ceiling holds for so far, in microseconds: workers, and guests'
    /// threads that work for them.
    pub merge_cpu_us: u64,
    /// Resident memory of the daemon itself, stores excluded, in bytes: tables, index, code.
    pub resident_bytes: u64,
    /// Where it can be looked at over HTTP; `None` if it cannot.
    #[serde(default)]
    pub http: Option<SocketAddr>,
    /// How the daemon is.
    pub state: State,
    /// In order of user, name and node.
    pub domains: Vec<DomainStatus>,
}

/// A domain: guests that may share pages with one another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainStatus {
    /// Whose guests these are.
    pub uid: u32,
    /// Its name.
    pub name: String,
    /// NUMA node of its guests and its store with `across_nodes=false`: each node of a domain is listed for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// How many guests it has now.
    pub guests: u32,
    /// How merging goes.
    pub state: State,
    /// Canonical pages in use.
    pub pages_shared: u64,
    /// Pages that map a canonical page, beyond one for each: those saved.
    pub pages_sharing: u64,
    /// Periods completed: in each, every guest was asked what it wrote.
    pub full_scans: u64,
    /// Memory saved after all metadata (tables, index, mappings), in bytes; may be negative.
    pub general_profit: i64,
    /// Memory of the domain's store, in bytes.
    pub store_bytes: u64,
    /// Index and tables of the domain, in bytes.
    pub metadata_bytes: u64,
    /// What the mappings of merged pages cost the kernel, estimated, in bytes.
    pub mappings_bytes: u64,
    /// Sums over its guests, in pages, those that left included.
    #[serde(flatten)]
    pub counts: Counts,
}

/// One guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestStatus {
    /// Its name, unique within the daemon.
    pub name: String,
    /// Process id.
    pub pid: i32,
    /// Whose it is.
    pub uid: u32,
    /// Its domain.
    pub domain: String,
    /// NUMA node that it shares pages within with `across_nodes=false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// The command of its process.
    pub command: String,
    /// How merging goes.
    pub state: State,
    /// Managed memory, in bytes.
    pub ram_bytes: u64,
    /// Of it, private and in memory, in bytes, at most: the kernel counts for the process as a
    /// whole.
    pub private_bytes: u64,
    /// Of it, mapped from canonical pages, in bytes.
    pub merged_bytes: u64,
    /// Of it, the kernel's zero page, in bytes.
    pub zero_bytes: u64,
    /// Of it, huge pages that are left whole, in bytes.
    pub huge_bytes: u64,
    /// Mappings that the process has.
    pub mappings: u32,
    /// Mappings that it may have before merging stops.
    pub mappings_max: u32,
    /// The longest that one of its threads can have waited for a page, in microseconds.
    pub transit_max_us: u64,
    /// Memory that the daemon holds for it, in bytes.
    pub metadata_bytes: u64,
    /// Its figures, in pages.
    #[serde(flatten)]
    pub counts: Counts,
}
