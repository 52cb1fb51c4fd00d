//! A device of a pool that is open, and the space on it.
//!
//! A part of a device is free, or held by an object that is being written, or used by one that is
//! committed, or in limbo: deleted, and not yet given out again because it is to be discarded first,
//! or because another process still reads it.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use bindery_sys::direct::Buffer;

use super::device_syncs::DeviceSyncs;
use super::space_usage::SpaceUsage;
use crate::device::Device;
use crate::format::superblock::{DeviceEntry, HEAD_BYTES};
use crate::free_space::FreeSpace;
use crate::{BLOCK_BYTES, DeviceIndex, Extent, MediaClass};

/// Zeros that are written at once where a log is to be, in bytes.
const ZEROS_BYTES: u64 = 1 << 20;

/// A device and its label.
#[derive(Clone, Debug)]
pub struct AttachedDevice {
    /// Name of the device in messages: its path.
    pub label: String,
    /// The device itself.
    pub device: Arc<dyn Device>,
}

/// A device of a pool that is open.
pub(crate) struct PoolDevice {
    pub(crate) index: DeviceIndex,
    pub(crate) id: u128,
    pub(crate) class: MediaClass,
    pub(crate) label: String,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) syncs: DeviceSyncs,
    space: Mutex<DeviceSpace>,
    /// Held while what is in limbo is discarded: who finds no room waits for what is on its way.
    reclaiming: Mutex<()>,
}

#[derive(Debug)]
struct DeviceSpace {
    free: FreeSpace,
    /// Length of the device, in bytes.
    bytes: u64,
    held_bytes: u64,
    limbo: Vec<Extent>,
    /// Bytes of deleted objects that this process still reads.
    lingering_bytes: u64,
    /// Bytes that are being discarded.
    leaving_bytes: u64,
}

/// Two extents that overlap, or one that the device does not have.
#[derive(Debug)]
pub(crate) struct Misplaced;

impl PoolDevice {
    /// A device on which nothing is used but its head.
    pub(crate) fn new(entry: &DeviceEntry, attached: AttachedDevice) -> Self {
        let bytes = entry.bytes - entry.bytes % BLOCK_BYTES as u64;
        let space = DeviceSpace {
            free: Self::unused(bytes),
            bytes,
            held_bytes: 0,
            limbo: Vec::new(),
            lingering_bytes: 0,
            leaving_bytes: 0,
        };
        Self {
            index: entry.index,
            id: entry.id,
            class: entry.class,
            label: attached.label,
            device: attached.device,
            syncs: DeviceSyncs::default(),
            space: Mutex::new(space),
            reclaiming: Mutex::default(),
        }
    }

    /// Returns the free parts of a device of so many bytes that has nothing but the head.
    pub(crate) fn unused(bytes: u64) -> FreeSpace {
        let mut free = FreeSpace::new();
        free.release(HEAD_BYTES, bytes.saturating_sub(HEAD_BYTES));
        free
    }

    /// As the pool's table has it.
    pub(crate) fn entry(&self) -> DeviceEntry {
        let bytes = self.space().bytes;
        DeviceEntry { index: self.index, id: self.id, class: self.class, bytes }
    }

    /// Marks as used what the catalogue names.
    pub(crate) fn occupy(&self, extent: Extent) -> Result<(), Misplaced> {
        let taken = self.space().free.take(extent.offset_bytes, extent.bytes);
        if taken { Ok(()) } else { Err(Misplaced) }
    }

    /// Holds two parts or none: one of `data_bytes`, aligned, and one of `table_bytes` beside it.
    pub(crate) fn hold(
        &self,
        data_bytes: u64,
        align: u64,
        table_bytes: u64,
    ) -> Option<[Extent; 2]> {
        let data = self.hold_with(data_bytes, |free| free.allocate(data_bytes, align))?;
        let table = self.hold_high(table_bytes);
        if table.is_none() {
            self.give_back(data);
        }
        Some([data, table?])
    }

    /// Holds a part for a log.
    pub(crate) fn hold_low(&self, bytes: u64) -> Option<Extent> {
        self.hold_with(bytes, |free| free.allocate(bytes, BLOCK_BYTES as u64))
    }

    /// As [`hold_low`](Self::hold_low), as far from what that gives as can be.
    pub(crate) fn hold_high(&self, bytes: u64) -> Option<Extent> {
        self.hold_with(bytes, |free| free.allocate_high(bytes))
    }

    /// Holds what `allocate` finds, if nobody reads it. Somebody may: a reader of another process that
    /// was there before this pool was opened, of an object that was deleted then.
    fn hold_with(
        &self,
        bytes: u64,
        allocate: impl Fn(&mut FreeSpace) -> Option<u64>,
    ) -> Option<Extent> {
        loop {
            let extent = {
                let mut space = self.space();
                let offset = allocate(&mut space.free)?;
                space.held_bytes += bytes;
                self.extent(offset, bytes)
            };
            if !self.is_read_elsewhere(extent) {
                return Some(extent);
            }
            self.abandon(extent);
        }
    }

    /// Writes zeros over a part that a log is to have. A log is synced at each commit: in a sparse file
    /// that would otherwise have the file system find room and write its journal each time, and could
    /// fail for want of room when a deletion is to be written.
    pub(crate) fn write_zeros(&self, extent: Extent) -> io::Result<()> {
        let whole = Buffer::zeroed(extent.bytes.min(ZEROS_BYTES) as usize);
        let end = extent.offset_bytes + extent.bytes;
        let mut offset_bytes = extent.offset_bytes;
        while end - offset_bytes >= whole.len() as u64 {
            self.device.write(offset_bytes, &whole)?;
            offset_bytes += whole.len() as u64;
        }
        if offset_bytes < end {
            let rest = Buffer::zeroed((end - offset_bytes) as usize);
            self.device.write(offset_bytes, &rest)?;
        }
        Ok(())
    }

    /// Accounts held bytes as used.
    pub(crate) fn settle(&self, bytes: u64) {
        self.space().held_bytes -= bytes;
    }

    /// Gives back a part that was held and never written.
    pub(crate) fn give_back(&self, extent: Extent) {
        let mut space = self.space();
        space.held_bytes -= extent.bytes;
        space.free.release(extent.offset_bytes, extent.bytes);
    }

    /// Gives back a part that was held and may have been written.
    pub(crate) fn abandon(&self, extent: Extent) {
        let mut space = self.space();
        space.held_bytes -= extent.bytes;
        space.limbo.extend((extent.bytes > 0).then_some(extent));
    }

    /// Accounts the space of a deleted object that is still read.
    pub(crate) fn linger(&self, extents: [Extent; 2]) {
        self.space().lingering_bytes += extents.map(|extent| extent.bytes).iter().sum::<u64>();
    }

    /// Gives back what lingered.
    pub(crate) fn let_go(&self, extents: [Extent; 2]) {
        let mut space = self.space();
        space.lingering_bytes -= extents.map(|extent| extent.bytes).iter().sum::<u64>();
        space.limbo.extend(extents.into_iter().filter(|extent| extent.bytes > 0));
    }

    /// Gives back a part that was used: it becomes free by [`reclaim`](Self::reclaim).
    pub(crate) fn retire(&self, extent: Extent) {
        if extent.bytes > 0 {
            self.space().limbo.push(extent);
        }
    }

    /// Discards what is in limbo and frees it, but for what others still read. How much that was. One
    /// thread at a time does so.
    pub(crate) fn reclaim(&self) -> u64 {
        let _alone = self.reclaiming.lock().expect("space is accounted for at any time");
        let leaving = {
            let mut space = self.space();
            let leaving = std::mem::take(&mut space.limbo);
            space.leaving_bytes += leaving.iter().map(|extent| extent.bytes).sum::<u64>();
            leaving
        };
        let mut freed_bytes = 0;
        for extent in leaving {
            let is_free = !self.is_read_elsewhere(extent);
            if is_free {
                self.discard(extent);
                freed_bytes += extent.bytes;
            }
            let mut space = self.space();
            space.leaving_bytes -= extent.bytes;
            if is_free {
                space.free.release(extent.offset_bytes, extent.bytes);
            } else {
                space.limbo.push(extent);
            }
        }
        freed_bytes
    }

    fn is_read_elsewhere(&self, extent: Extent) -> bool {
        self.device.is_held(extent.offset_bytes, extent.bytes).unwrap_or_else(|error| {
            tracing::warn!(device = self.label, %extent, %error, "cannot see who reads what was deleted");
            true
        })
    }

    /// Discards a range. Free space is free whether the device is asked to discard it or not.
    fn discard(&self, extent: Extent) {
        if let Err(error) = self.device.discard(extent.offset_bytes, extent.bytes) {
            tracing::debug!(device = self.label, %extent, %error, "cannot discard what was deleted");
        }
    }

    /// Takes note that the device is longer.
    pub(crate) fn lengthen(&self, bytes: u64) {
        let bytes = bytes - bytes % BLOCK_BYTES as u64;
        let mut space = self.space();
        let before = space.bytes;
        space.free.release(before, bytes - before);
        space.bytes = bytes;
    }

    pub(crate) fn usage(&self) -> SpaceUsage {
        self.space().usage()
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.space().free.free_bytes()
    }

    pub(crate) fn longest_bytes(&self) -> u64 {
        self.space().free.longest_bytes()
    }

    /// Returns the length and the free parts, for a comparison with the catalogue; none while
    /// anything is neither free nor the catalogue's.
    pub(crate) fn settled(&self) -> Option<(u64, FreeSpace)> {
        let space = self.space();
        let SpaceUsage { held_bytes, limbo_bytes, .. } = space.usage();
        (held_bytes == 0 && limbo_bytes == 0).then(|| (space.bytes, space.free.clone()))
    }

    fn extent(&self, offset_bytes: u64, bytes: u64) -> Extent {
        Extent { device: self.index, offset_bytes, bytes }
    }

    fn space(&self) -> MutexGuard<'_, DeviceSpace> {
        self.space.lock().expect("space is accounted for at any time")
    }
}

impl DeviceSpace {
    fn usage(&self) -> SpaceUsage {
        let limbo_bytes = self.limbo.iter().map(|extent| extent.bytes).sum::<u64>();
        let limbo_bytes = limbo_bytes + self.leaving_bytes + self.lingering_bytes;
        let (total_bytes, free_bytes) = (self.bytes, self.free.free_bytes());
        let held_bytes = self.held_bytes;
        let used_bytes = total_bytes - free_bytes - held_bytes - limbo_bytes;
        SpaceUsage { total_bytes, free_bytes, held_bytes, limbo_bytes, used_bytes }
    }
}

impl fmt::Debug for PoolDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "device {} ({}, {})", self.index, self.class, self.label)
    }
}
