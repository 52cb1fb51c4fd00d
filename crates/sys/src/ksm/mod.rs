//! Kernel samepage merging: its settings, its counters, its thread, and what it does for a process
//! (`Documentation/admin-guide/mm/ksm.rst`, `mm/ksm.c`).
//!
//! Everything is there since Linux 5.10, but for what is an `Option`.

mod counters;
mod file;
mod kernel_settings;
mod ksmd;
mod merge_any;
mod process;

pub use counters::Counters;
pub use file::KsmFile;
pub use kernel_settings::{ADVISOR_MODE, KernelSettings, PAGES_TO_SCAN, RUN, SLEEP_MILLISECS};
pub use ksmd::Ksmd;
pub use merge_any::{merges_any, set_merge_any};
pub use process::ProcessStat;

/// Where its files are.
pub const DIRECTORY: &str = "/sys/kernel/mm/ksm";

/// What KSM keeps for each page that it has looked at, in bytes (`struct ksm_rmap_item`, a slab
/// object of 64 bytes on 64-bit machines).
pub const ITEM_BYTES: u64 = 64;

/// What KSM keeps for each page that is shared, in bytes (`struct ksm_stable_node`).
pub const STABLE_NODE_BYTES: u64 = 64;

/// Whether this kernel has KSM.
#[must_use]
pub fn is_there() -> bool {
    std::path::Path::new(DIRECTORY).join(RUN).exists()
}
