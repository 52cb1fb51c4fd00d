//! What a pool has done.

use std::iter::Sum;

use super::Pool;
use super::member::Usage;
use crate::catalogue::CatalogueStatistics;

/// What a pool has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// mblocks that were committed.
    pub committed: u64,
    /// The bytes in them.
    pub committed_bytes: u64,
    /// mblocks that were begun and aborted.
    pub aborted: u64,
    /// Objects that were deleted.
    pub deleted: u64,
    /// Syncs of devices for the data of mblocks; fewer than were committed, where threads shared them.
    pub data_syncs: u64,
    /// What the catalogue has done.
    pub catalogue: CatalogueStatistics,
}

impl Pool {
    /// What it has done since it was opened.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let [committed, committed_bytes, aborted, deleted] = self.core.counters.read();
        let members = self.core.members();
        let data_syncs = members.iter().map(|member| member.syncs.count()).sum();
        let catalogue = self.core.catalogue.statistics();
        Statistics { committed, committed_bytes, aborted, deleted, data_syncs, catalogue }
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(usages: I) -> Self {
        usages.fold(Self::default(), |sum, usage| Self {
            total_bytes: sum.total_bytes + usage.total_bytes,
            free_bytes: sum.free_bytes + usage.free_bytes,
            held_bytes: sum.held_bytes + usage.held_bytes,
            limbo_bytes: sum.limbo_bytes + usage.limbo_bytes,
            used_bytes: sum.used_bytes + usage.used_bytes,
        })
    }
}
