//! Reading an object from the archive.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use bindery_sys::direct::Buffer;
use bytes::Bytes;
use ring::digest;
use thiserror::Error;
use uuid::Uuid;

use super::format::{self, FormatError, HEADER_BYTES, Header, UNIT_BYTES, unit_checksum};
use super::runtime::Pending;
use super::{Archive, Fault};
use crate::ObjectId;
use crate::object::BeyondEnd;

mod look;

/// Bytes of a first part that are read before the length of its table is known: the table of
/// an object of 64 MiB less four units.
const FIRST_BYTES: u64 = 64 << 10;

/// Number of reads of what does not verify: a bit may turn on the way.
const READS: u32 = 3;

/// Bytes of a whole object that are read at once.
const PIECE_BYTES: u64 = 8 << 20;

/// Faults in what a store holds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    /// The header or the table is not what was written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The key holds a part of another object.
    #[error("it is part {part} of object {object} of pool {pool}, in another's place")]
    Misplaced {
        /// Pool of the part that was found.
        pool: Uuid,
        /// Object of the part that was found.
        object: ObjectId,
        /// Number of the part that was found.
        part: u32,
    },
    /// A part that the first part speaks of is not there.
    #[error("it is missing")]
    MissingPart,
    /// The part ends early.
    #[error("it ends early: {found} of {expected} bytes came")]
    Truncated {
        /// Bytes that came.
        found: u64,
        /// Bytes that were asked for.
        expected: u64,
    },
    /// The part is not as long as it was written.
    #[error(
        "its last {expected} bytes should be there, and {found} are: it was cut off, or replaced"
    )]
    Length {
        /// Bytes that came from where the part's end should be.
        found: u64,
        /// Bytes that should have come.
        expected: u64,
    },
    /// A unit is not what was written.
    #[error("the checksum of unit {unit} is {found:#010x}, not {expected:#010x}")]
    Unit {
        /// Number of the unit, counted from the object's beginning.
        unit: u64,
        /// Checksum that was written.
        expected: u32,
        /// Checksum of what came.
        found: u32,
    },
    /// Every unit verifies, and together they are something else.
    #[error("the SHA-256 of the whole is {found}, not {expected}")]
    Digest {
        /// Digest that was written.
        expected: format::Digest,
        /// Digest of what came.
        found: format::Digest,
    },
}

/// Why an object could not be read from an archive.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The store does not do what it is asked.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// There is no such object.
    #[error(
        "{store} has no {key}: if the catalogue has the object, somebody deleted it, or this is not \
         the archive that it was copied to"
    )]
    Missing {
        /// The archive's URL.
        store: String,
        /// The key.
        key: String,
    },
    /// The store holds something else than what was written.
    #[error("{key} in {store} is damaged: {damage}")]
    Damaged {
        /// The archive's URL.
        store: String,
        /// The key.
        key: String,
        /// Description of the damage.
        damage: Damage,
    },
    /// The object is shorter than that.
    #[error(transparent)]
    BeyondEnd(#[from] BeyondEnd),
}

/// An object in an archive. Holds its table of checksums: 1/1024 of the object's length.
#[derive(Clone)]
pub struct Stored {
    archive: Archive,
    header: Header,
    checksums: Vec<u32>,
}

/// Units of one part that are asked for together.
#[derive(Clone, Copy, Debug)]
struct Piece {
    part: u32,
    first_unit: u64,
    end_unit: u64,
}

impl Stored {
    pub(super) fn open(archive: &Archive, pool: Uuid, object: ObjectId) -> Result<Self, ReadError> {
        let place = PartPlace { archive, pool, object, part: 0 };
        place.repeat(|| {
            let mut bytes = place.get(0..FIRST_BYTES)?;
            let header = Header::decode(&bytes).map_err(|error| place.damaged(error.into()))?;
            place.check(&header)?;
            let table_end = header.layout.content_offset_bytes(0);
            if table_end > FIRST_BYTES {
                bytes = place.get(0..table_end)?;
            }
            let checksums = format::decode_table(&header, &bytes);
            let checksums = checksums.map_err(|error| place.damaged(error.into()))?;
            Ok(Self { archive: archive.clone(), header, checksums })
        })
    }

    /// Returns the object, if it is what the catalogue says.
    pub(super) fn expect(
        self,
        length_bytes: u64,
        expected: format::Digest,
    ) -> Result<Self, ReadError> {
        let found = self.header.digest;
        if (found, self.length_bytes()) == (expected, length_bytes) {
            return Ok(self);
        }
        Err(self.place(0).damaged(Damage::Digest { expected, found }))
    }

    /// Returns the header of the first part.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the length of the object, in bytes.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.header.layout.length_bytes
    }

    /// The checksums of its units.
    #[must_use]
    pub fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    /// Reads whole units and verifies them; what is behind the object's end in the last is zero.
    /// [`parts_at_once`](super::ArchiveOptions::parts_at_once) are asked for together. Blocks.
    ///
    /// # Errors
    /// See [`ReadError`]; the buffer's content is then unknown. What does not verify was read three
    /// times.
    ///
    /// # Panics
    /// If `offset_bytes` is no multiple of [`UNIT_BYTES`].
    pub fn read(&self, offset_bytes: u64, into: &mut Buffer) -> Result<(), ReadError> {
        assert!(
            offset_bytes.is_multiple_of(UNIT_BYTES as u64),
            "{offset_bytes} is no unit's start"
        );
        let (object, bytes) = (self.header.object, into.len() as u64);
        let length_bytes = self.length_bytes();
        BeyondEnd { object, offset_bytes, bytes, length_bytes }.check_units()?;
        let first = offset_bytes / UNIT_BYTES as u64;
        let end = first + bytes / UNIT_BYTES as u64;
        let mut asked = VecDeque::new();
        let mut rest = &mut into[..];
        for piece in self.pieces(first..end) {
            if asked.len() == self.archive.0.options.parts_at_once {
                rest = self.take_next(&mut asked, rest)?;
            }
            let came = self.archive.0.get(self.place(piece.part).key(), self.range(piece));
            asked.push_back((piece, came));
        }
        while !asked.is_empty() {
            rest = self.take_next(&mut asked, rest)?;
        }
        Ok(())
    }

    /// Verifies a unit that was read by other means.
    ///
    /// # Errors
    /// [`Damage::Unit`], if those are not the bytes that were stored.
    ///
    /// # Panics
    /// If the object has no such unit.
    pub fn verify_unit(&self, unit: u64, bytes: &[u8]) -> Result<(), Damage> {
        let expected = self.checksums[unit as usize];
        let found = unit_checksum(self.header.pool, self.header.object, unit, bytes);
        if found == expected { Ok(()) } else { Err(Damage::Unit { unit, expected, found }) }
    }

    /// Reads and verifies all of it, every part's header too. Blocks; takes 8 MiB.
    ///
    /// # Errors
    /// The first [`ReadError`].
    pub fn verify(&self) -> Result<(), ReadError> {
        for part in 1..self.header.layout.parts() {
            self.verify_header(part)?;
        }
        self.read_all(|_| Ok(()))
    }

    /// Reads all of it, 8 MiB at once, and verifies each unit and, at the end, the whole. `take` gets
    /// the object's bytes, piece by piece: they count only if this returns without an error. Blocks.
    ///
    /// # Errors
    /// The first [`ReadError`], or the first of `take`.
    pub fn read_all<E: From<ReadError>>(
        &self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut context = digest::Context::new(&digest::SHA256);
        let padded = self.header.layout.units() * UNIT_BYTES as u64;
        let mut at = 0;
        while at < padded {
            let mut buffer = Buffer::zeroed((padded - at).min(PIECE_BYTES) as usize);
            self.read(at, &mut buffer)?;
            let left = (self.length_bytes() - at) as usize;
            let content = &buffer[..buffer.len().min(left)];
            context.update(content);
            take(content)?;
            at += buffer.len() as u64;
        }
        let found = context.finish();
        let found = format::Digest(found.as_ref().try_into().expect("SHA-256 has 32 bytes"));
        let expected = self.header.digest;
        if found == expected {
            return Ok(());
        }
        Err(self.place(0).damaged(Damage::Digest { expected, found }).into())
    }

    fn verify_header(&self, part: u32) -> Result<(), ReadError> {
        let place = self.place(part);
        place.repeat(|| {
            let bytes = place.part(place.get(0..HEADER_BYTES as u64))?;
            let header = Header::decode(&bytes).map_err(|error| place.damaged(error.into()))?;
            place.check(&header)?;
            if header.is_same_object(&self.header) {
                return Ok(());
            }
            let (expected, found) = (self.header.digest, header.digest);
            Err(place.damaged(Damage::Digest { expected, found }))
        })
    }

    fn place(&self, part: u32) -> PartPlace<'_> {
        let Header { pool, object, .. } = self.header;
        PartPlace { archive: &self.archive, pool, object, part }
    }

    /// Cuts units where parts end.
    fn pieces(&self, units: Range<u64>) -> impl Iterator<Item = Piece> {
        let (each, Range { start, end }) = (self.header.layout.units_each(), units);
        let parts = if start < end { start / each..(end - 1) / each + 1 } else { 0..0 };
        parts.map(move |part| Piece {
            part: part as u32,
            first_unit: start.max(part * each),
            end_unit: end.min((part + 1) * each),
        })
    }

    /// Returns the range of a piece in its part, in bytes.
    fn range(&self, piece: Piece) -> Range<u64> {
        let layout = self.header.layout;
        let units_before = piece.first_unit - layout.units_of(piece.part).start;
        let start = layout.content_offset_bytes(piece.part) + units_before * UNIT_BYTES as u64;
        start..start + piece.bytes() as u64
    }

    /// Waits for the oldest piece that was asked for; what is left of the buffer behind it.
    fn take_next<'a>(
        &self,
        asked: &mut VecDeque<(Piece, Pending<Bytes>)>,
        into: &'a mut [u8],
    ) -> Result<&'a mut [u8], ReadError> {
        let Some((piece, came)) = asked.pop_front() else { return Ok(into) };
        let (content, behind) = into.split_at_mut(piece.bytes());
        self.take(piece, came.wait(), content)?;
        Ok(behind)
    }

    /// Verifies what came, or asks again.
    fn take(
        &self,
        piece: Piece,
        came: Result<Bytes, Fault>,
        into: &mut [u8],
    ) -> Result<(), ReadError> {
        let place = self.place(piece.part);
        let mut came = Some(came);
        place.repeat(|| {
            let bytes = match came.take() {
                Some(first) => first.map_err(|fault| place.fault(fault)),
                None => place.get(self.range(piece)),
            };
            let bytes = place.part(bytes)?;
            if bytes.len() != into.len() {
                let (found, expected) = (bytes.len() as u64, into.len() as u64);
                return Err(place.damaged(Damage::Truncated { found, expected }));
            }
            for (unit, content) in (piece.first_unit..).zip(bytes.chunks_exact(UNIT_BYTES)) {
                self.verify_unit(unit, content).map_err(|damage| place.damaged(damage))?;
            }
            into.copy_from_slice(&bytes);
            Ok(())
        })
    }
}

impl Piece {
    const fn bytes(self) -> usize {
        (self.end_unit - self.first_unit) as usize * UNIT_BYTES
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Stored")
            .field("archive", &self.archive)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

/// A part, by its name.
#[derive(Clone, Copy)]
struct PartPlace<'a> {
    archive: &'a Archive,
    pool: Uuid,
    object: ObjectId,
    part: u32,
}

impl PartPlace<'_> {
    fn key(self) -> object_store::path::Path {
        self.archive.0.location.keys.part(self.pool, self.object, self.part)
    }

    fn get(self, range: Range<u64>) -> Result<Bytes, ReadError> {
        self.archive.0.get(self.key(), range).wait().map_err(|fault| self.fault(fault))
    }

    /// Tries again where damage may be the network's.
    fn repeat<T>(self, mut read: impl FnMut() -> Result<T, ReadError>) -> Result<T, ReadError> {
        for _ in 1..READS {
            match read() {
                Err(ReadError::Damaged { key, damage, .. }) if damage != Damage::MissingPart => {
                    tracing::warn!(%key, %damage, "reading it again");
                }
                outcome => return outcome,
            }
        }
        read()
    }

    fn fault(self, fault: Fault) -> ReadError {
        match fault {
            Fault::Absent { store, key } => ReadError::Missing { store, key },
            fault => ReadError::Fault(fault),
        }
    }

    /// Returns the error for a part that is missing though the first part names it.
    fn part<T>(self, read: Result<T, ReadError>) -> Result<T, ReadError> {
        match read {
            Err(ReadError::Missing { .. }) => Err(self.damaged(Damage::MissingPart)),
            read => read,
        }
    }

    fn damaged(self, damage: Damage) -> ReadError {
        let (store, key) = (self.archive.url().to_owned(), self.key().to_string());
        ReadError::Damaged { store, key, damage }
    }

    fn check(self, header: &Header) -> Result<(), ReadError> {
        let Header { pool, object, part, .. } = *header;
        if (pool, object, part) == (self.pool, self.object, self.part) {
            return Ok(());
        }
        Err(self.damaged(Damage::Misplaced { pool, object, part }))
    }
}
