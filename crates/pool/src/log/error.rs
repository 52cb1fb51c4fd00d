//! Errors of logs.

use std::io;

use thiserror::Error;

use crate::id::{DeviceIndex, ObjectId};

/// A device failed a log.
#[derive(Debug, Error)]
#[error("{doing} log {log} at {offset_bytes} of device {device} failed: {source}")]
pub struct DeviceError {
    /// Id of the log.
    pub log: ObjectId,
    /// Operation that failed: reading, writing, syncing.
    pub doing: &'static str,
    /// The device of the log's copy.
    pub device: DeviceIndex,
    /// Place on the device, in bytes.
    pub offset_bytes: u64,
    /// Error of the device.
    pub source: io::Error,
}

/// A block of a log that is not what was written there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("log {log}: block {block} of copy {copy}, at {offset_bytes} of device {device}, {what}")]
pub struct Damage {
    /// Id of the log.
    pub log: ObjectId,
    /// Number of the copy, from 0.
    pub copy: usize,
    /// Number of the block in its extent, from 0.
    pub block: u64,
    /// The device of the log's copy.
    pub device: DeviceIndex,
    /// Place on the device, in bytes.
    pub offset_bytes: u64,
    /// Description of the damage.
    pub what: String,
}

/// A log could not be read.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Durable records are damaged in all copies.
    #[error("{0}; no other copy of it is good: restore the pool, or delete what the log holds")]
    Damaged(Damage),
    /// No copy begins as a log does.
    #[error("{0}: there is no such log")]
    NoLog(Damage),
    /// The log was erased while it was read.
    #[error("log {0} was erased while it was read: read it again")]
    Erased(ObjectId),
    /// A later Bindery wrote it.
    #[error(
        "log {log} has format {found}, and this Bindery knows {known} at most: use a newer one"
    )]
    Version {
        /// Id of the log.
        log: ObjectId,
        /// Format of the log.
        found: u32,
        /// The latest that is known.
        known: u32,
    },
    /// The places are not what a log can lie in, or not what this one lies in.
    #[error("log {log} cannot lie in {blocks} blocks: {why}")]
    Size {
        /// Id of the log.
        log: ObjectId,
        /// The length that was given.
        blocks: u64,
        /// Description of what is wrong with the places.
        why: String,
    },
    /// The log knows a later opening than this one.
    #[error(
        "log {log} was written by opening {found} of its pool, and this is opening {given}: the pool's \
         superblocks are older than its logs; was a device put back from a snapshot?"
    )]
    Session {
        /// Id of the log.
        log: ObjectId,
        /// The opening that wrote its last block.
        found: u64,
        /// The opening that was given.
        given: u64,
    },
}

/// A log could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// A device failed. The log takes nothing more; what was not synced may be lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The record does not fit. Nothing has changed.
    #[error("log {log} is full: {needed} blocks are needed, and {left} of its {blocks} are left")]
    Full {
        /// Id of the log.
        log: ObjectId,
        /// Number of blocks that the record needs beyond those that are left.
        needed: u64,
        /// Number of blocks that are left.
        left: u64,
        /// Number of blocks that the log has for records.
        blocks: u64,
    },
    /// An earlier write failed, so that nobody knows what the device holds.
    #[error("log {0} takes nothing more since a device failed it: open its pool again")]
    Failed(ObjectId),
}
