//! Devices of pools by path.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::assemble::{Found, identify};
use super::error::{CreateError, GrowError, OpenError};
use crate::PoolName;
use crate::device::{self, DeviceAccess, DeviceOptions, FileDevice};
use crate::media::AttachedDevice;
use crate::session::ChangeError;

/// Extension of the files that pools make in directories.
pub(crate) const FILE_EXTENSION: &str = "bindery";

/// Something about a pool at a path failed.
#[derive(Debug, Error)]
pub enum PathError {
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] device::OpenError),
    /// A directory could not be read, or a file in it not removed.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        /// Path of the file or directory.
        path: PathBuf,
        /// Operation that failed.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The length of a file to be made was not given.
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
        /// Name of the pool, in words.
        named: String,
        /// Paths that were looked at.
        looked_at: String,
        /// Pools that are there.
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

pub(super) fn attach(
    path: &Path,
    access: DeviceAccess,
) -> Result<AttachedDevice, device::OpenError> {
    Ok(attached_at(path, FileDevice::open(path, &DeviceOptions::new(access))?))
}

pub(super) fn attached_at(path: &Path, device: FileDevice) -> AttachedDevice {
    AttachedDevice { label: path.display().to_string(), device: Arc::new(device) }
}

/// The superblock at a path, read beside whoever uses it.
pub(super) fn look_at(path: &Path) -> Result<Found, PathError> {
    Ok(identify(attach(path, DeviceAccess::Read)?)?)
}

pub(super) fn failed(path: &Path, doing: &'static str, source: io::Error) -> PathError {
    PathError::File { path: path.into(), doing, source }
}
