//! Making a pool, and unmaking it.

use std::sync::Arc;

use bindery_sys::direct::Buffer;
use uuid::Uuid;

use super::error::{CreateError, JoinError};
use super::handle::Pool;
use crate::catalogue::{CATALOGUE_LOGS, Catalogue, Contents};
use crate::device::Device;
use crate::format::record::Record;
use crate::format::superblock::{DeviceEntry, HEAD_BYTES, MOST_DEVICES, Superblock};
use crate::log::LogCopy;
use crate::mdc::{Half, Mdc};
use crate::media::{AttachedDevice, PoolDevice, superblock_copies};
use crate::session::superblocks::{new_nonce, superblock_of, write_superblocks};
use crate::session::{ChangeError, PoolSession};
use crate::{BLOCK_BYTES, DeviceIndex, Extent, LogIdentity, MediaClass, PoolName};

/// A device that is to become part of a pool.
#[derive(Clone, Debug)]
pub struct NewDevice {
    /// Device to become part of the pool.
    pub attached: AttachedDevice,
    /// Class of the device: `capacity` or `staging`.
    pub class: MediaClass,
}

/// Ways to make a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// True if the content of the devices may be lost.
    pub force: bool,
    /// Length of each log of the catalogue, in bytes; none takes a thousandth of all devices, within
    /// [`CATALOGUE_BYTES`].
    pub catalogue_bytes: Option<u64>,
}

/// The least and the most that is set aside for each log of the catalogue, unless it is said, in
/// bytes. About 100 take an object, there are two logs in two copies, and half of each log is for
/// compacting less often.
pub const CATALOGUE_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=256 << 20;

/// The least that a log of the catalogue can be, in bytes.
const LEAST_CATALOGUE_BYTES: u64 = 64 << 10;

impl Pool {
    /// Makes a pool on devices that this process alone has. Nothing of it is there before this
    /// returns; a crash meanwhile leaves devices that have to be taken by force.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub fn create_on(
        name: PoolName,
        devices: Vec<NewDevice>,
        options: &CreateOptions,
    ) -> Result<Self, CreateError> {
        if !devices.iter().any(|device| device.class == MediaClass::Capacity) {
            return Err(CreateError::NoCapacity);
        }
        if devices.len() > MOST_DEVICES {
            return Err(JoinError::TooMany { most: MOST_DEVICES }.into());
        }
        let lengths = devices.iter().map(|device| device.attached.device.bytes());
        let total_bytes = lengths.fold(0, u64::saturating_add);
        let chosen = total_bytes / 1024;
        let chosen = chosen.clamp(*CATALOGUE_BYTES.start(), *CATALOGUE_BYTES.end());
        let log_bytes = options.catalogue_bytes.unwrap_or(chosen).max(LEAST_CATALOGUE_BYTES);
        let log_bytes = log_bytes.checked_next_multiple_of(BLOCK_BYTES as u64);
        // One that is too long to be counted no device can have.
        let log_bytes = log_bytes.unwrap_or(u64::MAX);
        let least = log_bytes.saturating_mul(8).saturating_add(HEAD_BYTES);
        for device in &devices {
            check(device, least, options.force)?;
        }
        let mut pool_devices = Vec::with_capacity(devices.len());
        for (index, NewDevice { attached, class }) in (0..).zip(devices) {
            pool_devices.push(pool_device(DeviceIndex(index), attached, class));
        }
        let session = make(name, pool_devices, log_bytes)?;
        Ok(Self::of(session, Vec::new()))
    }

    /// Ends a pool: its devices belong to none any more. What objects held is not overwritten. Takes
    /// whatever devices of the pool are there, also one alone.
    ///
    /// # Errors
    /// [`ChangeError::Superblock`], of the first device that cannot be written.
    pub fn destroy_on(devices: &[AttachedDevice]) -> Result<(), ChangeError> {
        devices.iter().try_for_each(|attached| {
            let wiped = superblock_copies::wipe(&*attached.device);
            let device = attached.label.clone();
            wiped.map_err(|source| ChangeError::Superblock { device, source })
        })
    }
}

/// A device that nothing is on yet.
pub(super) fn pool_device(
    index: DeviceIndex,
    attached: AttachedDevice,
    class: MediaClass,
) -> Arc<PoolDevice> {
    let bytes = attached.device.bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let entry = DeviceEntry { index, id: Uuid::new_v4().as_u128(), class, bytes };
    Arc::new(PoolDevice::new(&entry, attached))
}

/// Refuses a device that cannot be part of a pool, or that somebody may still need.
pub(super) fn check(device: &NewDevice, least: u64, force: bool) -> Result<(), JoinError> {
    let NewDevice { attached, class } = device;
    let label = || attached.label.clone();
    let bytes = attached.device.bytes();
    if *class == MediaClass::Archive {
        return Err(JoinError::Class { device: label(), class: *class });
    }
    if bytes < least {
        return Err(JoinError::TooShort { device: label(), bytes, least });
    }
    if force {
        return Ok(());
    }
    let failed = |source| JoinError::Read { device: label(), source };
    if let Some(Superblock { name, .. }) = owner(&*attached.device).map_err(failed)? {
        return Err(JoinError::InPool { device: label(), name });
    }
    let mut head = Buffer::zeroed(HEAD_BYTES as usize);
    attached.device.read(0, &mut head).map_err(failed)?;
    let is_empty = head.iter().all(|byte| *byte == 0);
    if is_empty { Ok(()) } else { Err(JoinError::NotEmpty { device: label() }) }
}

fn owner(device: &dyn Device) -> std::io::Result<Option<Superblock>> {
    let copies = superblock_copies::read(device)?;
    Ok(superblock_copies::newest(&copies).ok().cloned())
}

/// Writes the catalogue first, then the superblocks, and then that all is there: what lacks the last is
/// no pool.
fn make(
    name: PoolName,
    pool_devices: Vec<Arc<PoolDevice>>,
    log_bytes: u64,
) -> Result<PoolSession, CreateError> {
    let places = place_catalogue(&pool_devices, log_bytes)?;
    let pool = Uuid::new_v4().as_u128();
    let (number, nonce) = (1, new_nonce());
    for extent in places.iter().flatten() {
        let pool_device = &pool_devices[usize::from(extent.device.0)];
        let written = pool_device.write_zeros(*extent);
        let device = || pool_device.label.clone();
        written.map_err(|source| CreateError::Write { device: device(), source })?;
    }
    let halves = [0, 1].map(|half| {
        let place = |extent: Extent| {
            let device = &pool_devices[usize::from(extent.device.0)].device;
            LogCopy { device: Arc::clone(device), extent }
        };
        let identity = LogIdentity { pool, log: CATALOGUE_LOGS[half] };
        Half { identity, places: places[half].into_iter().map(place).collect() }
    });
    let mdc = Mdc::create(halves, number)?;
    let entries: Vec<_> = pool_devices.iter().map(|pool_device| pool_device.entry()).collect();
    let catalogue = Catalogue::new(mdc, Contents::default());
    let session = PoolSession::new(pool, (number, nonce), places, catalogue, pool_devices);
    let submit = |record| session.catalogue.submit(record).map_err(ChangeError::from);
    submit(Record::Name(name))?;
    entries.into_iter().try_for_each(|entry| submit(Record::Device(entry)))?;
    submit(Record::Opening { number, nonce })?;
    write_superblocks(&session)?;
    submit(Record::Opened { number })?;
    Ok(session)
}

/// Two copies of two logs, the copies on two devices, or at both ends of the only one. All devices are
/// long enough; but others may still read what was on them.
fn place_catalogue(
    pool_devices: &[Arc<PoolDevice>],
    log_bytes: u64,
) -> Result<[[Extent; 2]; 2], JoinError> {
    let is_capacity = |pool_device: &&Arc<PoolDevice>| pool_device.class == MediaClass::Capacity;
    let first =
        pool_devices.iter().find(is_capacity).expect("a pool has a device of class capacity");
    let others = || pool_devices.iter().filter(|pool_device| pool_device.index != first.index);
    let second = others().find(is_capacity).or_else(|| others().next()).unwrap_or(first);
    let place = |pool_device: &Arc<PoolDevice>, held: Option<Extent>| {
        let extent = held.ok_or_else(|| JoinError::Held { device: pool_device.label.clone() })?;
        pool_device.settle(log_bytes);
        Ok(extent)
    };
    let place = || -> Result<_, JoinError> {
        Ok([place(first, first.hold_low(log_bytes))?, place(second, second.hold_high(log_bytes))?])
    };
    Ok([place()?, place()?])
}

/// As it is to be written on a device before it is part of the pool.
pub(super) fn first_superblock(session: &PoolSession, pool_device: &Arc<PoolDevice>) -> Superblock {
    let contents = session.catalogue.contents();
    let mut superblock = superblock_of(session, &contents, pool_device);
    superblock.devices.push(pool_device.entry());
    superblock
}
