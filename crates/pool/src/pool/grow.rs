//! Making a pool larger: more devices, longer devices.

use super::Pool;
use super::create::{NewDevice, check, first_superblock, member};
use super::error::{ChangeError, GrowError, JoinError};
use super::open::write_superblocks;
use super::superblocks;
use crate::format::record::Record;
use crate::format::superblock::{DeviceEntry, HEAD_BYTES, MOST_DEVICES};
use crate::{BLOCK_BYTES, DeviceIndex};

/// The least that a device can have beside its head, in bytes.
const LEAST_BYTES: u64 = 64 << 10;

impl Pool {
    /// Adds a device, which this process alone has. It can be used when this returns; a crash meanwhile
    /// leaves it out of the pool, to be added by force. Blocks.
    ///
    /// # Errors
    /// See [`GrowError`].
    pub fn add_device(&self, device: NewDevice, force: bool) -> Result<DeviceIndex, GrowError> {
        let _alone = self.administration().map_err(ChangeError::from)?;
        check(&device, HEAD_BYTES + LEAST_BYTES, force)?;
        let devices = self.devices();
        if devices.len() >= MOST_DEVICES {
            return Err(JoinError::TooMany { most: MOST_DEVICES }.into());
        }
        let index = devices.iter().map(|entry| entry.index.0 + 1).max().unwrap_or(0);
        let new = member(DeviceIndex(index), device.attached, device.class);
        // The superblock first: a device that the catalogue names must be found.
        let superblock = first_superblock(&self.core, &new);
        let written = superblocks::write(&*new.device, &superblock);
        written.map_err(|source| {
            let device = new.label.clone();
            ChangeError::Superblock { device, source }
        })?;
        let entered = self.core.catalogue.submit(Record::Device(new.entry()));
        entered.map_err(ChangeError::from)?;
        self.core.add_member(new);
        write_superblocks(&self.core)?;
        Ok(DeviceIndex(index))
    }

    /// Makes a device longer: a file grows to `bytes`, a block device has grown already. How long it is
    /// now, in bytes. Blocks.
    ///
    /// # Errors
    /// See [`GrowError`].
    pub fn grow_device(&self, index: DeviceIndex, bytes: u64) -> Result<u64, GrowError> {
        let _alone = self.administration().map_err(ChangeError::from)?;
        let members = self.core.members();
        let Some(member) = members.iter().find(|member| member.index == index) else {
            let last = members.last().expect("a pool has a device").index;
            return Err(GrowError::NoDevice { name: self.name(), index, last });
        };
        let before = member.entry().bytes;
        let cannot = |why: String| {
            let device = member.label.clone();
            GrowError::Device { device, bytes: before, wanted: bytes, why }
        };
        let wanted = bytes - bytes % BLOCK_BYTES as u64;
        if wanted <= before {
            return Err(cannot("devices do not become shorter".into()));
        }
        let now = member.device.grow(wanted).map_err(|error| cannot(error.to_string()))?;
        let now = now.min(wanted) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if now <= before {
            return Err(cannot(format!("it has {now} bytes")));
        }
        // The catalogue must not name a length that a crash takes away.
        member.device.sync().map_err(|error| cannot(error.to_string()))?;
        let entry = DeviceEntry { bytes: now, ..member.entry() };
        self.core.catalogue.submit(Record::Device(entry)).map_err(ChangeError::from)?;
        member.lengthen(now);
        write_superblocks(&self.core)?;
        Ok(now)
    }
}
