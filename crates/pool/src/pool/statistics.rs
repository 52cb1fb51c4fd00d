//! What a pool has done.

use std::iter::Sum;
use std::sync::Arc;

use super::Pool;
use super::member::{Member, Usage};
use super::reader::PoolReader;
use crate::catalogue::CatalogueStatistics;
use crate::format::superblock::DeviceEntry;

/// Objects, and the bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many objects.
    pub objects: u64,
    /// How many bytes they have together.
    pub bytes: u64,
}

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
    /// mblocks that were moved to the archive.
    pub archived: Amount,
    /// mblocks that were brought back from there.
    pub brought_back: Amount,
    /// Syncs of devices for the data of mblocks; fewer than were committed, where threads shared them.
    pub data_syncs: u64,
    /// What the catalogue has done.
    pub catalogue: CatalogueStatistics,
}

/// A device of a pool that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// What the pool's table says of it.
    pub entry: DeviceEntry,
    /// What it is called in messages: its path.
    pub label: String,
    /// What is on it.
    pub usage: Usage,
}

fn device_usages(members: &[Arc<Member>]) -> Vec<DeviceUsage> {
    let of = |member: &Arc<Member>| {
        let (entry, usage) = (member.entry(), member.usage());
        DeviceUsage { entry, label: member.label.clone(), usage }
    };
    members.iter().map(of).collect()
}

impl PoolReader {
    /// What is on each device, by index.
    #[must_use]
    pub fn device_usages(&self) -> Vec<DeviceUsage> {
        device_usages(&self.members())
    }
}

impl Pool {
    /// What is on each device, by index.
    #[must_use]
    pub fn device_usages(&self) -> Vec<DeviceUsage> {
        device_usages(&self.core.members())
    }

    /// What it has done since it was opened.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let [committed, archived, brought_back] = self.core.counters.amounts();
        let [aborted, deleted] = self.core.counters.ended();
        let members = self.core.members();
        let data_syncs = members.iter().map(|member| member.syncs.count()).sum();
        let catalogue = self.core.catalogue.statistics();
        Statistics {
            committed: committed.objects,
            committed_bytes: committed.bytes,
            aborted,
            deleted,
            archived,
            brought_back,
            data_syncs,
            catalogue,
        }
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
