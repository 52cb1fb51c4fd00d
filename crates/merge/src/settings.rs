//! What can be set, and the bounds on single requests.

use std::time::Duration;

use crate::huge::HugeSettings;

/// The default period.
pub const PERIOD: Duration = Duration::from_secs(1);

/// The default rest after a batch: KSM's.
pub const REST: Duration = Duration::from_millis(20);

/// The default size of a store, in slots: the most that a shim can tell apart, 256 GiB, of which
/// memory is used as slots are.
pub const STORE_SLOTS: u32 = bindery_wire::control::SLOTS_MAX;

/// Most keys that an index can have.
pub const INDEX_KEYS_MAX: u32 = 1 << 29;

/// The default size of an index, in keys: 512 GiB of different pages. Some 300 KiB are held for it
/// before there is any.
pub const INDEX_KEYS: u32 = 1 << 27;

/// How an engine is to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeSettings {
    /// Workers: how many guests' threads work for the engine at a time, and how many of its own.
    pub workers: usize,
    /// From the start of one period to the start of the next. A page is merged when it was not
    /// written for two.
    pub period: Duration,
    /// Slots of a store made from now on, at most [`STORE_SLOTS`].
    pub store_slots: u32,
    /// Keys of an index made from now on, at most [`INDEX_KEYS_MAX`].
    pub index_keys: u32,
    /// How fast stable pages are looked at: a target, and a ceiling on CPU time for all workers and
    /// guests' threads that work for them. [`Mode::None`](bindery_advisor::Mode::None): as fast as
    /// `pages_to_scan` says, and no ceiling.
    pub advisor: bindery_advisor::AdvisorSettings,
    /// True if work takes what all CPUs of the machine have left, with as many workers as there are CPUs, in place of
    /// the advisor's ceiling.
    pub spare_cpu: bool,
    /// Pages of a batch, where no advisor says how many; `None`: as fast as it goes.
    pub pages_to_scan: Option<u64>,
    /// The rest after a batch: KSM's `sleep_millisecs`.
    pub rest: Duration,
    /// Treatment of huge pages.
    pub huge_pages: HugeSettings,
    /// True if pages of guests on different NUMA nodes are merged: KSM's `merge_across_nodes`.
    pub across_nodes: bool,
    /// Whether pages that break are left alone for longer, and storms slow merging down. Off only
    /// where breaking as much as possible is the point.
    pub backs_off: bool,
}

impl Default for MergeSettings {
    fn default() -> Self {
        Self {
            workers: 1,
            period: PERIOD,
            store_slots: STORE_SLOTS,
            index_keys: INDEX_KEYS,
            advisor: bindery_advisor::AdvisorSettings::of_kernel(bindery_advisor::Mode::None),
            spare_cpu: false,
            pages_to_scan: None,
            rest: REST,
            huge_pages: HugeSettings::default(),
            across_nodes: true,
            backs_off: true,
        }
    }
}

/// Pages of one request for what is merged: 16 GiB.
pub(crate) const REPORT_PAGES: u32 = 1 << 22;

/// Runs of written pages taken in at a time.
pub(crate) const HARVEST_RUNS: usize = 1 << 12;

/// Written pages whose links are looked at together: bounds the leaves that are deleted at a time.
pub(crate) const HARVEST_PAGES: u32 = 1 << 14;

/// Blocks of one request for samples: 4 GiB, some 5 ms.
pub(crate) const SAMPLED_BLOCKS: usize = 2048;

/// Blocks of one guest that are sampled in one period, at most: 64 GiB, some 80 ms.
pub(crate) const LOOKED_AT_BLOCKS: usize = 1 << 15;

/// Blocks made whole in one period, at most: 10 ms and more.
pub(crate) const COLLAPSED_BLOCKS: usize = 64;

/// Pages of one digest request: some 3 ms.
pub(crate) const DIGEST_PAGES: usize = 4096;

/// Pages of one merge request: 4 ms in long runs, 30 in runs of one.
pub(crate) const MERGE_PAGES: usize = 4096;

/// Pages that go from digests to merged at a time, at most: bounds what is held meanwhile, and lets
/// memory fall while the rest is still being looked at. Fewer in tests, so that there are several.
pub(crate) const ROUND_PAGES: usize = if cfg!(test) { 1 << 14 } else { 1 << 18 };

/// How many times all stable pages of a domain are looked at before pages merged with the store of a
/// daemon that ended are brought back, if nobody else turned out to have their content.
pub(crate) const REHOME_LAPS: u32 = 4;

/// Pages brought back in one period for that reason.
pub(crate) const REHOME_PAGES: u32 = 8192;

/// Breaks after which a guest that has used half of its mappings is asked to join what they left
/// apart. Not before: pages that are moved for it count as written.
pub(crate) const MEND_BREAKS: u64 = 4096;

/// Breaks that are waited for at most, where joining mappings has proved to save few.
pub(crate) const MEND_BREAKS_MAX: u64 = 1 << 20;

/// Pages of one request to mend: 0.2 s if mappings end in every run of 64 of them.
pub(crate) const MEND_PAGES: u32 = 1 << 14;

/// Bytes of kernel memory for one mapping: a `vm_area_struct` and its share of a maple tree node
/// (measured, 192 to 225).
pub const MAPPING_BYTES: u64 = 208;
