//! Errors of maps.

use std::io;

use thiserror::Error;

use crate::object::{Object, ReadError};
use crate::{MediaClass, ObjectId, OtherProcess};

/// Why objects could not be mapped.
#[derive(Debug, Error)]
pub enum MapError {
    /// This is a child of the process that opened the pool, or that made the [`Maps`](super::Maps).
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// There is nothing to map.
    #[error("a map needs at least one object")]
    Empty,
    /// All of them together are too long.
    #[error(
        "{objects} objects of up to {longest_bytes} bytes are too much for one map: \
         map fewer at once"
    )]
    TooLarge {
        /// Number of objects.
        objects: usize,
        /// Length of the longest object, in bytes.
        longest_bytes: u64,
    },
    /// The object is in the archive. A fault is served in a signal handler, which cannot ask a store.
    #[error(
        "object {object} is in the archive, from where nothing is mapped: bring it back first, or read \
         it in place"
    )]
    Archived {
        /// Id of the object.
        object: ObjectId,
    },
    /// The device has no file.
    #[error("object {object} is on a device that cannot be mapped: move it to another class first")]
    NoFile {
        /// Id of the object.
        object: ObjectId,
    },
    /// The file back end was asked for.
    #[error(
        "object {object} is on another device than {first}: \
         map them apart, or with the memfd back end"
    )]
    SeveralDevices {
        /// The first of all.
        first: ObjectId,
        /// The first that is elsewhere.
        object: ObjectId,
    },
    /// The checksums could not be had.
    #[error(transparent)]
    Checksums(#[from] ReadError),
    /// The kernel says no.
    #[error("cannot {what}: {source}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl MapError {
    /// Why an object whose device has no file cannot be mapped.
    pub(super) fn no_file(object: &dyn Object) -> Self {
        let (class, object) = (object.class(), object.id());
        if class == MediaClass::Archive {
            Self::Archived { object }
        } else {
            Self::NoFile { object }
        }
    }

    pub(crate) const fn of_system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// Why the kernel did not say what is in memory, or did not take it back.
#[derive(Debug, Error)]
#[error("cannot {what} of object {object}: {source}")]
pub struct EvictError {
    /// Operation that failed.
    pub what: &'static str,
    /// With which object.
    pub object: ObjectId,
    /// Error of the kernel.
    pub source: io::Error,
}
