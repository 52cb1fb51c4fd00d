//! What it costs to keep books about pages.

use bindery_host::status::HostStatus;
use bindery_testkit::machine::KsmCounters;

/// Memory for bookkeeping, and for how many pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// Pages that books are kept about: those that KSM scans, or those that are managed.
    pages: u64,
    /// Tables and indices, in bytes.
    pub(super) tables_bytes: u64,
    /// What the mappings of merged pages cost the kernel, in bytes. KSM needs none.
    pub(super) mappings_bytes: u64,
    /// True if the kernel has the tables, and not the daemon and the shim.
    pub(super) is_kernels: bool,
}

/// A `ksm_rmap_item`, one a scanned page, and a `ksm_stable_node`, one a merged content
/// (mm/ksm.c).
const KSM_BYTES: u64 = 64;

/// What the shim keeps in the guest's process, which no daemon can count: an entry of 32 bits a
/// managed page.
const SHIM_BYTES: u64 = 4;

impl Metadata {
    pub(super) const fn of_ksm(ksm: &KsmCounters) -> Self {
        // `pages_volatile` is what is left of all items after the three others, so that their sum
        // is the number of items.
        let items = ksm.pages_shared + ksm.pages_sharing + ksm.pages_unshared + ksm.pages_volatile;
        let tables_bytes = KSM_BYTES * (items + ksm.pages_shared);
        Self { pages: items, tables_bytes, mappings_bytes: 0, is_kernels: true }
    }

    pub(super) fn of_daemon(status: &HostStatus) -> Self {
        let mut sum = Self::default();
        for domain in &status.domains {
            sum.pages += domain.counts.pages_managed;
            sum.tables_bytes += domain.metadata_bytes + SHIM_BYTES * domain.counts.pages_managed;
            sum.mappings_bytes += domain.mappings_bytes;
        }
        sum
    }

    /// Bytes of tables for each page.
    pub(crate) fn tables_bytes_a_page(&self) -> f64 {
        self.tables_bytes as f64 / self.pages as f64
    }

    /// Bytes of mappings for each page.
    pub(crate) fn mappings_bytes_a_page(&self) -> f64 {
        self.mappings_bytes as f64 / self.pages as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ksm_pays_for_scanned_pages_and_for_contents() {
        let counters = KsmCounters {
            pages_shared: 10,
            pages_sharing: 30,
            pages_unshared: 50,
            pages_volatile: 10,
            ..KsmCounters::default()
        };
        let metadata = Metadata::of_ksm(&counters);
        assert_eq!(metadata.tables_bytes_a_page(), 64.0 * 110.0 / 100.0);
        assert_eq!(metadata.mappings_bytes_a_page(), 0.0);
    }
}
