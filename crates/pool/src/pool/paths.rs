//! Pools by path: files in directories, files, and block devices.

use std::fs;
use std::path::{Path, PathBuf};

use super::attach::{FILE_EXTENSION, PathError, attach, attached_at, failed};
use super::create::{CreateOptions, NewDevice};
use super::error::GrowError;
use super::handle::Pool;
use super::reader::PoolReader;
use super::scan::{FoundPool, scan_pools};
use crate::device::{DeviceAccess, DeviceOptions, FileDevice};
use crate::media::AttachedDevice;
use crate::{BLOCK_BYTES, DeviceIndex, MediaClass, PoolName};

/// Path of a device of a pool that is to be made.
#[derive(Clone, Debug)]
pub struct DevicePath {
    /// A block device, a file, or a directory, in which a file is made.
    pub path: PathBuf,
    /// Media class of the device.
    pub class: MediaClass,
    /// Length of the file, in bytes, where one is made. It is sparse: it takes what is written.
    pub bytes: Option<u64>,
}

impl Pool {
    /// Makes a pool. Files that it makes are gone again if it fails.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn create(
        name: &PoolName,
        devices: &[DevicePath],
        options: &CreateOptions,
    ) -> Result<Self, PathError> {
        let directories = devices.iter().map(|device| device.path.clone());
        let directories: Vec<PathBuf> = directories.filter(|path| path.is_dir()).collect();
        let others = scan_pools(&directories)?.pools;
        if let Some(other) = others.iter().find(|other| other.name == *name)
            && !options.force
        {
            let path = other.paths().next().map(Path::to_path_buf).unwrap_or_default();
            return Err(PathError::NameTaken { name: name.clone(), path });
        }
        let mut made = MadeFiles(Vec::new());
        let mut opened = Vec::with_capacity(devices.len());
        for (index, device) in devices.iter().enumerate() {
            opened.push(made.open(name, index, device, options.force)?);
        }
        let pool = Self::create_on(name.clone(), opened, options)?;
        made.0.clear();
        Ok(pool)
    }

    /// Opens a pool for writing: the one with that name, or the only one, among the devices and in the
    /// directories given. Blocks.
    ///
    /// # Errors
    /// See [`PathError`]; [`InUse`](crate::device::OpenError::InUse), naming the process, if another has it open for
    /// writing.
    pub fn open(paths: &[PathBuf], name: Option<&PoolName>) -> Result<Self, PathError> {
        Ok(Self::open_on(attach_found(paths, name, DeviceAccess::Write)?)?)
    }

    /// As [`open`](Self::open), of a pool that was exported.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn import(paths: &[PathBuf], name: Option<&PoolName>) -> Result<Self, PathError> {
        Ok(Self::import_on(attach_found(paths, name, DeviceAccess::Write)?)?)
    }

    /// Adds a device, as [`create`](Self::create) takes them.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn add(&self, device: &DevicePath, force: bool) -> Result<DeviceIndex, PathError> {
        let mut made = MadeFiles(Vec::new());
        let index = self.devices().iter().map(|entry| usize::from(entry.index.0) + 1).max();
        let new = made.open(&self.name(), index.unwrap_or(0), device, force)?;
        let added = self.add_device(new, force);
        // After any other error it may be part of the pool.
        if !matches!(added, Err(GrowError::Join(_))) {
            made.0.clear();
        }
        Ok(added?)
    }

    /// Ends a pool that nobody has open: wipes its superblocks, and removes the files of it that are in
    /// directories given. A pool of which devices are missing can be ended as well.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn destroy(paths: &[PathBuf], name: &PoolName) -> Result<(), PathError> {
        let found = choose(paths, Some(name))?;
        // All before any: none may be in use.
        let devices = found.paths().map(|path| Ok((path, attach(path, DeviceAccess::Write)?)));
        let devices: Vec<(&Path, AttachedDevice)> = devices.collect::<Result<_, PathError>>()?;
        for (path, attached) in devices {
            Self::destroy_on(std::slice::from_ref(&attached))?;
            if !paths.iter().any(|given| given == path) {
                let removed = fs::remove_file(path);
                removed.map_err(|source| failed(path, "remove", source))?;
            }
        }
        Ok(())
    }
}

impl PoolReader {
    /// Opens a pool for reading: the one with that name, or the only one, among the devices and in the
    /// directories given. Others may have it open, one of them for writing. Blocks.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn open(paths: &[PathBuf], name: Option<&PoolName>) -> Result<Self, PathError> {
        Ok(Self::open_on(attach_found(paths, name, DeviceAccess::Read)?)?)
    }
}

/// Files that were made for a pool that is not there yet; removed when dropped.
struct MadeFiles(Vec<PathBuf>);

impl MadeFiles {
    /// Opens what is to become a device, and makes its file first where a directory was given.
    fn open(
        &mut self,
        name: &PoolName,
        index: usize,
        device: &DevicePath,
        force: bool,
    ) -> Result<NewDevice, PathError> {
        let DevicePath { path, class, bytes } = device;
        if !path.is_dir() {
            let attached = attach(path, DeviceAccess::Write)?;
            return Ok(NewDevice { attached, class: *class });
        }
        let bytes = bytes.ok_or_else(|| PathError::NoLength(path.clone()))?;
        let bytes = bytes - bytes % BLOCK_BYTES as u64;
        let path = path.join(format!("{name}.{class}.{index}.{FILE_EXTENSION}"));
        let attached = if force && path.exists() {
            let attached = attach(&path, DeviceAccess::Write)?;
            let grown = attached.device.grow(bytes.max(attached.device.bytes()));
            grown.map_err(|source| failed(&path, "lengthen", source))?;
            attached
        } else {
            let new = FileDevice::create(&path, bytes, &DeviceOptions::new(DeviceAccess::Write))?;
            self.0.push(path.clone());
            attached_at(&path, new)
        };
        Ok(NewDevice { attached, class: *class })
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = fs::remove_file(path) {
                tracing::warn!("cannot remove {}, which nobody needs: {error}", path.display());
            }
        }
    }
}

fn attach_found(
    paths: &[PathBuf],
    name: Option<&PoolName>,
    access: DeviceAccess,
) -> Result<Vec<AttachedDevice>, PathError> {
    let found = choose(paths, name)?;
    let given = paths.iter().filter(|path| !path.is_dir()).map(PathBuf::as_path);
    // Those that were named are meant, whatever is on them: to leave one out in silence would hide it.
    let mut devices: Vec<&Path> = given.chain(found.paths()).collect();
    devices.sort();
    devices.dedup();
    Ok(devices.into_iter().map(|path| attach(path, access)).collect::<Result<_, _>>()?)
}

/// The pool with a name, or the only one.
fn choose(paths: &[PathBuf], name: Option<&PoolName>) -> Result<FoundPool, PathError> {
    let mut scanned = scan_pools(paths)?;
    let listed = |pools: &[FoundPool]| {
        let names: Vec<String> = pools.iter().map(|pool| pool.name.to_string()).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    };
    let all = listed(&scanned.pools);
    if let Some(name) = name {
        scanned.pools.retain(|pool| pool.name == *name);
    }
    match (scanned.pools.len(), name) {
        (1, _) => Ok(scanned.pools.remove(0)),
        (0, _) => {
            if let Some((_, error)) = scanned.unusable.into_iter().next() {
                return Err(error.into());
            }
            let named = name.map(|name| format!(" named {name}")).unwrap_or_default();
            let looked_at: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            Err(PathError::NotFound { named, looked_at: looked_at.join(", "), found: all })
        }
        (_, None) => Err(PathError::Several(all)),
        (_, Some(name)) => Err(PathError::Ambiguous { name: name.clone() }),
    }
}
