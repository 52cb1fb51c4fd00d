//! Settings of the kernel's KSM.

use super::file::{number, text};

/// Whether it runs: 0 stopped, 1 running, 2 stopped with everything unmerged.
pub const RUN: &str = "run";

/// Pages of a batch.
pub const PAGES_TO_SCAN: &str = "pages_to_scan";

/// The rest after a batch, in milliseconds.
pub const SLEEP_MILLISECS: &str = "sleep_millisecs";

/// The kernel's own advisor: `none` or `scan-time` (Linux 6.8).
pub const ADVISOR_MODE: &str = "advisor_mode";

/// KSM's settings, under the kernel's names. `None` where this kernel has none, or it cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSettings {
    /// See [`RUN`].
    pub run: Option<u64>,
    /// See [`PAGES_TO_SCAN`].
    pub pages_to_scan: Option<u64>,
    /// See [`SLEEP_MILLISECS`].
    pub sleep_millisecs: Option<u64>,
    /// See [`ADVISOR_MODE`].
    pub advisor_mode: Option<String>,
    /// In percent of one CPU (Linux 6.8).
    pub advisor_max_cpu: Option<u64>,
    /// In pages (Linux 6.8).
    pub advisor_min_pages_to_scan: Option<u64>,
    /// In pages (Linux 6.8).
    pub advisor_max_pages_to_scan: Option<u64>,
    /// In seconds (Linux 6.8).
    pub advisor_target_scan_time: Option<u64>,
    /// Whether pages that never merged are passed over more and more often: 0 or 1 (Linux 6.7).
    pub smart_scan: Option<u64>,
    /// Whether zero pages become the kernel's zero page: 0 or 1.
    pub use_zero_pages: Option<u64>,
    /// Whether pages of different NUMA nodes are merged: 0 or 1; no setting without NUMA.
    pub merge_across_nodes: Option<u64>,
    /// How many pages may share one.
    pub max_page_sharing: Option<u64>,
    /// In milliseconds.
    pub stable_node_chains_prune_millisecs: Option<u64>,
}

impl KernelSettings {
    /// Reads them all. About 50 µs.
    #[must_use]
    pub fn read() -> Self {
        Self {
            run: number(RUN),
            pages_to_scan: number(PAGES_TO_SCAN),
            sleep_millisecs: number(SLEEP_MILLISECS),
            advisor_mode: text(ADVISOR_MODE),
            advisor_max_cpu: number("advisor_max_cpu"),
            advisor_min_pages_to_scan: number("advisor_min_pages_to_scan"),
            advisor_max_pages_to_scan: number("advisor_max_pages_to_scan"),
            advisor_target_scan_time: number("advisor_target_scan_time"),
            smart_scan: number("smart_scan"),
            use_zero_pages: number("use_zero_pages"),
            merge_across_nodes: number("merge_across_nodes"),
            max_page_sharing: number("max_page_sharing"),
            stable_node_chains_prune_millisecs: number("stable_node_chains_prune_millisecs"),
        }
    }
}
