//! Who takes part, and the pool's devices among them.

use std::path::Path;

use anyhow::Result;
use bindery_pool::device::{
    Device, DeviceAccess, DeviceOptions, FileDevice, IoEngine, Read, Write,
};
use bindery_sys::direct::Buffer;

use super::{READ_BYTES, WRITE_BYTES};

/// A store of bytes that is written from its beginning to its end, and read at random places.
pub(super) trait Contender {
    fn name(&self) -> String;

    /// Gives its blocks back.
    fn empty(&mut self) -> Result<()>;

    /// Writes all of it, [`WRITE_BYTES`] at a time as [`pattern`] has them, and makes it durable.
    fn write(&mut self) -> Result<()>;

    /// Reads [`READ_BYTES`] at each offset. What [`folded`] makes of them all, in any order.
    fn read(&mut self, offsets: &[u64]) -> Result<u64>;
}

/// What repeats in what is written.
const PERIOD_BYTES: usize = 1 << 20;

/// What one write holds, of so many bytes at its beginning: each read of a period begins with another
/// number.
pub(super) fn pattern(bytes: usize) -> Buffer {
    let mut pattern = Buffer::zeroed(bytes);
    for (at, part) in pattern.chunks_exact_mut(READ_BYTES).enumerate() {
        let at = at % (PERIOD_BYTES / READ_BYTES);
        part.fill(at as u8);
        part[..8]
            .copy_from_slice(&(at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    pattern
}

/// What proves that a read took place.
pub(super) fn folded(read: &[u8]) -> u64 {
    u64::from_le_bytes(read[..8].try_into().expect("a read is longer than that"))
}

/// A device of a pool.
pub(super) struct Pooled {
    device: FileDevice,
    pattern: Buffer,
    read: Vec<Buffer>,
}

impl Pooled {
    /// Reads that one call asks for.
    const BATCH: usize = 1024;

    pub(super) fn create(
        directory: &Path,
        bytes: u64,
        engine: IoEngine,
        depth: usize,
    ) -> Result<Self> {
        let options = DeviceOptions {
            engine: Some(engine),
            depth,
            ..DeviceOptions::new(DeviceAccess::Write)
        };
        let path = directory.join(format!("{engine}-{depth}"));
        let device = FileDevice::create(&path, bytes, &options)?;
        let read = (0..Self::BATCH).map(|_| Buffer::zeroed(READ_BYTES)).collect();
        Ok(Self { device, pattern: pattern(WRITE_BYTES), read })
    }
}

impl Contender for Pooled {
    fn name(&self) -> String {
        format!("device, {}", self.device.engine())
    }

    fn empty(&mut self) -> Result<()> {
        self.device.discard(0, self.device.bytes())?;
        Ok(self.device.sync()?)
    }

    fn write(&mut self) -> Result<()> {
        let offsets = (0..self.device.bytes()).step_by(WRITE_BYTES);
        let writes: Vec<Write<'_>> =
            offsets.map(|offset_bytes| Write { offset_bytes, from: &self.pattern }).collect();
        self.device.write_many(&writes)?;
        Ok(self.device.sync()?)
    }

    fn read(&mut self, offsets: &[u64]) -> Result<u64> {
        let mut check = 0u64;
        for offsets in offsets.chunks(Self::BATCH) {
            let mut reads: Vec<Read<'_>> = offsets
                .iter()
                .zip(&mut self.read)
                .map(|(&offset_bytes, into)| Read { offset_bytes, into })
                .collect();
            self.device.read_many(&mut reads)?;
            check = reads.iter().fold(check, |check, read| check.wrapping_add(folded(read.into)));
        }
        Ok(check)
    }
}
