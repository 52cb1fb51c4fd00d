//! Finding pools on devices and in directories.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::attach::{FILE_EXTENSION, PathError, failed, look_at};
use super::error::OpenError;
use crate::PoolName;
use crate::device;
use crate::format::superblock::{DeviceEntry, Residence};

/// A pool of which at least one device was found.
#[derive(Debug)]
pub struct FoundPool {
    /// Id of the pool.
    pub id: u128,
    /// Name of the pool, by the newest of its devices that were found.
    pub name: PoolName,
    /// Residence of the pool: here, or waiting to be imported.
    pub residence: Residence,
    /// Number of openings for writing.
    pub openings: u64,
    /// Devices of the pool, and the paths of those that were found.
    pub devices: Vec<(DeviceEntry, Option<PathBuf>)>,
    /// Devices with a superblock of this pool that the newest superblock does not list.
    pub unlisted: Vec<PathBuf>,
}

impl FoundPool {
    /// Returns the paths of the devices that were found.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let known = self.devices.iter().filter_map(|(_, path)| path.as_deref());
        known.chain(self.unlisted.iter().map(PathBuf::as_path))
    }

    /// Returns true if all devices were found.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.devices.iter().all(|(_, path)| path.is_some())
    }
}

/// Pools and unusable devices that a scan found.
#[derive(Debug, Default)]
pub struct PoolScan {
    /// Pools, by id.
    pub pools: Vec<FoundPool>,
    /// Files of pools by their name, and devices that were given, that are of no pool that can be used.
    pub unusable: Vec<(PathBuf, OpenError)>,
}

/// Looks for pools on devices and in directories. Takes no locks: what others do with them meanwhile
/// is not disturbed. Blocks; reads two blocks of each device.
///
/// # Errors
/// If a directory or a device cannot be read.
pub fn scan_pools(paths: &[PathBuf]) -> Result<PoolScan, PathError> {
    let mut result = PoolScan::default();
    let mut by_pool: BTreeMap<u128, Vec<_>> = BTreeMap::new();
    for path in candidates(paths)? {
        match look_at(&path) {
            Ok(found) => by_pool.entry(found.superblock.pool).or_default().push((path, found)),
            Err(PathError::Open(error)) => result.unusable.push((path, error)),
            // Somebody ended its pool meanwhile, or it never was a file: that concerns no other pool.
            Err(PathError::Device(error)) if !paths.contains(&path) && is_no_file(&error) => {}
            Err(error) => return Err(error),
        }
    }
    for (id, devices) in by_pool {
        let superblocks = devices.iter().map(|(_, found)| &found.superblock);
        let newest = superblocks.max_by_key(|superblock| (superblock.opening, superblock.revision));
        let newest = newest.expect("a pool was found by a device");
        let mut pool = FoundPool {
            id,
            name: newest.name.clone(),
            residence: newest.residence,
            openings: newest.opening,
            devices: newest.devices.iter().map(|entry| (*entry, None)).collect(),
            unlisted: Vec::new(),
        };
        for (path, found) in &devices {
            let own = found.superblock.entry().map(|entry| entry.id);
            let known = pool.devices.iter_mut().find(|(entry, _)| Some(entry.id) == own);
            match known {
                Some((_, place @ None)) => *place = Some(path.clone()),
                _ => pool.unlisted.push(path.clone()),
            }
        }
        result.pools.push(pool);
    }
    Ok(result)
}

fn is_no_file(error: &device::OpenError) -> bool {
    match error {
        device::OpenError::NoDevice { .. } => true,
        device::OpenError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// The devices given, and the files of pools in the directories given.
fn candidates(paths: &[PathBuf]) -> Result<Vec<PathBuf>, PathError> {
    let mut candidates = Vec::new();
    for path in paths {
        if !path.is_dir() {
            candidates.push(path.clone());
            continue;
        }
        let entries = fs::read_dir(path).map_err(|source| failed(path, "read", source))?;
        for entry in entries {
            let entry = entry.map_err(|source| failed(path, "read", source))?.path();
            if entry.extension().is_some_and(|extension| extension == FILE_EXTENSION) {
                candidates.push(entry);
            }
        }
    }
    candidates.sort();
    candidates.dedup();
    Ok(candidates)
}
