//! Records of the catalogue, one for each change.
//!
//! A record needs no checksum and no length of its own: the log that holds it has both.

use super::fields::Fields;
use super::superblock::{DeviceEntry, Residence, class_number, class_of};
use crate::name::PoolName;
use crate::{DeviceIndex, ObjectId};

pub use super::object_entry::{
    ArchivedEntry, LogEntry, MOST_COPIES, MblockEntry, MdcEntry, ObjectEntry,
};

/// The longest URL that an archive can have, in bytes.
pub const LONGEST_URL: usize = 1024;

/// A record of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The pool is about to be opened for writing: superblocks with these numbers may appear.
    Opening {
        /// Higher each time.
        number: u64,
        /// Random number that differs from that of an opening of the same number, of a copy of the pool.
        nonce: u64,
    },
    /// All superblocks carry the numbers of this opening.
    Opened {
        /// The opening.
        number: u64,
    },
    /// New name of the pool.
    Name(PoolName),
    /// New residence of the pool.
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
    /// New URL of the pool's archive.
    Archive(String),
    /// An mblock, which does not change, is somewhere else from now on.
    Move(ObjectEntry),
}

const OPENING: u8 = 1;
const OPENED: u8 = 2;
const NAME: u8 = 3;
const RESIDENCE: u8 = 4;
const DEVICE: u8 = 5;
const IDS: u8 = 6;
const DELETE: u8 = 10;
const ARCHIVE: u8 = 11;
const MOVE: u8 = 13;

impl Record {
    /// Returns the record as bytes.
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
            Self::Commit(entry) => entry.encode(&mut bytes),
            Self::Delete(id) => {
                bytes.push(DELETE);
                bytes.extend(id.0.to_le_bytes());
            }
            Self::Archive(url) => {
                bytes.push(ARCHIVE);
                bytes.extend((url.len() as u16).to_le_bytes());
                bytes.extend(url.bytes());
            }
            Self::Move(entry) => {
                bytes.push(MOVE);
                entry.encode(&mut bytes);
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
            DELETE => Self::Delete(ObjectId(fields.u64()?)),
            ARCHIVE => Self::Archive(decode_url(&mut fields)?),
            MOVE => {
                let first = fields.u8()?;
                let entry = ObjectEntry::decode(first, &mut fields)?;
                entry.length_bytes()?;
                Self::Move(entry)
            }
            object => Self::Commit(ObjectEntry::decode(object, &mut fields)?),
        };
        fields.is_at_end().then_some(record)
    }
}

fn decode_url(fields: &mut Fields<'_>) -> Option<String> {
    let length = usize::from(fields.u16()?);
    let letters = fields.bytes(length).filter(|_| (1..=LONGEST_URL).contains(&length))?;
    Some(std::str::from_utf8(letters).ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::super::object_entry::LONGEST_ARCHIVED_BYTES;
    use super::*;
    use crate::Extent;
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

    fn archived() -> impl Strategy<Value = ObjectEntry> {
        (any::<u64>(), 1..=LONGEST_ARCHIVED_BYTES, any::<[u8; 32]>()).prop_map(
            |(id, length_bytes, digest)| {
                ObjectEntry::Archived(ArchivedEntry { id: ObjectId(id), length_bytes, digest })
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
            archived().prop_map(Record::Commit),
            prop_oneof![mblock(), archived()].prop_map(Record::Move),
            "s3://[a-z]{1,60}/[a-zé/]{0,60}".prop_map(Record::Archive),
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
            kind in 0..16_u8,
            bytes in prop::collection::vec(any::<u8>(), 0..120),
        ) {
            if let Some(record) = Record::decode(&[&[kind], &bytes[..]].concat()) {
                prop_assert_eq!(Record::decode(&record.encode()), Some(record));
            }
        }
    }

    #[test]
    fn only_mblocks_move_and_a_url_has_a_length_that_it_can_have() {
        let copies = vec![Extent { device: DeviceIndex(0), offset_bytes: 0, bytes: 4096 }];
        let log = LogEntry { id: ObjectId(16), copies };
        assert_eq!(Record::decode(&Record::Move(ObjectEntry::Log(log)).encode()), None);
        let twice = Record::Move(ObjectEntry::Archived(ArchivedEntry {
            id: ObjectId(16),
            length_bytes: 1,
            digest: [0; 32],
        }));
        assert_eq!(Record::decode(&[&[MOVE], &twice.encode()[..]].concat()), None);
        let url = |length: usize| Record::Archive("u".repeat(length));
        assert_eq!(Record::decode(&url(LONGEST_URL).encode()), Some(url(LONGEST_URL)));
        for length in [0, LONGEST_URL + 1] {
            assert_eq!(Record::decode(&url(length).encode()), None);
        }
    }
}
