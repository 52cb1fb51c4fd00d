//! The copies of a log, as one array of blocks.

use std::sync::Arc;

use bindery_sys::direct::Buffer;

use super::LEAST_BLOCKS;
use super::error::{Damage, DeviceError, OpenError};
use super::log_copy::LogCopy;
use crate::{BLOCK_BYTES, LogIdentity};

/// Number of blocks that are read or written at once.
pub(super) const CHUNK_BLOCKS: u64 = 64;

/// Number of heads with which each copy begins. Block `sequence` of a generation is block
/// `HEADS + sequence` of the extent.
pub(super) const HEADS: u64 = 2;

/// A block of a copy that is not what it should be.
#[derive(Debug)]
pub(super) struct Defect {
    pub(super) damage: Damage,
    /// A copy in which the block is good; none of a head, which is made anew.
    pub(super) good: Option<usize>,
}

/// The copies of a log: as many blocks each, and the same in each.
#[derive(Debug)]
pub(super) struct LogCopies {
    pub(super) identity: LogIdentity,
    places: Vec<LogCopy>,
    blocks: u64,
}

impl LogCopies {
    /// # Errors
    /// If a log cannot lie there.
    pub(super) fn new(identity: LogIdentity, places: Vec<LogCopy>) -> Result<Self, OpenError> {
        let log = identity.log;
        let bytes = places.first().map_or(0, |place| place.extent.bytes);
        let blocks = bytes / BLOCK_BYTES as u64;
        let refuse = |why: String| Err(OpenError::Size { log, blocks, why });
        if blocks < LEAST_BLOCKS {
            return refuse(format!("{LEAST_BLOCKS} are the least"));
        }
        for LogCopy { device, extent } in &places {
            if extent.bytes != bytes {
                return refuse(format!("another copy of it lies in {extent}"));
            }
            if !extent.lies_within(device.bytes()) {
                let bytes = device.bytes();
                return refuse(format!("{extent} are no whole blocks of its {bytes} bytes"));
            }
        }
        Ok(Self { identity, places, blocks })
    }

    /// Returns the number of copies.
    pub(super) const fn count(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of blocks that each copy has.
    pub(super) const fn blocks(&self) -> u64 {
        self.blocks
    }

    fn offset_bytes(&self, copy: usize, block: u64) -> u64 {
        self.places[copy].extent.offset_bytes + block * BLOCK_BYTES as u64
    }

    /// Reads blocks of one copy, as many as `into` holds.
    pub(super) fn read(
        &self,
        copy: usize,
        block: u64,
        into: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let offset_bytes = self.offset_bytes(copy, block);
        let read = self.places[copy].device.read(offset_bytes, into);
        read.map_err(|source| self.failed("reading", copy, block, source))
    }

    /// Writes blocks of one copy.
    pub(super) fn write(&self, copy: usize, block: u64, from: &Buffer) -> Result<(), DeviceError> {
        let offset_bytes = self.offset_bytes(copy, block);
        let written = self.places[copy].device.write(offset_bytes, from);
        written.map_err(|source| self.failed("writing", copy, block, source))
    }

    /// Writes blocks of all copies.
    pub(super) fn write_all(&self, block: u64, from: &Buffer) -> Result<(), DeviceError> {
        (0..self.count()).try_for_each(|copy| self.write(copy, block, from))
    }

    /// Makes all copies durable, each device once.
    pub(super) fn sync(&self) -> Result<(), DeviceError> {
        for (copy, place) in self.places.iter().enumerate() {
            let same = |other: &LogCopy| Arc::ptr_eq(&other.device, &place.device);
            if !self.places[..copy].iter().any(same) {
                let synced = place.device.sync();
                synced.map_err(|source| self.failed("syncing", copy, 0, source))?;
            }
        }
        Ok(())
    }

    fn failed(
        &self,
        doing: &'static str,
        copy: usize,
        block: u64,
        source: std::io::Error,
    ) -> DeviceError {
        DeviceError {
            log: self.identity.log,
            doing,
            device: self.places[copy].extent.device,
            offset_bytes: self.offset_bytes(copy, block),
            source,
        }
    }

    /// Returns the damage of a block of a copy.
    pub(super) fn damage(&self, copy: usize, block: u64, what: impl ToString) -> Damage {
        Damage {
            log: self.identity.log,
            copy,
            block,
            device: self.places[copy].extent.device,
            offset_bytes: self.offset_bytes(copy, block),
            what: what.to_string(),
        }
    }
}
