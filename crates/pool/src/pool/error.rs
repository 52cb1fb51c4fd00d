//! Errors of pools.

use std::io;

use thiserror::Error;

use crate::catalogue::{CatalogueError, Contradiction};
use crate::format::superblock::VERSION;
use crate::log;
use crate::mdc::MdcError;
use crate::session::{AllocateError, ChangeError, FindError};
use crate::{Extent, MediaClass, ObjectId, OtherProcess, PoolName};

/// A pool could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// This is a child of the process that opened the pool.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// Nothing to open was named.
    #[error("a pool has at least one device: name its devices, or a directory that has them")]
    NoDevices,
    /// A device could not be read.
    #[error("cannot read the superblocks of {device}: {source}")]
    Read {
        /// Label of the device.
        device: String,
        /// Error of the device.
        source: io::Error,
    },
    /// A device belongs to no pool.
    #[error("{device} belongs to no pool: it has no superblock")]
    NoPool {
        /// Label of the device.
        device: String,
    },
    /// Both superblocks of a device are damaged.
    #[error(
        "both superblocks of {device} are damaged, so that nothing says what is on it: put it back \
         from a copy"
    )]
    Superblocks {
        /// Label of the device.
        device: String,
    },
    /// A later program wrote it.
    #[error(
        "{device} has format version {version}, and this program knows {VERSION} and older: use a \
         newer one"
    )]
    Newer {
        /// Label of the device.
        device: String,
        /// Format version of the device.
        version: u32,
    },
    /// A device of another pool is among them.
    #[error(
        "{device} belongs to pool {found} ({found_id:032x}), not to {name} ({id:032x}): leave it out"
    )]
    Foreign {
        /// Label of the device.
        device: String,
        /// The name of its pool.
        found: PoolName,
        /// The id of its pool.
        found_id: u128,
        /// The pool of the others.
        name: PoolName,
        /// Id of that pool.
        id: u128,
    },
    /// Two devices say that they are the same one.
    #[error("{device} and {other} are copies of one device: leave the older one out")]
    Twice {
        /// Label of one of the two.
        device: String,
        /// The other.
        other: String,
    },
    /// Devices are not there.
    #[error("pool {name} is not complete, attach what is missing: {missing}")]
    Missing {
        /// The pool.
        name: PoolName,
        /// Description of what is missing.
        missing: String,
    },
    /// A device is not the one that was used last, but a copy made before.
    #[error(
        "{device} is an old copy: it was last opened in opening {opening} of pool {name}, and the \
         others in {newest}; attach the device itself in its place"
    )]
    OldCopy {
        /// Label of the device.
        device: String,
        /// The pool.
        name: PoolName,
        /// Last opening that the device knows.
        opening: u64,
        /// Last opening that the others know.
        newest: u64,
    },
    /// A device was used in a copy of the pool.
    #[error(
        "{device} was opened with a copy of pool {name} (opening {opening}), apart from the others: \
         attach the device that was used with them"
    )]
    Diverged {
        /// Label of the device.
        device: String,
        /// The pool.
        name: PoolName,
        /// Opening that the device knows.
        opening: u64,
    },
    /// A device is shorter than it was.
    #[error(
        "{device} has {bytes} bytes, and pool {name} uses {expected}: it was cut off or is a copy of \
         its beginning; attach all of it"
    )]
    Shrunk {
        /// Label of the device.
        device: String,
        /// The pool.
        name: PoolName,
        /// Length of the device, in bytes.
        bytes: u64,
        /// Length that the pool uses, in bytes.
        expected: u64,
    },
    /// The pool was never made to the end.
    #[error("pool {name} was never finished, there is nothing in it: create it again by force")]
    Unfinished {
        /// The pool.
        name: PoolName,
    },
    /// The pool waits to be imported.
    #[error("pool {name} was exported: import it before it is used")]
    Exported {
        /// The pool.
        name: PoolName,
    },
    /// The catalogue cannot be read.
    #[error("the catalogue cannot be read: {0}")]
    Catalogue(#[from] MdcError),
    /// The catalogue's logs cannot be read.
    #[error("the catalogue cannot be read: {0}")]
    Log(#[from] log::OpenError),
    /// The catalogue says what cannot be.
    #[error("the catalogue contradicts itself, restore the pool from a copy: {0}")]
    Contradiction(#[from] Contradiction),
    /// The catalogue puts two things in one place, or beside the device.
    #[error(
        "the catalogue gives {extent} to {what}, where something else is or nothing can be: restore \
         the pool from a copy"
    )]
    Misplaced {
        /// An object, or the catalogue itself.
        what: String,
        /// The place.
        extent: Extent,
    },
    /// The opening could not be written down.
    #[error("pool {name} could not be opened for writing: {source}")]
    Write {
        /// The pool.
        name: PoolName,
        /// Why.
        source: ChangeError,
    },
}

/// A device cannot become part of a pool.
#[derive(Debug, Error)]
pub enum JoinError {
    /// Objects are not made in that class.
    #[error("{device} cannot have class {class}: devices are of class capacity or staging")]
    Class {
        /// Label of the device.
        device: String,
        /// The class.
        class: MediaClass,
    },
    /// The device is too short.
    #[error("{device} has {bytes} bytes, and at least {least} are needed")]
    TooShort {
        /// Label of the device.
        device: String,
        /// Length of the device, in bytes.
        bytes: u64,
        /// Least length, in bytes.
        least: u64,
    },
    /// There is something on it.
    #[error(
        "{device} is not empty: clear its first 128 KiB, or use force if nobody needs what is on it"
    )]
    NotEmpty {
        /// Label of the device.
        device: String,
    },
    /// The device belongs to a pool.
    #[error("{device} belongs to pool {name}: destroy that pool first, or use force")]
    InPool {
        /// Label of the device.
        device: String,
        /// The pool.
        name: PoolName,
    },
    /// Other processes read what is on it.
    #[error("{device} is still read by other processes: end them, or take another device")]
    Held {
        /// Label of the device.
        device: String,
    },
    /// The device could not be read.
    #[error("cannot read {device}: {source}")]
    Read {
        /// Label of the device.
        device: String,
        /// Error of the device.
        source: io::Error,
    },
    /// There are as many as a pool can have.
    #[error("a pool has at most {most} devices, and has them")]
    TooMany {
        /// Most devices of a pool.
        most: usize,
    },
}

/// A pool could not be made.
#[derive(Debug, Error)]
pub enum CreateError {
    /// A device is not fit for it.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// There is no device for most objects.
    #[error("a pool needs a device of class capacity: name one")]
    NoCapacity,
    /// The place of the catalogue could not be written.
    #[error("the place of the catalogue on {device} could not be written: {source}")]
    Write {
        /// Label of the device.
        device: String,
        /// Error of the device.
        source: io::Error,
    },
    /// The catalogue could not be made.
    #[error("the catalogue could not be made: {0}")]
    Mdc(#[from] MdcError),
    /// The new pool could not be written down.
    #[error("the pool could not be made: {0}")]
    Change(#[from] ChangeError),
}

/// The pool could not be made larger.
#[derive(Debug, Error)]
pub enum GrowError {
    /// The device is not fit for it.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// There is no such device.
    #[error("pool {name} has no device {index}: its devices are 0 to {last}")]
    NoDevice {
        /// The pool.
        name: PoolName,
        /// Index that was asked for.
        index: crate::DeviceIndex,
        /// The highest index that it has.
        last: crate::DeviceIndex,
    },
    /// The device cannot be longer.
    #[error("{device} cannot grow from {bytes} to {wanted} bytes: {why}")]
    Device {
        /// Label of the device.
        device: String,
        /// Current length of the device, in bytes.
        bytes: u64,
        /// Length that was asked for, in bytes.
        wanted: u64,
        /// Why not.
        why: String,
    },
    /// The change could not be written down.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// An object could not be deleted.
#[derive(Debug, Error)]
pub enum DeleteError {
    /// There is none.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The log is open.
    #[error("log {0} is open: close it before it is deleted")]
    Open(ObjectId),
    /// The object is on the way to the archive or back.
    #[error("object {0} is being moved: delete it when it has arrived")]
    Moving(ObjectId),
    /// The catalogue did not take it.
    #[error("object {id} could not be deleted: {source}")]
    Catalogue {
        /// Id of the object.
        id: ObjectId,
        /// Why.
        source: CatalogueError,
    },
}

/// A log or an MDC of a client could not be made or opened.
#[derive(Debug, Error)]
pub enum LogError {
    /// There is none.
    #[error(transparent)]
    Find(#[from] FindError),
    /// There is no place for it.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// Somebody has it open.
    #[error("log {0} is open already: one at a time writes it")]
    Open(ObjectId),
    /// There is a root already.
    #[error("the pool has a root already, object {0}: open it")]
    HasRoot(ObjectId),
    /// The place of it could not be written.
    #[error("the place of a log on {device} could not be written: {source}")]
    Write {
        /// Label of the device.
        device: String,
        /// Error of the device.
        source: io::Error,
    },
    /// A pool has so many copies of logs, not others.
    #[error("a log has 1 or 2 copies, not {0}")]
    Copies(usize),
    /// The log could not be made or read.
    #[error(transparent)]
    Log(#[from] log::OpenError),
    /// The MDC could not be made or read.
    #[error(transparent)]
    Mdc(#[from] MdcError),
    /// The catalogue did not take the entry.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}
