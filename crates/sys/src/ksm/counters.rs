//! What KSM counts.

use super::file::{number, text};
use super::{ITEM_BYTES, STABLE_NODE_BYTES};

/// KSM's counters, in pages where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pages that are shared.
    pub pages_shared: u64,
    /// Pages that are saved by that.
    pub pages_sharing: u64,
    /// Pages that are the only one of their kind.
    pub pages_unshared: u64,
    /// Pages that change too fast.
    pub pages_volatile: u64,
    /// Times that all memory was looked at.
    pub full_scans: u64,
    /// Pages looked at so far (Linux 6.6); counted page by page, within a batch as well.
    pub pages_scanned: Option<u64>,
    /// Pages passed over by `smart_scan` so far (Linux 6.7).
    pub pages_skipped: Option<u64>,
    /// Pages merged with the kernel's zero page (Linux 6.6).
    pub ksm_zero_pages: Option<u64>,
    /// Shared pages of which there are several, because too many pages share them.
    pub stable_node_chains: Option<u64>,
    /// Copies in all those chains.
    pub stable_node_dups: Option<u64>,
    /// The kernel's own reckoning, in bytes; leaves out what it keeps for shared pages (Linux 6.4).
    pub general_profit: Option<i64>,
}

impl Counters {
    /// Reads them all; `None` without KSM. About 30 µs. Not one instant: each is a file of its own.
    #[must_use]
    pub fn read() -> Option<Self> {
        Some(Self {
            pages_shared: number("pages_shared")?,
            pages_sharing: number("pages_sharing")?,
            pages_unshared: number("pages_unshared")?,
            pages_volatile: number("pages_volatile")?,
            full_scans: number("full_scans")?,
            pages_scanned: number("pages_scanned"),
            pages_skipped: number("pages_skipped"),
            ksm_zero_pages: number("ksm_zero_pages"),
            stable_node_chains: number("stable_node_chains"),
            stable_node_dups: number("stable_node_dups"),
            general_profit: text("general_profit").and_then(|text| text.parse().ok()),
        })
    }

    /// Pages that KSM keeps an item for: all that it has looked at and that are still there.
    #[must_use]
    pub const fn items(&self) -> u64 {
        // The kernel reckons pages_volatile as what is left of the items without the other three.
        self.pages_shared + self.pages_sharing + self.pages_unshared + self.pages_volatile
    }

    /// Memory that merging frees, zero pages included, in bytes.
    #[must_use]
    pub fn saved_bytes(&self) -> u64 {
        (self.pages_sharing + self.ksm_zero_pages.unwrap_or(0)) * bindery_units::PAGE_BYTES as u64
    }

    /// Memory that KSM keeps for itself, in bytes.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        // A chain has a node of its own beside those of its copies, which pages_shared counts.
        let nodes = self.pages_shared + self.stable_node_chains.unwrap_or(0);
        self.items() * ITEM_BYTES + nodes * STABLE_NODE_BYTES
    }

    /// What is saved less what it takes, in bytes.
    #[must_use]
    pub fn net_bytes(&self) -> i64 {
        self.saved_bytes().cast_signed().saturating_sub_unsigned(self.metadata_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_counts_against_what_is_saved() {
        let counters = Counters {
            pages_shared: 10,
            pages_sharing: 90,
            pages_unshared: 500,
            pages_volatile: 400,
            ksm_zero_pages: Some(5),
            ..Counters::default()
        };
        assert_eq!(counters.items(), 1000);
        assert_eq!(counters.saved_bytes(), 95 * 4096);
        assert_eq!(counters.metadata_bytes(), 1010 * 64);
        assert_eq!(counters.net_bytes(), 95 * 4096 - 1010 * 64);
        let idle = Counters { pages_unshared: 100, ..Counters::default() };
        assert_eq!(idle.net_bytes(), -6400);
    }
}
