//! The format of an archive, byte by byte; `docs/formats/archive.md` has it in prose.
//!
//! An object is cut into **parts**, each a key of its own. Every part begins with the same header,
//! so that any of them says whose it is; the first also has the table of checksums.

use std::fmt;

use thiserror::Error;
use uuid::Uuid;

use crate::crc::crc32c;
use crate::{BLOCK_BYTES, ObjectId};

/// Bytes that one checksum covers.
pub const UNIT_BYTES: usize = BLOCK_BYTES;

/// Length of the header of a part, in bytes.
pub const HEADER_BYTES: usize = 256;

/// The longest object that an archive takes, in bytes: its table of checksums is 64 MiB.
pub const MAX_LENGTH_BYTES: u64 = 64 << 30;

/// The most content that a part has, in bytes: S3 takes 5 GiB in one request, and the table of the
/// longest object goes with the first part.
pub const MAX_PART_BYTES: u64 = 4 << 30;

const MAGIC: [u8; 8] = *b"BINDARC\0";
const VERSION: u32 = 1;
const TABLE_ENTRY_BYTES: usize = size_of::<u32>();
const CHECKSUM_AT: usize = HEADER_BYTES - size_of::<u32>();

/// The most that a header holds of its writer's name, in bytes.
pub const WRITER_BYTES: usize = 64;

/// SHA-256 of an object's bytes, as `sha256sum` would print it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Division of an object into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Length of the object, in bytes.
    pub length_bytes: u64,
    /// Content of each part but the last, in bytes; whole units.
    pub part_bytes: u64,
}

impl Layout {
    /// Returns the number of units of the object; the last is filled up with zeros.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.length_bytes.div_ceil(UNIT_BYTES as u64)
    }

    /// Returns the number of units in each part but the last.
    #[must_use]
    pub const fn units_each(self) -> u64 {
        self.part_bytes / UNIT_BYTES as u64
    }

    /// Returns the number of parts: at least one, that has the header.
    #[must_use]
    pub const fn parts(self) -> u32 {
        let parts = self.units().div_ceil(self.units_each());
        if parts == 0 { 1 } else { parts as u32 }
    }

    /// The units of a part.
    #[must_use]
    pub fn units_of(self, part: u32) -> std::ops::Range<u64> {
        let first = u64::from(part) * self.units_each();
        first..(first + self.units_each()).min(self.units())
    }

    /// Returns the start of the content in a part, in bytes.
    #[must_use]
    pub const fn content_offset_bytes(self, part: u32) -> u64 {
        let table = if part == 0 { self.units() * TABLE_ENTRY_BYTES as u64 } else { 0 };
        HEADER_BYTES as u64 + table
    }

    /// Returns the length of a part with its header, in bytes.
    #[must_use]
    pub fn stored_bytes(self, part: u32) -> u64 {
        let units = self.units_of(part);
        self.content_offset_bytes(part) + (units.end - units.start) * UNIT_BYTES as u64
    }

    fn is_possible(self) -> bool {
        self.length_bytes <= MAX_LENGTH_BYTES
            && (1..=MAX_PART_BYTES).contains(&self.part_bytes)
            && self.part_bytes.is_multiple_of(UNIT_BYTES as u64)
    }
}

/// Header of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The pool that the object is of.
    pub pool: Uuid,
    /// The object.
    pub object: ObjectId,
    /// Number of the part; the first is 0.
    pub part: u32,
    /// Division of the object into parts.
    pub layout: Layout,
    /// Of all its bytes.
    pub digest: Digest,
    /// Name of the host that wrote the part, for people; at most [`WRITER_BYTES`] of it are kept.
    pub writer: String,
    /// CRC-32C of the table in the first part.
    pub table_checksum: u32,
}

/// Why bytes are no header.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// There are not enough of them.
    #[error("it ends after {found} bytes of at least {expected}")]
    Short {
        /// Number of checksums that were found.
        found: u64,
        /// Number of checksums that the object has.
        expected: u64,
    },
    /// Something else begins there.
    #[error("it does not begin as Bindery's objects do")]
    Foreign,
    /// A later Bindery wrote it.
    #[error("it is of format {0}, and this Bindery knows {VERSION}: use a later one")]
    Newer(u32),
    /// The checksum is not that of the bytes.
    #[error("the checksum of its {what} is {found:#010x}, not {expected:#010x}")]
    Checksum {
        /// Header or table.
        what: &'static str,
        /// Checksum that is written there.
        expected: u32,
        /// Checksum of the bytes.
        found: u32,
    },
    /// Checksummed, and yet impossible.
    #[error("its header speaks of {length_bytes} bytes in parts of {part_bytes}, part {part}")]
    Impossible {
        /// The object's length.
        length_bytes: u64,
        /// The parts' length.
        part_bytes: u64,
        /// The part's number.
        part: u32,
    },
}

impl Header {
    /// Returns the header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.part.to_le_bytes());
        bytes[16..32].copy_from_slice(self.pool.as_bytes());
        bytes[32..40].copy_from_slice(&self.object.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.layout.length_bytes.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.layout.part_bytes.to_le_bytes());
        bytes[56..60].copy_from_slice(&(UNIT_BYTES as u32).to_le_bytes());
        bytes[60..64].copy_from_slice(&self.table_checksum.to_le_bytes());
        bytes[64..96].copy_from_slice(&self.digest.0);
        let writer = &self.writer.as_bytes()[..self.writer.floor_char_boundary(WRITER_BYTES)];
        bytes[96..96 + writer.len()].copy_from_slice(writer);
        let checksum = crc32c([&bytes[..CHECKSUM_AT]]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header. More bytes than a header's may follow.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            let (found, expected) = (bytes.len() as u64, HEADER_BYTES as u64);
            return Err(FormatError::Short { found, expected });
        };
        if bytes[0..8] != MAGIC {
            return Err(FormatError::Foreign);
        }
        let (expected, found) = (u32_at(bytes, CHECKSUM_AT), crc32c([&bytes[..CHECKSUM_AT]]));
        if expected != found {
            return Err(FormatError::Checksum { what: "header", expected, found });
        }
        let version = u32_at(bytes, 8);
        if version != VERSION || u32_at(bytes, 56) != UNIT_BYTES as u32 {
            return Err(FormatError::Newer(version));
        }
        let layout = Layout { length_bytes: u64_at(bytes, 40), part_bytes: u64_at(bytes, 48) };
        let part = u32_at(bytes, 12);
        if !layout.is_possible() || part >= layout.parts() {
            let Layout { length_bytes, part_bytes } = layout;
            return Err(FormatError::Impossible { length_bytes, part_bytes, part });
        }
        let writer = &bytes[96..96 + WRITER_BYTES];
        let end = writer.iter().position(|&byte| byte == 0).unwrap_or(WRITER_BYTES);
        Ok(Self {
            pool: Uuid::from_bytes(array_at(bytes, 16)),
            object: ObjectId(u64_at(bytes, 32)),
            part,
            layout,
            digest: Digest(array_at(bytes, 64)),
            writer: String::from_utf8_lossy(&writer[..end]).into_owned(),
            table_checksum: u32_at(bytes, 60),
        })
    }

    /// Returns true if both headers are of one object with the same content, cut alike.
    #[must_use]
    pub fn is_same_object(&self, other: &Self) -> bool {
        self.pool == other.pool
            && self.object == other.object
            && self.layout == other.layout
            && self.digest == other.digest
    }
}

/// The checksums of an object's units, as they are stored.
#[must_use]
pub fn encode_table(checksums: &[u32]) -> Vec<u8> {
    checksums.iter().flat_map(|checksum| checksum.to_le_bytes()).collect()
}

/// The checksums behind the header of a first part, which `bytes` begin with.
///
/// # Errors
/// [`FormatError::Short`] if there are not enough bytes, [`FormatError::Checksum`] if they are not
/// those that were written.
pub fn decode_table(header: &Header, bytes: &[u8]) -> Result<Vec<u32>, FormatError> {
    let expected = header.layout.content_offset_bytes(0);
    let Some(table) = bytes.get(HEADER_BYTES..expected as usize) else {
        return Err(FormatError::Short { found: bytes.len() as u64, expected });
    };
    let (expected, found) = (header.table_checksum, crc32c([table]));
    if expected != found {
        return Err(FormatError::Checksum { what: "table of checksums", expected, found });
    }
    let entries = table.chunks_exact(TABLE_ENTRY_BYTES);
    Ok(entries.map(|entry| u32_at(entry, 0)).collect())
}

/// The checksum of a unit, bound to its place: a unit of another pool, object or number, though
/// whole, has another one.
#[must_use]
pub fn unit_checksum(pool: Uuid, object: ObjectId, unit: u64, bytes: &[u8]) -> u32 {
    crc32c([pool.as_bytes(), &object.0.to_le_bytes(), &unit.to_le_bytes(), bytes])
}

fn array_at<const BYTES: usize>(bytes: &[u8], at: usize) -> [u8; BYTES] {
    *bytes[at..].first_chunk().expect("the fields lie within what was measured")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
