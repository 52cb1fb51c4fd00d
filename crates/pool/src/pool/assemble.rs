//! From devices to a pool: whose they are, whether all are there, none is an old copy, and what the
//! catalogue says. Writes nothing.
//!
//! **Old copies.** Each opening for writing has a number, and goes in three steps: the catalogue says
//! that it begins, all superblocks take the number, the catalogue says that they have. So a device with
//! a lower number than the last opening that was finished was not there then: it is a copy from before.
//! One with the number of an opening that began is what a crash leaves. And a number that the catalogue
//! never heard of says that the catalogue is the old copy.

use std::sync::Arc;

use super::error::OpenError;
use crate::catalogue::{CATALOGUE_LOGS, Contents};
use crate::format::superblock::{DeviceEntry, NoSuperblock, Residence, Superblock};
use crate::log::{Damage, LogCopy};
use crate::mdc::{Half, MdcReader};
use crate::media::{AttachedDevice, PoolDevice, superblock_copies};
use crate::{Extent, LogIdentity, PoolName};

/// A device with its superblock.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) attached: AttachedDevice,
    pub(crate) superblock: Superblock,
}

/// All devices of a pool, and what its catalogue says.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// The newest superblock.
    pub(crate) lead: Superblock,
    pub(crate) found: Vec<Found>,
    pub(crate) contents: Contents,
    /// Copies of the catalogue's blocks that are not as they should be.
    pub(crate) damaged: Vec<Damage>,
}

impl Assembly {
    /// Reads the devices, which must be all of the pool.
    pub(crate) fn of(devices: Vec<AttachedDevice>) -> Result<Self, OpenError> {
        let mut assembly = Self::of_some(devices)?;
        assembly.check_table()?;
        Ok(assembly)
    }

    /// Reads the devices, those with the catalogue among them.
    pub(crate) fn of_some(devices: Vec<AttachedDevice>) -> Result<Self, OpenError> {
        let found: Vec<Found> = devices.into_iter().map(identify).collect::<Result<_, _>>()?;
        let newest = found.iter().map(|found| &found.superblock);
        let newest = newest.max_by_key(|superblock| (superblock.opening, superblock.revision));
        let lead = newest.ok_or(OpenError::NoDevices)?.clone();
        check_one_pool(&found, &lead)?;
        check_lengths(&found, lead.devices.iter(), &lead.name)?;
        let reader = MdcReader::open(&halves(&found, &lead)?)?;
        let damaged = reader.damaged().to_vec();
        let contents = Contents::replay::<OpenError>(reader.records().map(Ok))?;
        let assembly = Self { lead, found, contents, damaged };
        assembly.check_openings()?;
        Ok(assembly)
    }

    /// Returns the name of the pool.
    pub(crate) fn name(&self) -> PoolName {
        self.contents.name().unwrap_or(&self.lead.name).clone()
    }

    /// Refuses a pool that was exported.
    pub(crate) fn check_residence(&self) -> Result<(), OpenError> {
        match self.contents.residence() {
            Residence::Here => Ok(()),
            Residence::Exported => Err(OpenError::Exported { name: self.name() }),
        }
    }

    /// The number of the next opening: one that nobody has seen.
    pub(crate) fn next_opening(&self) -> u64 {
        let superblocks = self.found.iter().map(|found| found.superblock.opening);
        superblocks.max().unwrap_or(0).max(self.contents.last_opening()) + 1
    }

    /// The logs of the catalogue.
    pub(crate) fn halves(&self) -> Result<[Half; 2], OpenError> {
        halves(&self.found, &self.lead)
    }

    fn check_openings(&self) -> Result<(), OpenError> {
        let name = self.name();
        let Some((newest, _)) = self.contents.opened() else {
            return Err(OpenError::Unfinished { name });
        };
        for found @ Found { attached, superblock } in &self.found {
            let opening = superblock.opening;
            let device = attached.label.clone();
            if self.contents.knows_opening(opening, superblock.nonce) {
                continue;
            }
            if opening > self.contents.last_opening() {
                let (device, old) = (self.catalogue_devices(), self.contents.last_opening());
                return Err(OpenError::OldCopy { device, name, opening: old, newest: opening });
            }
            // One that was never added to the end may be as old as it is.
            if !self.contents.devices().any(|entry| is_device(found, entry)) {
                continue;
            }
            if opening < newest {
                return Err(OpenError::OldCopy { device, name, opening, newest });
            }
            return Err(OpenError::Diverged { device, name, opening });
        }
        Ok(())
    }

    /// The devices that hold the catalogue, in words.
    fn catalogue_devices(&self) -> String {
        let holds = |index| self.lead.catalogue[0].iter().any(|extent| extent.device == index);
        let holders = self.found.iter().filter(|found| holds(found.superblock.device));
        let labels: Vec<&str> = holders.map(|found| &*found.attached.label).collect();
        labels.join(" and ")
    }

    /// Compares the devices that are there with the catalogue's table.
    fn check_table(&mut self) -> Result<(), OpenError> {
        let name = self.name();
        let missing = |entry: &&DeviceEntry| find(&self.found, entry).is_none();
        let missing: Vec<_> = self.contents.devices().filter(missing).map(describe).collect();
        if !missing.is_empty() {
            return Err(OpenError::Missing { name, missing: missing.join("; ") });
        }
        let contents = &self.contents;
        // One that was being added when the pool was last used; nothing is on it.
        self.found.retain(|found| {
            let is_known = contents.devices().any(|entry| is_device(found, entry));
            if !is_known {
                tracing::warn!(
                    device = found.attached.label,
                    "was never added to the pool to the end"
                );
            }
            is_known
        });
        check_lengths(&self.found, self.contents.devices(), &name)
    }

    /// The devices, with what is used on them.
    pub(crate) fn pool_devices(&self) -> Result<Vec<Arc<PoolDevice>>, OpenError> {
        let entries = self.contents.devices();
        let pool_devices = entries.filter_map(|entry| {
            let found = find(&self.found, entry)?;
            Some(Arc::new(PoolDevice::new(entry, found.attached.clone())))
        });
        let pool_devices: Vec<_> = pool_devices.collect();
        for (what, extent) in occupied(&self.contents, &self.lead.catalogue) {
            let pool_device =
                pool_devices.iter().find(|pool_device| pool_device.index == extent.device);
            let is_placed =
                pool_device.is_some_and(|pool_device| pool_device.occupy(extent).is_ok());
            if !is_placed {
                let what = what.map_or("itself".into(), |id| format!("object {id}"));
                return Err(OpenError::Misplaced { what, extent });
            }
        }
        Ok(pool_devices)
    }
}

/// All that is not free: of objects, and of the catalogue itself.
pub(crate) fn occupied<'a>(
    contents: &'a Contents,
    catalogue: &'a [[Extent; 2]; 2],
) -> impl Iterator<Item = (Option<crate::ObjectId>, Extent)> + 'a {
    let own = catalogue.iter().flatten().map(|extent| (None, *extent));
    let objects = contents.objects();
    own.chain(objects.flat_map(|entry| {
        let id = entry.id();
        entry.extents().map(move |extent| (Some(id), extent))
    }))
}

/// Reads a device's superblocks.
pub(crate) fn identify(attached: AttachedDevice) -> Result<Found, OpenError> {
    let device = || attached.label.clone();
    let copies = superblock_copies::read(&*attached.device)
        .map_err(|source| OpenError::Read { device: device(), source })?;
    match superblock_copies::newest(&copies) {
        Ok(superblock) => {
            let superblock = superblock.clone();
            Ok(Found { attached, superblock })
        }
        Err(NoSuperblock::Absent) => Err(OpenError::NoPool { device: device() }),
        Err(NoSuperblock::Damaged | NoSuperblock::Unreadable) => {
            Err(OpenError::Superblocks { device: device() })
        }
        Err(NoSuperblock::Newer { version }) => Err(OpenError::Newer { device: device(), version }),
    }
}

fn check_one_pool(found: &[Found], lead: &Superblock) -> Result<(), OpenError> {
    for (at, Found { attached, superblock }) in found.iter().enumerate() {
        let device = || attached.label.clone();
        if superblock.pool != lead.pool {
            return Err(OpenError::Foreign {
                device: device(),
                found: superblock.name.clone(),
                found_id: superblock.pool,
                name: lead.name.clone(),
                id: lead.pool,
            });
        }
        let id = device_id(superblock);
        let same = found[..at].iter().find(|other| device_id(&other.superblock) == id);
        if let Some(other) = same {
            let other = other.attached.label.clone();
            return Err(OpenError::Twice { device: device(), other });
        }
    }
    Ok(())
}

/// Refuses devices that are shorter than they were.
fn check_lengths<'a>(
    found: &[Found],
    mut entries: impl Iterator<Item = &'a DeviceEntry>,
    name: &PoolName,
) -> Result<(), OpenError> {
    entries.try_for_each(|entry| {
        let Some(found) = find(found, entry) else { return Ok(()) };
        let (bytes, expected) = (found.attached.device.bytes(), entry.bytes);
        if bytes >= expected {
            return Ok(());
        }
        let (device, name) = (found.attached.label.clone(), name.clone());
        Err(OpenError::Shrunk { device, name, bytes, expected })
    })
}

/// The logs of the catalogue, where a superblock says that they are.
fn halves(found: &[Found], lead: &Superblock) -> Result<[Half; 2], OpenError> {
    let place = |extent: Extent| {
        let misplaced = || OpenError::Misplaced { what: "itself".into(), extent };
        let entry = lead.devices.iter().find(|entry| entry.index == extent.device);
        let entry = entry.ok_or_else(misplaced)?;
        let missing = || OpenError::Missing { name: lead.name.clone(), missing: describe(entry) };
        let device = &find(found, entry).ok_or_else(missing)?.attached.device;
        let place = LogCopy { device: Arc::clone(device), extent };
        if extent.lies_within(device.bytes()) { Ok(place) } else { Err(misplaced()) }
    };
    let half = |at: usize| -> Result<Half, OpenError> {
        let identity = LogIdentity { pool: lead.pool, log: CATALOGUE_LOGS[at] };
        let places = lead.catalogue[at].into_iter().map(place).collect::<Result<_, _>>()?;
        Ok(Half { identity, places })
    };
    Ok([half(0)?, half(1)?])
}

fn find<'a>(found: &'a [Found], entry: &DeviceEntry) -> Option<&'a Found> {
    found.iter().find(|found| is_device(found, entry))
}

fn is_device(found: &Found, entry: &DeviceEntry) -> bool {
    found.superblock.device == entry.index && device_id(&found.superblock) == Some(entry.id)
}

fn device_id(superblock: &Superblock) -> Option<u128> {
    superblock.entry().map(|entry| entry.id)
}

fn describe(entry: &DeviceEntry) -> String {
    let DeviceEntry { index, id, class, bytes } = entry;
    format!("device {index} (class {class}, {bytes} bytes, id {id:032x})")
}
