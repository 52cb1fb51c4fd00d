//! Pools by path: files in directories, files, and block devices.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::Pool;
use super::assemble::identify;
use super::create::{CreateOptions, NewDevice};
use super::error::{ChangeError, CreateError, GrowError, OpenError};
use super::member::Attached;
use super::reader::PoolReader;
use super::scan::{FoundPool, scan};
use crate::device::{self, Access, FileDevice, Options};
use crate::{BLOCK_BYTES, DeviceIndex, MediaClass, PoolName};

/// What the names of files end in that pools make in directories.
pub(crate) const FILE_EXTENSION: &str = "bindery";

/// Where a device of a pool is to be.
#[derive(Clone, Debug)]
pub struct DevicePath {
    /// A block device, a file, or a directory, in which a file is made.
    pub path: PathBuf,
    /// What it is to be used for.
    pub class: MediaClass,
    /// How long the file is to be, in bytes, where one is made. It is sparse: it takes what is written.
    pub bytes: Option<u64>,
}

/// Something about a pool at a path failed.
#[derive(Debug, Error)]
pub enum PathError {
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] device::OpenError),
    /// A directory could not be read, or a file in it not removed.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// How long a file is to be was not said.
    #[error("{} is a directory: say how long the file in it is to be", .0.display())]
    NoLength(PathBuf),
    /// There is such a pool.
    #[error(
        "there is a pool named {name} already, with {}: take another name, or destroy it first",
        path.display()
    )]
    NameTaken {
        /// The name.
        name: PoolName,
        /// A device of it.
        path: PathBuf,
    },
    /// There is no such pool.
    #[error("no pool{named} was found in {looked_at}; the pools there are: {found}")]
    NotFound {
        /// Its name, in words.
        named: String,
        /// Where it was looked for.
        looked_at: String,
        /// What is there.
        found: String,
    },
    /// There are several, and none was named.
    #[error("there are several pools, name one of them: {0}")]
    Several(String),
    /// There are several of that name.
    #[error(
        "there are several pools named {name}: name the devices of one of them, not directories"
    )]
    Ambiguous {
        /// The name.
        name: PoolName,
    },
    /// The pool could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The pool could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The pool could not be made larger.
    #[error(transparent)]
    Grow(#[from] GrowError),
    /// The pool could not be ended.
    #[error(transparent)]
    Change(#[from] ChangeError),
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
        let others = scan(&directories)?.pools;
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
    /// See [`PathError`]; [`device::OpenError::InUse`], naming the process, if another has it open for
    /// writing.
    pub fn open(paths: &[PathBuf], name: Option<&PoolName>) -> Result<Self, PathError> {
        Ok(Self::open_on(attach_found(paths, name, Access::Write)?)?)
    }

    /// As [`open`](Self::open), of a pool that was exported.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn import(paths: &[PathBuf], name: Option<&PoolName>) -> Result<Self, PathError> {
        Ok(Self::import_on(attach_found(paths, name, Access::Write)?)?)
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
        let devices = found.paths().map(|path| Ok((path, attach(path, Access::Write)?)));
        let devices: Vec<(&Path, Attached)> = devices.collect::<Result<_, PathError>>()?;
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
        Ok(Self::open_on(attach_found(paths, name, Access::Read)?)?)
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
            let attached = attach(path, Access::Write)?;
            return Ok(NewDevice { attached, class: *class });
        }
        let bytes = bytes.ok_or_else(|| PathError::NoLength(path.clone()))?;
        let bytes = bytes - bytes % BLOCK_BYTES as u64;
        let path = path.join(format!("{name}.{class}.{index}.{FILE_EXTENSION}"));
        let attached = if force && path.exists() {
            let attached = attach(&path, Access::Write)?;
            let grown = attached.device.grow(bytes.max(attached.device.bytes()));
            grown.map_err(|source| failed(&path, "lengthen", source))?;
            attached
        } else {
            let new = FileDevice::create(&path, bytes, &Options::new(Access::Write))?;
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

pub(super) fn attach(path: &Path, access: Access) -> Result<Attached, device::OpenError> {
    Ok(attached_at(path, FileDevice::open(path, &Options::new(access))?))
}

fn attached_at(path: &Path, device: FileDevice) -> Attached {
    Attached { label: path.display().to_string(), device: Arc::new(device) }
}

fn attach_found(
    paths: &[PathBuf],
    name: Option<&PoolName>,
    access: Access,
) -> Result<Vec<Attached>, PathError> {
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
    let mut scanned = scan(paths)?;
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

/// The superblock at a path, read beside whoever uses it.
pub(super) fn look_at(path: &Path) -> Result<super::assemble::Found, PathError> {
    Ok(identify(attach(path, Access::Read)?)?)
}

pub(super) fn failed(path: &Path, doing: &'static str, source: io::Error) -> PathError {
    PathError::File { path: path.into(), doing, source }
}
