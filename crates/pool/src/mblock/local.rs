//! Objects on devices of the pool.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bindery_sys::direct::Buffer;

use super::checksum::{table_checksum, unit_checksum, units_in};
use crate::device::{Device, Hold};
use crate::format::record::MblockEntry;
use crate::media::PoolDevice;
use crate::object::{BeyondEnd, Damage, Object, ReadError};
use crate::{BLOCK_BYTES, MediaClass, ObjectId, UNIT_BYTES};

/// An mblock on a device. Its bytes stay where they are until this is dropped, also when it is deleted.
pub(crate) struct Local {
    entry: MblockEntry,
    pool_device: Arc<PoolDevice>,
    /// The checksums of its units, once read.
    checksums: OnceLock<Box<[u32]>>,
    is_deleted: AtomicBool,
    /// True if the space is still accounted for as that of an object that is being written.
    is_held: AtomicBool,
    /// Lock that keeps another process from giving the space to another object.
    _hold: Option<Hold>,
}

impl Local {
    pub(crate) fn new(
        entry: MblockEntry,
        pool_device: Arc<PoolDevice>,
        hold: Option<Hold>,
    ) -> Self {
        let checksums = OnceLock::new();
        let [is_deleted, is_held] = [(); 2].map(|()| AtomicBool::new(false));
        Self { entry, pool_device, checksums, is_deleted, is_held, _hold: hold }
    }

    /// Returns a written object, whose checksums are known, and that is still to be [settled](Self::settle).
    pub(crate) fn written(
        entry: MblockEntry,
        pool_device: Arc<PoolDevice>,
        checksums: Vec<u32>,
    ) -> Self {
        let new = Self::new(entry, pool_device, None);
        new.is_held.store(true, Ordering::Relaxed);
        let _ = new.checksums.set(checksums.into());
        new
    }

    pub(crate) const fn entry(&self) -> &MblockEntry {
        &self.entry
    }

    /// Accounts the object's space as used. All can find the object before its writer comes to this: who deletes it
    /// may come first.
    pub(crate) fn settle(&self) {
        if self.is_held.swap(false, Ordering::Relaxed) {
            self.pool_device.settle(self.entry.data.bytes + self.entry.table.bytes);
        }
    }

    /// Frees the object's space when the last handle is dropped.
    pub(crate) fn delete(&self) {
        self.settle();
        self.pool_device.linger([self.entry.data, self.entry.table]);
        // The last one to drop its handle sees it: that is a release and an acquire of the count.
        self.is_deleted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Relaxed)
    }

    fn checksums(&self) -> Result<&[u32], ReadError> {
        self.pool_device.device.check_here()?;
        if let Some(checksums) = self.checksums.get() {
            return Ok(checksums);
        }
        let units = units_in(self.entry.length_bytes) as usize;
        let table = self.read_table(units * size_of::<u32>())?;
        let (chunks, _) = table[..units * size_of::<u32>()].as_chunks();
        let checksums = chunks.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok(self.checksums.get_or_init(|| checksums))
    }

    fn read_table(&self, bytes: usize) -> Result<Buffer, ReadError> {
        let mut table = Buffer::zeroed(bytes.next_multiple_of(BLOCK_BYTES));
        let offset_bytes = self.entry.table.offset_bytes;
        let read = self.pool_device.device.read(offset_bytes, &mut table);
        read.map_err(|error| self.failed(0, error))?;
        if table_checksum(self.entry.id, &table[..bytes]) != self.entry.table_checksum {
            let device = self.pool_device.label.clone();
            return Err(ReadError::Checksums { object: self.entry.id, device, offset_bytes });
        }
        Ok(table)
    }

    fn failed(&self, offset_bytes: u64, source: io::Error) -> ReadError {
        ReadError::Device { object: self.entry.id, offset_bytes, source }
    }
}

impl Object for Local {
    fn id(&self) -> ObjectId {
        self.entry.id
    }

    fn class(&self) -> MediaClass {
        self.pool_device.class
    }

    fn length_bytes(&self) -> u64 {
        self.entry.length_bytes
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.pool_device.device
    }

    fn offset_bytes(&self) -> u64 {
        self.entry.data.offset_bytes
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> Result<(), ReadError> {
        assert!(offset_bytes.is_multiple_of(UNIT_BYTES as u64), "{offset_bytes} is in a unit");
        let MblockEntry { id: object, length_bytes, .. } = self.entry;
        let bytes = into.len() as u64;
        BeyondEnd { object, offset_bytes, bytes, length_bytes }.check_units()?;
        self.checksums()?;
        let read = self.pool_device.device.read(self.entry.data.offset_bytes + offset_bytes, into);
        read.map_err(|error| self.failed(offset_bytes, error))?;
        let first = offset_bytes / UNIT_BYTES as u64;
        for (unit, bytes) in (first..).zip(into.chunks_exact(UNIT_BYTES)) {
            self.verify_unit(unit, bytes)?;
        }
        Ok(())
    }

    /// # Panics
    /// If the checksums were not loaded before, or the object has no such unit.
    fn verify_unit(&self, unit: u64, bytes: &[u8]) -> Result<(), Damage> {
        let checksums =
            self.checksums.get().expect("checksums are loaded before units are verified");
        let expected = checksums[unit as usize];
        let found = unit_checksum(self.entry.id, unit, bytes);
        if found == expected {
            return Ok(());
        }
        let offset_bytes = unit * UNIT_BYTES as u64;
        Err(Damage { object: self.entry.id, offset_bytes, expected, found })
    }

    fn load_checksums(&self) -> Result<(), ReadError> {
        self.checksums().map(|_| ())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if *self.is_deleted.get_mut() && self.pool_device.device.check_here().is_ok() {
            self.pool_device.let_go([self.entry.data, self.entry.table]);
        }
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MblockEntry { id, length_bytes, data, .. } = &self.entry;
        write!(formatter, "mblock {id} ({length_bytes} bytes, {data})")
    }
}
