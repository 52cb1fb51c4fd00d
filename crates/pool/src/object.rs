//! Objects as they are mapped, moved and read: committed, whatever keeps them.

use std::fmt;
use std::io;
use std::sync::Arc;

use bindery_sys::direct::Buffer;
use thiserror::Error;

use crate::device::Device;
use crate::{MediaClass, ObjectId, OtherProcess, UNIT_BYTES};

/// A committed object. Its bytes never change, and its place on the device is not given to another
/// one while anybody holds this: to hold it is to keep it readable, deleted or not.
pub trait Object: Send + Sync + fmt::Debug {
    /// Returns the id of the object.
    fn id(&self) -> ObjectId;

    /// The media class that it is in.
    fn class(&self) -> MediaClass;

    /// Returns the length, in bytes; the rest of the last unit is zero.
    fn length_bytes(&self) -> u64;

    /// Returns the device that the object is on. An object in the archive is a device of its own, which has no file.
    fn device(&self) -> &Arc<dyn Device>;

    /// Returns the start on the device, in bytes; a multiple of [`BLOCK_BYTES`](crate::BLOCK_BYTES).
    fn offset_bytes(&self) -> u64;

    /// Reads whole units from the device, past every cache, and verifies them. Blocks.
    ///
    /// # Errors
    /// See [`ReadError`].
    ///
    /// # Panics
    /// If `offset_bytes` is no multiple of [`UNIT_BYTES`].
    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> Result<(), ReadError>;

    /// Verifies a whole unit of it that was read by other means.
    ///
    /// May be called in a signal handler, in the thread that touched the memory: once
    /// [`load_checksums`](Self::load_checksums) has succeeded it takes no lock, allocates nothing,
    /// does no I/O and does not panic for a unit that the object has. Costs one checksum.
    ///
    /// # Errors
    /// [`Damage`], if those are not the bytes that were committed.
    fn verify_unit(&self, unit: u64, bytes: &[u8]) -> Result<(), Damage>;

    /// Loads what [`verify_unit`](Self::verify_unit) needs. Blocks if that must be read.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn load_checksums(&self) -> Result<(), ReadError> {
        Ok(())
    }
}

/// Returns the number of units of an object, the last of them perhaps in part.
#[must_use]
pub fn units_of(object: &dyn Object) -> u64 {
    object.length_bytes().div_ceil(UNIT_BYTES as u64)
}

/// Bytes that are not those that were committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "object {object} is damaged at byte {offset_bytes}: its checksum is {found:#010x}, \
     not {expected:#010x}"
)]
pub struct Damage {
    /// Object that is damaged.
    pub object: ObjectId,
    /// The first byte of the damaged unit, from the object's beginning.
    pub offset_bytes: u64,
    /// The checksum that was committed.
    pub expected: u32,
    /// The checksum of what is there.
    pub found: u32,
}

/// Why an object could not be read. Other objects, and other units of this one, may be readable.
#[derive(Debug, Error)]
pub enum ReadError {
    /// This is a child of the process that opened the object's pool.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// The device holds something else than what was written.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The device gave an error.
    #[error("object {object} cannot be read at byte {offset_bytes}: {source}")]
    Device {
        /// Id of the object.
        object: ObjectId,
        /// From where it was to be read, from the object's beginning.
        offset_bytes: u64,
        /// Error of the device.
        source: io::Error,
    },
    /// The object's checksums are damaged, so that none of its bytes can be verified.
    #[error(
        "the checksums of object {object} are damaged, at {offset_bytes} of {device}: nothing of the \
         object can be verified; delete it, or restore the device"
    )]
    Checksums {
        /// Id of the object.
        object: ObjectId,
        /// The device that they are on.
        device: String,
        /// Start of the checksums on the device, in bytes.
        offset_bytes: u64,
    },
    /// The archive holds something else than what was stored there, or no longer holds the object.
    #[error("object {object} cannot be read at byte {offset_bytes}, in the archive: {source}")]
    Archive {
        /// Object that was to be read.
        object: ObjectId,
        /// Start of the range that was to be read, from the object's beginning.
        offset_bytes: u64,
        /// The archive's error, with the key.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The archive cannot be reached, so that nothing is known of what it holds.
    #[error("object {object} cannot be read at byte {offset_bytes}, in the archive: {source}")]
    ArchiveUnreachable {
        /// Object that was to be read.
        object: ObjectId,
        /// Start of the range that was to be read, from the object's beginning.
        offset_bytes: u64,
        /// The archive's error, with the key.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The object is shorter than that.
    #[error(transparent)]
    BeyondEnd(#[from] BeyondEnd),
}

impl ReadError {
    /// Returns true if the object was not looked at, because the archive cannot be reached or this process is
    /// the wrong one.
    #[must_use]
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::OtherProcess(_) | Self::ArchiveUnreachable { .. })
    }
}

/// More was to be read of an object than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("object {object} has {length_bytes} bytes: there are no {bytes} bytes at {offset_bytes}")]
pub struct BeyondEnd {
    /// Id of the object.
    pub object: ObjectId,
    /// From where it was to be read.
    pub offset_bytes: u64,
    /// Bytes that were to be read.
    pub bytes: u64,
    /// Length of the object, in bytes.
    pub length_bytes: u64,
}

impl BeyondEnd {
    /// Refuses units that the object does not have, not even in part.
    pub(crate) fn check_units(self) -> Result<(), Self> {
        self.check(self.length_bytes.next_multiple_of(UNIT_BYTES as u64))
    }

    fn check(self, end_bytes: u64) -> Result<(), Self> {
        let end = self.offset_bytes.checked_add(self.bytes);
        if end.is_some_and(|end| end <= end_bytes) { Ok(()) } else { Err(self) }
    }
}

/// Refuses a range that the object does not have.
pub(crate) fn check_range(
    object: &dyn Object,
    offset_bytes: u64,
    bytes: u64,
) -> Result<(), BeyondEnd> {
    let (object, length_bytes) = (object.id(), object.length_bytes());
    BeyondEnd { object, offset_bytes, bytes, length_bytes }.check(length_bytes)
}
