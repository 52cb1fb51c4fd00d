//! Errors of finding objects, of finding room for them, and of changing the pool.

use std::io;

use thiserror::Error;

use crate::catalogue::CatalogueError;
use crate::{MediaClass, ObjectId, OtherProcess};

/// There is no place for an object.
#[derive(Debug, Error)]
pub enum AllocateError {
    /// No device is of that class.
    #[error("the pool has no device of class {class}: add one, or take another class")]
    NoClass {
        /// The class.
        class: MediaClass,
    },
    /// No bytes were asked for.
    #[error("an object of no bytes cannot be allocated")]
    Nothing,
    /// Nothing is long enough.
    #[error(
        "class {class} has no room for {bytes} bytes in one piece: {free_bytes} are free, the longest \
         piece has {longest_bytes}; delete objects, add a device, or take smaller objects"
    )]
    NoSpace {
        /// The class.
        class: MediaClass,
        /// Bytes that were asked for.
        bytes: u64,
        /// Bytes that are free, in all.
        free_bytes: u64,
        /// The longest piece of it.
        longest_bytes: u64,
    },
    /// This is a child of the process that opened the pool.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// The catalogue did not set an id aside.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

/// There is no such object.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FindError {
    /// This is a child of the process that opened the pool.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// The object was never committed, or was deleted.
    #[error("there is no object {0}")]
    NotFound(ObjectId),
    /// The object is in the archive, which is not open.
    #[error(
        "object {0} is in the archive, and the archive is not open: connect it first, with a program \
         that has the feature `archive`"
    )]
    Archived(ObjectId),
    /// The object is of another kind.
    #[error("object {id} is {found}, not {wanted}")]
    Kind {
        /// Id of the object.
        id: ObjectId,
        /// Kind of the object.
        found: &'static str,
        /// Kind that was asked for.
        wanted: &'static str,
    },
}

/// A change of the pool itself could not be written down.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// The catalogue did not take it.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// A superblock could not be written. The change counts; superblocks are written again when the
    /// pool is next opened.
    #[error("the superblocks of {device} could not be written: {source}")]
    Superblock {
        /// Label of the device.
        device: String,
        /// Error of the device.
        source: io::Error,
    },
}
