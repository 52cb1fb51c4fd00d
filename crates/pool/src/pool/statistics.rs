//! Counts of what a pool has done.

use std::sync::Arc;

use super::handle::Pool;
use super::reader::PoolReader;
use crate::catalogue::CatalogueStatistics;
use crate::format::superblock::DeviceEntry;
use crate::media::{PoolDevice, SpaceUsage};
use crate::session::ObjectAmount;

/// Counts of what a pool has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    /// mblocks that were committed.
    pub committed: u64,
    /// The bytes in them.
    pub committed_bytes: u64,
    /// mblocks that were begun and aborted.
    pub aborted: u64,
    /// Objects that were deleted.
    pub deleted: u64,
    /// mblocks that were moved to the archive.
    pub archived: ObjectAmount,
    /// mblocks that were brought back from there.
    pub brought_back: ObjectAmount,
    /// Syncs of devices for the data of mblocks; fewer than were committed, where threads shared them.
    pub data_syncs: u64,
    /// Counts of the catalogue.
    pub catalogue: CatalogueStatistics,
}

/// A device of a pool that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Entry of the device in the pool's table.
    pub entry: DeviceEntry,
    /// Name of the device in messages: its path.
    pub label: String,
    /// Space on the device.
    pub usage: SpaceUsage,
}

fn device_usages(pool_devices: &[Arc<PoolDevice>]) -> Vec<DeviceUsage> {
    let of = |pool_device: &Arc<PoolDevice>| {
        let (entry, usage) = (pool_device.entry(), pool_device.usage());
        DeviceUsage { entry, label: pool_device.label.clone(), usage }
    };
    pool_devices.iter().map(of).collect()
}

impl PoolReader {
    /// Returns the space on each device, by index.
    #[must_use]
    pub fn device_usages(&self) -> Vec<DeviceUsage> {
        device_usages(&self.pool_devices())
    }
}

impl Pool {
    /// Returns the space on each device, by index.
    #[must_use]
    pub fn device_usages(&self) -> Vec<DeviceUsage> {
        device_usages(&self.session.pool_devices())
    }

    /// Returns the counts since the pool was opened.
    #[must_use]
    pub fn statistics(&self) -> PoolStatistics {
        let [committed, archived, brought_back] = self.session.counters.amounts();
        let [aborted, deleted] = self.session.counters.ended();
        let pool_devices = self.session.pool_devices();
        let data_syncs = pool_devices.iter().map(|pool_device| pool_device.syncs.count()).sum();
        let catalogue = self.session.catalogue.statistics();
        PoolStatistics {
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
