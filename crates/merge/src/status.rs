//! What an engine says about itself. KSM's names where the meaning is KSM's
//! (Documentation/admin-guide/mm/ksm.rst), so that whoever reads one can read the other.

use serde::{Deserialize, Serialize};

pub use crate::phases::PhaseStatus;
use crate::pressure::DomainState;

/// What a guest does, as far as merging is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestState {
    /// Merging goes on.
    #[default]
    Merging,
    /// It did not answer in time (stopped, frozen, starved) and is left alone until it does.
    Stalled,
    /// Its process has no room for more mappings: see `vm.max_map_count`.
    MappingsShort,
    /// Unmerged on request, and left alone until told otherwise.
    Unmerged,
    /// Something failed in the last period; the daemon's log says what. Tried again in the next.
    Failing,
    /// Its connection is closed. What its process maps is kept until it ends or comes back.
    Disconnected,
}

/// Figures that mean the same for one guest as for a domain. Pages unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Pages managed.
    pub pages_managed: u64,
    /// Pages that map a canonical page.
    pub pages_merged: u64,
    /// Pages that are the kernel's zero page because merging made them so.
    pub zero_pages: u64,
    /// Pages that are unique but were looked at.
    pub pages_unshared: u64,
    /// Pages that change too often to be looked at, or changed lately.
    pub pages_volatile: u64,
    /// Pages that are stable, but were not looked at yet.
    pub pages_pending: u64,
    /// Pages that are still merged with the store of a daemon that ended.
    pub pages_foreign: u64,
    /// Pages scanned for writes so far.
    pub pages_scanned: u64,
    /// Pages digested so far.
    pub pages_digested: u64,
    /// Merged pages that were written to so far.
    pub breaks: u64,
    /// Merged pages that were discarded (balloon, `MADV_DONTNEED`) so far.
    pub discards: u64,
    /// Pages that proved different when they were to be merged, so far.
    pub digest_different: u64,
    /// Pages that could not be moved at the time (pinned, shared by a fork), so far.
    pub pages_busy: u64,
    /// Pages that will never be merged (locked, copied within a mapping), so far.
    pub pages_never: u64,
    /// Huge pages, of 2 MiB, which are left whole.
    pub huge_pages: u64,
    /// Huge pages that are split, for their pages to be merged.
    pub huge_pages_split: u64,
    /// Huge pages split so far.
    pub huge_splits: u64,
    /// Huge pages that were worth splitting and kept, because too much in them is written, so far.
    pub huge_kept_hot: u64,
    /// Huge pages made again since too few of their pages stayed merged, so far.
    pub collapses_thin: u64,
    /// Huge pages made again since too much in them was written, so far.
    pub collapses_hot: u64,
    /// Huge pages that became holes, since all of their pages were zero, so far.
    pub collapses_empty: u64,
    /// CPU time in guests' processes for merging: lanes and fault handlers, in microseconds.
    pub guest_cpu_time_us: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.pages_managed += other.pages_managed;
        self.pages_merged += other.pages_merged;
        self.zero_pages += other.zero_pages;
        self.pages_unshared += other.pages_unshared;
        self.pages_volatile += other.pages_volatile;
        self.pages_pending += other.pages_pending;
        self.pages_foreign += other.pages_foreign;
        self.pages_scanned += other.pages_scanned;
        self.pages_digested += other.pages_digested;
        self.breaks += other.breaks;
        self.discards += other.discards;
        self.digest_different += other.digest_different;
        self.pages_busy += other.pages_busy;
        self.pages_never += other.pages_never;
        self.huge_pages += other.huge_pages;
        self.huge_pages_split += other.huge_pages_split;
        self.huge_splits += other.huge_splits;
        self.huge_kept_hot += other.huge_kept_hot;
        self.collapses_thin += other.collapses_thin;
        self.collapses_hot += other.collapses_hot;
        self.collapses_empty += other.collapses_empty;
        self.guest_cpu_time_us += other.guest_cpu_time_us;
    }
}

/// One guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStatus {
    /// What the daemon calls it.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// NUMA node that it shares pages within, where merging stays within nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Its process.
    pub pid: i32,
    /// The user that its process acts as.
    pub uid: u32,
    /// The command of its process.
    pub command: String,
    /// What it does.
    pub state: GuestState,
    /// Its figures.
    #[serde(flatten)]
    pub counts: Counts,
    /// Mappings that its process has.
    pub mappings: u32,
    /// Mappings that it may have before merging stops.
    pub mappings_max: u32,
    /// The longest that pages were in transit in the last period, in microseconds.
    pub transit_max_us: u64,
    /// Memory that the daemon holds for it, in bytes.
    pub metadata_bytes: u64,
}

/// One domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStatus {
    /// Its name.
    pub name: String,
    /// NUMA node of its guests and its store, where merging stays within nodes: each node of a domain is listed
    /// for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// What it does.
    pub state: DomainState,
    /// Canonical pages: slots of the store in use.
    pub pages_shared: u64,
    /// Pages saved: those that map a canonical page, less the canonical ones.
    pub pages_sharing: u64,
    /// Bytes saved, zero pages included, less all metadata. Negative while merging costs more than
    /// it gives.
    pub general_profit: i64,
    /// Memory for bookkeeping in the daemon, in bytes: index, tables, the store's.
    pub metadata_bytes: u64,
    /// Kernel memory for the mappings that merging has made in guests' processes, in bytes, at
    /// [`MAPPING_BYTES`](crate::MAPPING_BYTES) each.
    pub mappings_bytes: u64,
    /// Memory that the store holds, in bytes.
    pub store_bytes: u64,
    /// Slots that the store can have.
    pub store_slots_max: u64,
    /// Contents in the index.
    pub index_keys: u64,
    /// Sums over its guests, those that left included.
    #[serde(flatten)]
    pub counts: Counts,
    /// Its guests, by id.
    pub guests: Vec<GuestStatus>,
}

/// What paces scans, and what it reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvisorStatus {
    /// Pages of a batch; `None`: as fast as it goes.
    pub pages_to_scan: Option<u64>,
    /// The rest after a batch, in microseconds: longer than usual where even the smallest batch is
    /// above the ceiling.
    pub rest_us: u64,
    /// Scans completed: in each, all pages that were stable at its start were looked at.
    pub scans: u64,
    /// How long the last one took, in microseconds.
    pub scan_time_us: u64,
    /// How many pages it looked at.
    pub scan_pages: u64,
    /// CPU time of its periods, guests' threads included, in percent of one CPU.
    pub scan_cpu_percent: u64,
}

/// An engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Periods completed.
    pub full_scans: u64,
    /// Workers.
    pub workers: u64,
    /// The period, in milliseconds.
    pub period_ms: u64,
    /// How long the last period's work took, rests included, in microseconds.
    pub period_time_us: u64,
    /// CPU time of the engine's own threads so far, in microseconds.
    pub cpu_time_us: u64,
    /// CPU time of guests' threads that work for the engine so far, in microseconds.
    pub lanes_cpu_time_us: u64,
    /// Whether merging waits until memory gets short.
    pub is_idle: bool,
    /// What paces it.
    pub advisor: AdvisorStatus,
    /// Figures of the phases of its periods.
    pub phases: Vec<PhaseStatus>,
    /// Domains by name and node.
    pub domains: Vec<DomainStatus>,
}
