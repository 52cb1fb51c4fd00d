//! Entries of the catalogue, each for one object.

use super::fields::Fields;
use super::superblock::{decode_extent, encode_extent};
use crate::{Extent, ObjectId};

/// The longest object that an archive takes, in bytes.
pub(super) const LONGEST_ARCHIVED_BYTES: u64 = 64 << 30;

/// The most copies that a log has.
pub const MOST_COPIES: usize = 2;

/// A committed mblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MblockEntry {
    /// Id of the object.
    pub id: ObjectId,
    /// Length, in bytes.
    pub length_bytes: u64,
    /// Extent of the data, in whole blocks, zeros behind the last byte.
    pub data: Extent,
    /// Extent of the checksums, in whole blocks of the same device.
    pub table: Extent,
    /// The checksum of the checksums.
    pub table_checksum: u32,
}

/// A committed mblock that is in the pool's archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchivedEntry {
    /// Id of the object.
    pub id: ObjectId,
    /// Length, in bytes.
    pub length_bytes: u64,
    /// SHA-256 of its bytes, which is in its header in the archive, too.
    pub digest: [u8; 32],
}

/// A client's mlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Id of the object.
    pub id: ObjectId,
    /// Extents of the copies; 1 or 2.
    pub copies: Vec<Extent>,
}

/// A client's MDC. Its logs have the two ids that follow its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdcEntry {
    /// Id of the object.
    pub id: ObjectId,
    /// True if the MDC is the pool's root: the one that clients begin at.
    pub is_root: bool,
    /// Extents of the copies of each of the two logs.
    pub halves: [Vec<Extent>; 2],
}

/// Something that a pool has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectEntry {
    /// Written once.
    Mblock(MblockEntry),
    /// Written once, and in the archive.
    Archived(ArchivedEntry),
    /// Appended to.
    Log(LogEntry),
    /// A pair of logs.
    Mdc(MdcEntry),
}

impl ObjectEntry {
    /// Returns the id of the object.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        match self {
            Self::Mblock(entry) => entry.id,
            Self::Archived(entry) => entry.id,
            Self::Log(entry) => entry.id,
            Self::Mdc(entry) => entry.id,
        }
    }

    /// Returns the length, in bytes; none where the object is no mblock.
    #[must_use]
    pub const fn length_bytes(&self) -> Option<u64> {
        match self {
            Self::Mblock(entry) => Some(entry.length_bytes),
            Self::Archived(entry) => Some(entry.length_bytes),
            Self::Log(_) | Self::Mdc(_) => None,
        }
    }

    /// All that it occupies of the pool's devices.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let (fixed, lists): (&[Extent], [&[Extent]; 2]) = match self {
            Self::Mblock(entry) => {
                return Extents::Two([entry.data, entry.table].into_iter());
            }
            Self::Archived(_) => (&[], [&[], &[]]),
            Self::Log(entry) => (&entry.copies, [&[], &[]]),
            Self::Mdc(entry) => (&[], [&entry.halves[0], &entry.halves[1]]),
        };
        Extents::Lists(fixed.iter().chain(lists[0]).chain(lists[1]).copied())
    }
}

/// Either of two iterators.
enum Extents<A, B> {
    Two(A),
    Lists(B),
}

impl<A: Iterator<Item = Extent>, B: Iterator<Item = Extent>> Iterator for Extents<A, B> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        match self {
            Self::Two(extents) => extents.next(),
            Self::Lists(extents) => extents.next(),
        }
    }
}

const MBLOCK: u8 = 7;
const LOG: u8 = 8;
const MDC: u8 = 9;
const ARCHIVED: u8 = 12;

impl ObjectEntry {
    /// The record that it was committed.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Mblock(entry) => {
                bytes.push(MBLOCK);
                bytes.extend(entry.id.0.to_le_bytes());
                bytes.extend(entry.length_bytes.to_le_bytes());
                encode_extent(&entry.data, bytes);
                encode_extent(&entry.table, bytes);
                bytes.extend(entry.table_checksum.to_le_bytes());
            }
            Self::Archived(entry) => {
                bytes.push(ARCHIVED);
                bytes.extend(entry.id.0.to_le_bytes());
                bytes.extend(entry.length_bytes.to_le_bytes());
                bytes.extend(entry.digest);
            }
            Self::Log(entry) => {
                bytes.push(LOG);
                bytes.extend(entry.id.0.to_le_bytes());
                encode_copies(&entry.copies, bytes);
            }
            Self::Mdc(entry) => {
                bytes.push(MDC);
                bytes.extend(entry.id.0.to_le_bytes());
                bytes.push(u8::from(entry.is_root));
                entry.halves.iter().for_each(|copies| encode_copies(copies, bytes));
            }
        }
    }

    /// Reads what follows the first byte of a record; none where that says that no object follows.
    pub(super) fn decode(first: u8, fields: &mut Fields<'_>) -> Option<Self> {
        match first {
            MBLOCK => decode_mblock(fields),
            ARCHIVED => {
                let (id, length_bytes) = (ObjectId(fields.count()?), fields.u64()?);
                let digest = fields.array()?;
                let entry = ArchivedEntry { id, length_bytes, digest };
                let is_sane = (1..=LONGEST_ARCHIVED_BYTES).contains(&length_bytes);
                is_sane.then_some(Self::Archived(entry))
            }
            LOG => {
                let id = ObjectId(fields.count()?);
                Some(Self::Log(LogEntry { id, copies: decode_copies(fields)? }))
            }
            MDC => decode_mdc(fields),
            _ => None,
        }
    }
}

fn encode_copies(copies: &[Extent], bytes: &mut Vec<u8>) {
    bytes.push(copies.len() as u8);
    copies.iter().for_each(|extent| encode_extent(extent, bytes));
}

fn decode_copies(fields: &mut Fields<'_>) -> Option<Vec<Extent>> {
    let count = usize::from(fields.u8()?);
    if !(1..=MOST_COPIES).contains(&count) {
        return None;
    }
    (0..count).map(|_| decode_extent(fields)).collect()
}

fn decode_mblock(fields: &mut Fields<'_>) -> Option<ObjectEntry> {
    let id = ObjectId(fields.count()?);
    let length_bytes = fields.u64()?;
    let (data, table) = (decode_extent(fields)?, decode_extent(fields)?);
    let table_checksum = fields.u32()?;
    let is_sane = (1..=data.bytes).contains(&length_bytes)
        && data.device == table.device
        && table.bytes >= length_bytes.div_ceil(crate::UNIT_BYTES as u64) * 4;
    let entry = MblockEntry { id, length_bytes, data, table, table_checksum };
    is_sane.then_some(ObjectEntry::Mblock(entry))
}

fn decode_mdc(fields: &mut Fields<'_>) -> Option<ObjectEntry> {
    let id = ObjectId(fields.count()?);
    let is_root = match fields.u8()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let halves = [decode_copies(fields)?, decode_copies(fields)?];
    Some(ObjectEntry::Mdc(MdcEntry { id, is_root, halves }))
}
