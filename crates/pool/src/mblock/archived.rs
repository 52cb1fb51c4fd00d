//! Objects in the archive, read in place.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use bindery_sys::direct::Buffer;
use uuid::Uuid;

use crate::archive::{self, Archive, Digest, Stored};
use crate::device::Device;
use crate::format::record::ArchivedEntry;
use crate::object::{Damage, Object, ReadError};
use crate::{MediaClass, ObjectId, UNIT_BYTES};

/// An mblock in the archive. Each read asks the store for the range, and verifies it.
pub(crate) struct Archived {
    remote: Arc<Remote>,
    device: Arc<dyn Device>,
}

impl Archived {
    pub(crate) fn new(archive: Archive, pool: u128, entry: ArchivedEntry) -> Self {
        let pool = Uuid::from_u128(pool);
        let remote = Arc::new(Remote { archive, pool, entry, stored: OnceLock::new() });
        let device = Arc::<Remote>::clone(&remote);
        Self { remote, device }
    }

    pub(crate) fn entry(&self) -> &ArchivedEntry {
        &self.remote.entry
    }

    /// Returns the stored object, once its header was compared with the catalogue.
    pub(crate) fn stored(&self) -> Result<&Stored, archive::ReadError> {
        self.remote.stored()
    }

    /// Reads all of it, every part's header too.
    pub(crate) fn verify(&self) -> Result<(), ReadError> {
        self.stored().and_then(Stored::verify).map_err(|error| self.failed(0, error))
    }

    fn failed(&self, offset_bytes: u64, error: archive::ReadError) -> ReadError {
        let object = self.entry().id;
        match error {
            archive::ReadError::BeyondEnd(beyond) => beyond.into(),
            archive::ReadError::Fault(_) => {
                ReadError::ArchiveUnreachable { object, offset_bytes, source: Box::new(error) }
            }
            _ => ReadError::Archive { object, offset_bytes, source: Box::new(error) },
        }
    }
}

impl Object for Archived {
    fn id(&self) -> ObjectId {
        self.entry().id
    }

    fn class(&self) -> MediaClass {
        MediaClass::Archive
    }

    fn length_bytes(&self) -> u64 {
        self.entry().length_bytes
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn offset_bytes(&self) -> u64 {
        0
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> Result<(), ReadError> {
        let read = self.stored().and_then(|stored| stored.read(offset_bytes, into));
        read.map_err(|error| self.failed(offset_bytes, error))
    }

    /// # Panics
    /// If the checksums were not loaded before, or the object has no such unit.
    fn verify_unit(&self, unit: u64, bytes: &[u8]) -> Result<(), Damage> {
        let stored = self.remote.stored.get();
        let stored = stored.expect("checksums are loaded before units are verified");
        stored.verify_unit(unit, bytes).map_err(|damage| {
            let archive::Damage::Unit { expected, found, .. } = damage else {
                unreachable!("of a unit only its checksum is looked at")
            };
            let offset_bytes = unit * UNIT_BYTES as u64;
            Damage { object: self.entry().id, offset_bytes, expected, found }
        })
    }

    fn load_checksums(&self) -> Result<(), ReadError> {
        self.stored().map(drop).map_err(|error| self.failed(0, error))
    }
}

impl fmt::Debug for Archived {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Remote { archive, entry, .. } = &*self.remote;
        write!(formatter, "mblock {} ({} bytes, in {archive:?})", entry.id, entry.length_bytes)
    }
}

/// An object of the archive as a device that can be read only, and not be mapped: it has no file.
#[derive(Debug)]
struct Remote {
    archive: Archive,
    pool: Uuid,
    entry: ArchivedEntry,
    stored: OnceLock<Stored>,
}

impl Remote {
    fn stored(&self) -> Result<&Stored, archive::ReadError> {
        if let Some(stored) = self.stored.get() {
            return Ok(stored);
        }
        let ArchivedEntry { id, length_bytes, digest } = self.entry;
        let stored = self.archive.head_of(self.pool, id, length_bytes, Digest(digest))?;
        Ok(self.stored.get_or_init(|| stored))
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "what is in the archive does not change")
}

impl Device for Remote {
    fn bytes(&self) -> u64 {
        self.entry.length_bytes.next_multiple_of(UNIT_BYTES as u64)
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        let read = self.stored().and_then(|stored| stored.read(offset_bytes, into));
        read.map_err(io::Error::other)
    }

    fn write(&self, _offset_bytes: u64, _from: &Buffer) -> io::Result<()> {
        Err(read_only())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset_bytes: u64, _bytes: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn grow(&self, _bytes: u64) -> io::Result<u64> {
        Err(read_only())
    }
}
