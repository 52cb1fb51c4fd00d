//! Making a pool larger: more devices, longer devices.

use super::create::{NewDevice, check, first_superblock, pool_device};
use super::error::{GrowError, JoinError};
use super::handle::Pool;
use crate::format::record::Record;
use crate::format::superblock::{DeviceEntry, HEAD_BYTES, MOST_DEVICES};
use crate::media::superblock_copies;
use crate::session::ChangeError;
use crate::session::superblocks::write_superblocks;
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
        let new = pool_device(DeviceIndex(index), device.attached, device.class);
        // The superblock first: a device that the catalogue names must be found.
        let superblock = first_superblock(&self.session, &new);
        let written = superblock_copies::write(&*new.device, &superblock);
        written.map_err(|source| {
            let device = new.label.clone();
            ChangeError::Superblock { device, source }
        })?;
        let entered = self.session.catalogue.submit(Record::Device(new.entry()));
        entered.map_err(ChangeError::from)?;
        self.session.add_device(new);
        write_superblocks(&self.session)?;
        Ok(DeviceIndex(index))
    }

    /// Makes a device longer: a file grows to `bytes`, a block device has grown already. How long it is
    /// now, in bytes. Blocks.
    ///
    /// # Errors
    /// See [`GrowError`].
    pub fn grow_device(&self, index: DeviceIndex, bytes: u64) -> Result<u64, GrowError> {
        let _alone = self.administration().map_err(ChangeError::from)?;
        let pool_devices = self.session.pool_devices();
        let Some(pool_device) = pool_devices.iter().find(|pool_device| pool_device.index == index)
        else {
            let last = pool_devices.last().expect("a pool has a device").index;
            return Err(GrowError::NoDevice { name: self.name(), index, last });
        };
        let before = pool_device.entry().bytes;
        let cannot = |why: String| {
            let device = pool_device.label.clone();
            GrowError::Device { device, bytes: before, wanted: bytes, why }
        };
        let wanted = bytes - bytes % BLOCK_BYTES as u64;
        if wanted <= before {
            return Err(cannot("devices do not become shorter".into()));
        }
        let now = pool_device.device.grow(wanted).map_err(|error| cannot(error.to_string()))?;
        let now = now.min(wanted) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if now <= before {
            return Err(cannot(format!("it has {now} bytes")));
        }
        // The catalogue must not name a length that a crash takes away.
        pool_device.device.sync().map_err(|error| cannot(error.to_string()))?;
        let entry = DeviceEntry { bytes: now, ..pool_device.entry() };
        self.session.catalogue.submit(Record::Device(entry)).map_err(ChangeError::from)?;
        pool_device.lengthen(now);
        write_superblocks(&self.session)?;
        Ok(now)
    }
}
