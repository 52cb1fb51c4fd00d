//! What the catalogue says, one record at a time.
//!
//! A record needs no checksum and no length of its own: the log that holds it has both.

use super::fields::Fields;
use super::superblock::{
    DeviceEntry, Residence, class_number, class_of, decode_extent, encode_extent,
};
use crate::name::PoolName;
use crate::{DeviceIndex, Extent, ObjectId};

/// The most copies that a log has.
pub const MOST_COPIES: usize = 2;

/// A committed mblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MblockEntry {
    /// Its name.
    pub id: ObjectId,
    /// How long it is, in bytes.
    pub length_bytes: u64,
    /// Its data, in whole blocks, zeros behind the last byte.
    pub data: Extent,
    /// Its checksums, in whole blocks of the same device.
    pub table: Extent,
    /// The checksum of the checksums.
    pub table_checksum: u32,
}

/// A client's mlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its name.
    pub id: ObjectId,
    /// Where its copies are; 1 or 2.
    pub copies: Vec<Extent>,
}

/// A client's MDC. Its logs have the two ids that follow its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdcEntry {
    /// Its name.
    pub id: ObjectId,
    /// Whether it is the pool's root: the one that clients begin at.
    pub is_root: bool,
    /// Where the copies of each of its logs are.
    pub halves: [Vec<Extent>; 2],
}

/// Something that a pool has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectEntry {
    /// Written once.
    Mblock(MblockEntry),
    /// Appended to.
    Log(LogEntry),
    /// A pair of logs.
    Mdc(MdcEntry),
}

impl ObjectEntry {
    /// Its name.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        match self {
            Self::Mblock(entry) => entry.id,
            Self::Log(entry) => entry.id,
            Self::Mdc(entry) => entry.id,
        }
    }

    /// All that it occupies.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let (fixed, lists): (&[Extent], [&[Extent]; 2]) = match self {
            Self::Mblock(entry) => {
                return Extents::Two([entry.data, entry.table].into_iter());
            }
            Self::Log(entry) => (&entry.copies, [&[], &[]]),
            Self::Mdc(entry) => (&[], [&entry.halves[0], &entry.halves[1]]),
        };
        Extents::Lists(fixed.iter().chain(lists[0]).chain(lists[1]).copied())
    }
}

/// One of two iterators.
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

/// A record of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The pool is about to be opened for writing: superblocks with these numbers may appear.
    Opening {
        /// Higher each time.
        number: u64,
        /// What tells it from an opening of the same number, of a copy of the pool.
        nonce: u64,
    },
    /// All superblocks carry the numbers of this opening.
    Opened {
        /// The opening.
        number: u64,
    },
    /// What the pool is called from now on.
    Name(PoolName),
    /// Whether the pool is exported.
    Residence(Residence),
    /// A device of the pool, new or with another length.
    Device(DeviceEntry),
    /// No id from this one on was ever given.
    Ids {
        /// The first that is new for certain.
        below: u64,
    },
    /// An object was committed.
    Commit(ObjectEntry),
    /// An object was deleted.
    Delete(ObjectId),
}

const OPENING: u8 = 1;
const OPENED: u8 = 2;
const NAME: u8 = 3;
const RESIDENCE: u8 = 4;
const DEVICE: u8 = 5;
const IDS: u8 = 6;
const MBLOCK: u8 = 7;
const LOG: u8 = 8;
const MDC: u8 = 9;
const DELETE: u8 = 10;

impl Record {
    /// It as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        match self {
            Self::Opening { number, nonce } => {
                bytes.push(OPENING);
                bytes.extend(number.to_le_bytes());
                bytes.extend(nonce.to_le_bytes());
            }
            Self::Opened { number } => {
                bytes.push(OPENED);
                bytes.extend(number.to_le_bytes());
            }
            Self::Name(name) => {
                bytes.extend([NAME, name.as_str().len() as u8]);
                bytes.extend(name.as_str().bytes());
            }
            Self::Residence(residence) => {
                bytes.extend([RESIDENCE, u8::from(*residence == Residence::Exported)]);
            }
            Self::Device(entry) => {
                bytes.extend([DEVICE, class_number(entry.class)]);
                bytes.extend(entry.index.0.to_le_bytes());
                bytes.extend(entry.id.to_le_bytes());
                bytes.extend(entry.bytes.to_le_bytes());
            }
            Self::Ids { below } => {
                bytes.push(IDS);
                bytes.extend(below.to_le_bytes());
            }
            Self::Commit(entry) => encode_object(entry, &mut bytes),
            Self::Delete(id) => {
                bytes.push(DELETE);
                bytes.extend(id.0.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads it back; none where the bytes are no record, or more than one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let record = match fields.u8()? {
            OPENING => Self::Opening { number: fields.count()?, nonce: fields.u64()? },
            OPENED => Self::Opened { number: fields.u64()? },
            NAME => {
                let length = usize::from(fields.u8()?);
                Self::Name(std::str::from_utf8(fields.bytes(length)?).ok()?.parse().ok()?)
            }
            RESIDENCE => Self::Residence(match fields.u8()? {
                0 => Residence::Here,
                1 => Residence::Exported,
                _ => return None,
            }),
            DEVICE => {
                let class = class_of(fields.u8()?)?;
                let index = DeviceIndex(fields.u16()?);
                let (id, bytes) = (fields.u128()?, fields.u64()?);
                Self::Device(DeviceEntry { index, id, class, bytes })
            }
            IDS => Self::Ids { below: fields.count()? },
            MBLOCK => Self::Commit(decode_mblock(&mut fields)?),
            LOG => {
                let id = ObjectId(fields.count()?);
                Self::Commit(ObjectEntry::Log(LogEntry { id, copies: decode_copies(&mut fields)? }))
            }
            MDC => Self::Commit(decode_mdc(&mut fields)?),
            DELETE => Self::Delete(ObjectId(fields.u64()?)),
            _ => return None,
        };
        fields.is_at_end().then_some(record)
    }
}

fn encode_object(entry: &ObjectEntry, bytes: &mut Vec<u8>) {
    match entry {
        ObjectEntry::Mblock(entry) => {
            bytes.push(MBLOCK);
            bytes.extend(entry.id.0.to_le_bytes());
            bytes.extend(entry.length_bytes.to_le_bytes());
            encode_extent(&entry.data, bytes);
            encode_extent(&entry.table, bytes);
            bytes.extend(entry.table_checksum.to_le_bytes());
        }
        ObjectEntry::Log(entry) => {
            bytes.push(LOG);
            bytes.extend(entry.id.0.to_le_bytes());
            encode_copies(&entry.copies, bytes);
        }
        ObjectEntry::Mdc(entry) => {
            bytes.push(MDC);
            bytes.extend(entry.id.0.to_le_bytes());
            bytes.push(u8::from(entry.is_root));
            entry.halves.iter().for_each(|copies| encode_copies(copies, bytes));
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent() -> impl Strategy<Value = Extent> {
        let block = crate::BLOCK_BYTES as u64;
        (any::<u16>(), 0..1_u64 << 40, 1..1_u64 << 20).prop_map(move |(device, first, blocks)| {
            let device = DeviceIndex(device);
            Extent { device, offset_bytes: first * block, bytes: blocks * block }
        })
    }

    fn copies() -> impl Strategy<Value = Vec<Extent>> {
        prop::collection::vec(extent(), 1..=MOST_COPIES)
    }

    fn mblock() -> impl Strategy<Value = ObjectEntry> {
        (any::<u64>(), extent(), extent(), any::<u32>(), 0..4096_u64).prop_map(
            |(id, data, table, table_checksum, missing)| {
                let bytes = (data.bytes / 1024).next_multiple_of(crate::BLOCK_BYTES as u64);
                ObjectEntry::Mblock(MblockEntry {
                    id: ObjectId(id),
                    length_bytes: data.bytes - missing,
                    data,
                    table: Extent { device: data.device, bytes, ..table },
                    table_checksum,
                })
            },
        )
    }

    fn record() -> impl Strategy<Value = Record> {
        let id = || any::<u64>().prop_map(ObjectId);
        let class = prop::sample::select(&crate::MediaClass::ALL[..]);
        let device = (any::<u16>(), any::<u128>(), class, any::<u64>());
        prop_oneof![
            any::<[u64; 2]>().prop_map(|[number, nonce]| Record::Opening { number, nonce }),
            any::<u64>().prop_map(|number| Record::Opened { number }),
            "[a-z0-9][a-z.]{0,62}".prop_map(|name| Record::Name(name.parse().unwrap())),
            any::<bool>().prop_map(|exported| Record::Residence(if exported {
                Residence::Exported
            } else {
                Residence::Here
            })),
            device.prop_map(|(index, id, class, bytes)| Record::Device(DeviceEntry {
                index: DeviceIndex(index),
                id,
                class,
                bytes
            })),
            any::<u64>().prop_map(|below| Record::Ids { below }),
            mblock().prop_map(Record::Commit),
            (id(), copies())
                .prop_map(|(id, copies)| Record::Commit(ObjectEntry::Log(LogEntry { id, copies }))),
            (id(), any::<bool>(), copies(), copies()).prop_map(|(id, is_root, first, second)| {
                let halves = [first, second];
                Record::Commit(ObjectEntry::Mdc(MdcEntry { id, is_root, halves }))
            }),
            id().prop_map(Record::Delete),
        ]
    }

    #[test]
    fn numbers_that_have_no_successor_are_none() {
        let (id, last) = (ObjectId(u64::MAX), u64::MAX);
        let extent = Extent { device: DeviceIndex(0), offset_bytes: 0, bytes: 65_536 };
        let halves = [vec![extent], vec![extent]];
        for record in [
            Record::Opening { number: last, nonce: 1 },
            Record::Ids { below: last },
            Record::Ids { below: last - 100 },
            Record::Commit(ObjectEntry::Log(LogEntry { id, copies: vec![extent] })),
            Record::Commit(ObjectEntry::Mdc(MdcEntry { id, is_root: false, halves })),
        ] {
            assert_eq!(Record::decode(&record.encode()), None, "{record:?}");
        }
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(record in record()) {
            prop_assert_eq!(Record::decode(&record.encode()), Some(record));
        }

        #[test]
        fn parts_of_records_and_more_than_one_are_none(record in record(), more: u8) {
            let bytes = record.encode();
            for length in 0..bytes.len() {
                // A shorter name is a name, but says how long it is.
                prop_assert_eq!(Record::decode(&bytes[..length]), None);
            }
            prop_assert_eq!(Record::decode(&[&bytes[..], &[more]].concat()), None);
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(
            kind in 0..12_u8,
            bytes in prop::collection::vec(any::<u8>(), 0..120),
        ) {
            if let Some(record) = Record::decode(&[&[kind], &bytes[..]].concat()) {
                prop_assert_eq!(Record::decode(&record.encode()), Some(record));
            }
        }
    }
}
