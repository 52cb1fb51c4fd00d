//! Copying an object into the archive.

use std::collections::VecDeque;
use std::error::Error as StdError;

use bindery_sys::direct::Buffer;
use bytes::Bytes;
use object_store::path::Path;
use ring::digest;
use thiserror::Error;
use uuid::Uuid;

use super::format::{
    self, Digest, HEADER_BYTES, Header, Layout, MAX_LENGTH_BYTES, UNIT_BYTES, unit_checksum,
};
use super::runtime::Pending;
use super::{Archive, Fault, Inner};
use crate::ObjectId;
use crate::crc::crc32c;

/// Bytes that are read at once while an object is digested.
const DIGEST_BYTES: u64 = 1 << 20;

/// Number of looks at a key that was there a moment ago and then was not.
const LOOKS: u32 = 3;

/// An object whose bytes do not change, to be copied.
pub trait Source {
    /// Returns the id of the object.
    fn id(&self) -> ObjectId;

    /// Returns the length of the object, in bytes.
    fn length_bytes(&self) -> u64;

    /// Reads whole units. What the last unit has behind the object's end is zero.
    ///
    /// # Errors
    /// Whatever keeps them from being read, damage included.
    fn read(
        &self,
        offset_bytes: u64,
        into: &mut Buffer,
    ) -> Result<(), Box<dyn StdError + Send + Sync>>;
}

/// Proof that an object is in the archive, durable and complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Division of the object into parts.
    pub layout: Layout,
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// Bytes that the object takes in the store.
    pub stored_bytes: u64,
    /// Number of parts that were there already: from an attempt whose answer was lost, or that a
    /// crash interrupted. They are known by their headers; [`verify`](super::Stored::verify) reads them.
    pub parts_found: u32,
}

/// Why an object could not be copied. What was copied of it stays, and is taken up by the next
/// attempt.
#[derive(Debug, Error)]
pub enum PutError {
    /// The store does not do what it is asked.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Another content is there under its name.
    #[error(
        "{key} in {store} is already there with another content: {there}. Two hosts use one pool, or \
         the prefix is another application's; open the pool on one of them, or archive below another \
         prefix"
    )]
    Taken {
        /// The archive's URL.
        store: String,
        /// The key.
        key: String,
        /// Description of who wrote the other object, and how it differs.
        there: String,
    },
    /// The object is longer than an archive takes.
    #[error(
        "object {object} has {length_bytes} bytes; an archive takes {MAX_LENGTH_BYTES} at most"
    )]
    TooLong {
        /// Id of the object.
        object: ObjectId,
        /// Length of the object, in bytes.
        length_bytes: u64,
    },
    /// The object cannot be read.
    #[error("object {object} cannot be read at byte {offset_bytes} to be archived: {source}")]
    Source {
        /// Id of the object.
        object: ObjectId,
        /// Start of the range that could not be read, in bytes.
        offset_bytes: u64,
        /// Error of the read.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The object read otherwise the second time.
    #[error(
        "object {object} changed at byte {offset_bytes} while it was archived: its medium or this \
         machine's memory is failing; delete it from the archive"
    )]
    Changed {
        /// Id of the object.
        object: ObjectId,
        /// Start of the first unit that changed, in bytes.
        offset_bytes: u64,
    },
}

impl Archive {
    /// Copies an object. It is durable in the archive when this returns; to repeat it, after a crash
    /// too, costs only what is not there yet. Blocks; reads the object twice, for the first part
    /// has the checksums of all.
    ///
    /// # Errors
    /// See [`PutError`].
    pub fn put(&self, pool: Uuid, source: &dyn Source) -> Result<Receipt, PutError> {
        let (object, length_bytes) = (source.id(), source.length_bytes());
        if length_bytes > MAX_LENGTH_BYTES {
            return Err(PutError::TooLong { object, length_bytes });
        }
        let layout = Layout { length_bytes, part_bytes: self.0.options.part_bytes };
        let (digest, checksums) = summarise(pool, source)?;
        let writer = self.0.options.writer.clone();
        let table_checksum = crc32c([&format::encode_table(&checksums)]);
        let header = Header { pool, object, part: 0, layout, digest, writer, table_checksum };
        let mut copy = Copy { archive: &self.0, source, checksums, header, found: 0 };
        copy.first()?;
        copy.others()?;
        let layout = copy.header.layout;
        let stored_bytes = (0..layout.parts()).map(|part| layout.stored_bytes(part)).sum();
        Ok(Receipt { layout, digest, stored_bytes, parts_found: copy.found })
    }
}

/// State of one object's copy to the archive.
struct Copy<'a> {
    archive: &'a Inner,
    source: &'a dyn Source,
    checksums: Vec<u32>,
    /// Of the first part, as it is in the archive once that is there.
    header: Header,
    found: u32,
}

impl Copy<'_> {
    /// Creates the first part, or finds it. From then on nobody else creates another.
    fn first(&mut self) -> Result<(), PutError> {
        let content = self.content(0)?;
        let created = self.create(0, content).wait();
        if let Some(there) = self.settle(0, created)? {
            // An earlier attempt may have cut the object otherwise; its parts are taken up.
            self.header.layout = there.layout;
        }
        Ok(())
    }

    fn others(&mut self) -> Result<(), PutError> {
        let mut under_way = VecDeque::new();
        for part in 1..self.header.layout.parts() {
            if under_way.len() == self.archive.options.parts_at_once {
                self.settle_next(&mut under_way)?;
            }
            let content = self.content(part)?;
            under_way.push_back((part, self.create(part, content)));
        }
        while !under_way.is_empty() {
            self.settle_next(&mut under_way)?;
        }
        Ok(())
    }

    fn settle_next(
        &mut self,
        under_way: &mut VecDeque<(u32, Pending<()>)>,
    ) -> Result<(), PutError> {
        let Some((part, created)) = under_way.pop_front() else { return Ok(()) };
        self.settle(part, created.wait()).map(drop)
    }

    fn create(&self, part: u32, content: Bytes) -> Pending<()> {
        self.archive.create(self.key(part), content)
    }

    fn key(&self, part: u32) -> Path {
        self.archive.location.keys.part(self.header.pool, self.header.object, part)
    }

    /// Finds out what a refused creation means: the header there, if it is of this object.
    fn settle(
        &mut self,
        part: u32,
        mut created: Result<(), Fault>,
    ) -> Result<Option<Header>, PutError> {
        for _ in 0..LOOKS {
            match created {
                Ok(()) => return Ok(None),
                Err(Fault::Exists { .. }) => {}
                Err(fault) => return Err(fault.into()),
            }
            match self.archive.get(self.key(part), 0..HEADER_BYTES as u64).wait() {
                Ok(bytes) => return self.compare(part, &bytes).map(Some),
                // Somebody removed it in between.
                Err(Fault::Absent { .. }) => {
                    created = self.create(part, self.content(part)?).wait()
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        created?;
        Ok(None)
    }

    fn compare(&mut self, part: u32, bytes: &[u8]) -> Result<Header, PutError> {
        let there = match Header::decode(bytes) {
            Ok(there) if self.is_ours(&there, part) => {
                self.archive.sync(&self.key(part))?;
                self.found += 1;
                return Ok(there);
            }
            Ok(other) => format!(
                "written by {:?}, {} bytes with SHA-256 {}, not {} bytes with {}",
                other.writer,
                other.layout.length_bytes,
                other.digest,
                self.header.layout.length_bytes,
                self.header.digest
            ),
            Err(error) => error.to_string(),
        };
        let key = self.key(part).to_string();
        Err(PutError::Taken { store: self.archive.url.clone(), key, there })
    }

    /// Returns true if the part in the store holds what this copy would write. The first part may be cut otherwise.
    fn is_ours(&self, there: &Header, part: u32) -> bool {
        let mut expected = self.header.clone();
        if part == 0 {
            expected.layout.part_bytes = there.layout.part_bytes;
        }
        there.part == part
            && there.is_same_object(&expected)
            && there.table_checksum == expected.table_checksum
    }

    /// A part's bytes, verified against what was read of the object before.
    fn content(&self, part: u32) -> Result<Bytes, PutError> {
        let Header { pool, object, layout, .. } = self.header;
        let mut bytes = Vec::with_capacity(layout.stored_bytes(part) as usize);
        bytes.extend_from_slice(&Header { part, ..self.header.clone() }.encode());
        if part == 0 {
            bytes.extend_from_slice(&format::encode_table(&self.checksums));
        }
        let units = layout.units_of(part);
        let (offset_bytes, count) = (units.start * UNIT_BYTES as u64, units.end - units.start);
        each_piece(self.source, offset_bytes, count * UNIT_BYTES as u64, |first, piece| {
            for (unit, content) in (first..).zip(piece.chunks_exact(UNIT_BYTES)) {
                if unit_checksum(pool, object, unit, content) != self.checksums[unit as usize] {
                    let offset_bytes = unit * UNIT_BYTES as u64;
                    return Err(PutError::Changed { object, offset_bytes });
                }
            }
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes.into())
    }
}

/// The digest of an object and the checksums of its units.
fn summarise(pool: Uuid, source: &dyn Source) -> Result<(Digest, Vec<u32>), PutError> {
    let (object, length_bytes) = (source.id(), source.length_bytes());
    let mut context = digest::Context::new(&digest::SHA256);
    let mut checksums = Vec::new();
    each_piece(source, 0, length_bytes, |first, piece| {
        let left = length_bytes - first * UNIT_BYTES as u64;
        context.update(&piece[..piece.len().min(left as usize)]);
        let units = (first..).zip(piece.chunks_exact(UNIT_BYTES));
        checksums.extend(units.map(|(unit, content)| unit_checksum(pool, object, unit, content)));
        Ok(())
    })?;
    let digest = context.finish();
    let digest = digest.as_ref().try_into().expect("SHA-256 has 32 bytes");
    Ok((Digest(digest), checksums))
}

/// Reads a range, whole units, in pieces; `take` gets the number of each piece's first unit.
fn each_piece(
    source: &dyn Source,
    offset_bytes: u64,
    bytes: u64,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), PutError>,
) -> Result<(), PutError> {
    let end = offset_bytes + bytes.next_multiple_of(UNIT_BYTES as u64);
    let mut at = offset_bytes;
    while at < end {
        let mut piece = Buffer::zeroed((end - at).min(DIGEST_BYTES) as usize);
        source.read(at, &mut piece).map_err(|source_error| PutError::Source {
            object: source.id(),
            offset_bytes: at,
            source: source_error,
        })?;
        take(at / UNIT_BYTES as u64, &piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}
