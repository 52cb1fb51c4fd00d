//! Superblocks: what a device says about itself, and where the catalogue of its pool is.
//!
//! Each device has two, at [`SUPERBLOCK_OFFSETS`], written one after the other with a sync between, so
//! that one of them is whole at any time. The one with the higher revision counts.

use thiserror::Error;

use super::fields::Fields;
use crate::crc::crc32c;
use crate::name::{LONGEST_NAME, PoolName};
use crate::{BLOCK_BYTES, DeviceIndex, Extent, MediaClass};

/// Offsets of the two copies, in bytes from the device's start.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];

/// Bytes at the start of each device that no object uses.
pub const HEAD_BYTES: u64 = 128 << 10;

/// The newest format that this code knows: that of pools with an archive.
pub const VERSION: u32 = 2;

/// The format of pools without an archive, which older code can use.
const VERSION_WITHOUT_ARCHIVE: u32 = 1;

/// The most devices of a pool.
pub const MOST_DEVICES: usize = 64;

const MAGIC: [u8; 8] = *b"BndrPool";
const CHECKSUM_AT: usize = 12;
const USED_BYTES: usize = 256 + MOST_DEVICES * 32;

/// A device as its pool knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Index of the device in the pool's table.
    pub index: DeviceIndex,
    /// Id of the device, wherever it is attached.
    pub id: u128,
    /// Media class of the device.
    pub class: MediaClass,
    /// Bytes of the device that the pool uses.
    pub bytes: u64,
}

/// Residence of a pool: here, or waiting to be taken elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// The pool is used where it is.
    Here,
    /// The pool was exported, and is to be imported before it is used again.
    Exported,
}

/// Content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Number of the copy: 0 or 1.
    pub copy: u8,
    /// Higher each time that this device's superblocks are written.
    pub revision: u64,
    /// The pool.
    pub pool: u128,
    /// Name of the pool.
    pub name: PoolName,
    /// Residence of the pool.
    pub residence: Residence,
    /// The device that it is on.
    pub device: DeviceIndex,
    /// The last opening for writing that this device took part in.
    pub opening: u64,
    /// Random number that differs from that of an opening of the same number, of a copy of the pool.
    pub nonce: u64,
    /// The catalogue: two logs in two copies each.
    pub catalogue: [[Extent; 2]; 2],
    /// All devices of the pool, this one among them.
    pub devices: Vec<DeviceEntry>,
    /// True if the catalogue may have records that only code with archives knows.
    pub has_archive: bool,
}

/// A block that is no superblock that can be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NoSuperblock {
    /// The block does not begin like a superblock.
    #[error("there is no superblock")]
    Absent,
    /// The superblock is not as it was written.
    #[error("the superblock is damaged")]
    Damaged,
    /// The device cannot read it, though it can read the other one.
    #[error("the superblock cannot be read")]
    Unreadable,
    /// The superblock was written by later code.
    #[error("its format is version {version}, and this program knows {VERSION} and older")]
    Newer {
        /// The version that it has.
        version: u32,
    },
}

impl Superblock {
    /// The device that it is on, in its own table.
    #[must_use]
    pub fn entry(&self) -> Option<&DeviceEntry> {
        self.devices.iter().find(|entry| entry.index == self.device)
    }

    /// Writes it into a block.
    ///
    /// # Panics
    /// If the block is none, or there are more devices than [`MOST_DEVICES`].
    pub fn encode(&self, block: &mut [u8]) {
        assert!(block.len() == BLOCK_BYTES && self.devices.len() <= MOST_DEVICES);
        let mut bytes = Vec::with_capacity(USED_BYTES);
        bytes.extend(MAGIC);
        let version = if self.has_archive { VERSION } else { VERSION_WITHOUT_ARCHIVE };
        bytes.extend(version.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(self.revision.to_le_bytes());
        bytes.extend(self.pool.to_le_bytes());
        bytes.extend(self.opening.to_le_bytes());
        bytes.extend(self.nonce.to_le_bytes());
        bytes.extend(self.device.0.to_le_bytes());
        bytes.push(self.copy);
        bytes.push(u8::from(self.residence == Residence::Exported));
        bytes.extend((self.devices.len() as u32).to_le_bytes());
        self.catalogue.iter().flatten().for_each(|extent| encode_extent(extent, &mut bytes));
        bytes.push(self.name.as_str().len() as u8);
        bytes.extend(self.name.as_str().bytes());
        bytes.resize(256, 0);
        for entry in &self.devices {
            bytes.extend(entry.id.to_le_bytes());
            bytes.extend(entry.bytes.to_le_bytes());
            bytes.extend(entry.index.0.to_le_bytes());
            bytes.extend([class_number(entry.class), 0, 0, 0, 0, 0]);
        }
        block.fill(0);
        block[..bytes.len()].copy_from_slice(&bytes);
        let checksum = crc32c([block]);
        block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads copy `copy` from a block.
    ///
    /// The checksum of every version covers the whole block and stands where it stands here, so that a
    /// newer version is not taken for damage.
    ///
    /// # Errors
    /// [`NoSuperblock`].
    ///
    /// # Panics
    /// If the block is none.
    pub fn decode(copy: u8, block: &[u8]) -> Result<Self, NoSuperblock> {
        assert_eq!(block.len(), BLOCK_BYTES);
        if block[..MAGIC.len()] != MAGIC {
            return Err(NoSuperblock::Absent);
        }
        let mut fields = Fields::new(&block[MAGIC.len()..]);
        let version = fields.u32().ok_or(NoSuperblock::Damaged)?;
        if fields.u32() != Some(checksum_of(block)) {
            return Err(NoSuperblock::Damaged);
        }
        if version > VERSION {
            return Err(NoSuperblock::Newer { version });
        }
        let superblock = decode_fields(fields, version).filter(|found| found.copy == copy);
        superblock.filter(|found| found.entry().is_some()).ok_or(NoSuperblock::Damaged)
    }
}

/// The checksum of a block in whose checksum field there is nothing.
fn checksum_of(block: &[u8]) -> u32 {
    crc32c([&block[..CHECKSUM_AT], &[0; 4], &block[CHECKSUM_AT + 4..]])
}

fn decode_fields(mut fields: Fields<'_>, version: u32) -> Option<Superblock> {
    let revision = fields.count()?;
    let pool = fields.u128()?;
    let (opening, nonce) = (fields.count()?, fields.u64()?);
    let device = DeviceIndex(fields.u16()?);
    let copy = fields.u8()?;
    let residence = match fields.u8()? {
        0 => Residence::Here,
        1 => Residence::Exported,
        _ => return None,
    };
    let count = fields.u32()? as usize;
    let mut extent = || decode_extent(&mut fields);
    let catalogue = [[extent()?, extent()?], [extent()?, extent()?]];
    let length = usize::from(fields.u8()?);
    let letters = fields.bytes(LONGEST_NAME)?.get(..length)?;
    let name = std::str::from_utf8(letters).ok()?.parse().ok()?;
    // Up to where the table begins.
    fields.bytes(256 - 64 - 4 * EXTENT_BYTES - 1 - LONGEST_NAME)?;
    if count > MOST_DEVICES {
        return None;
    }
    let devices = (0..count).map(|_| decode_device(&mut fields)).collect::<Option<_>>()?;
    Some(Superblock {
        copy,
        revision,
        pool,
        name,
        residence,
        device,
        opening,
        nonce,
        catalogue,
        devices,
        has_archive: version > VERSION_WITHOUT_ARCHIVE,
    })
}

fn decode_device(fields: &mut Fields<'_>) -> Option<DeviceEntry> {
    let (id, bytes) = (fields.u128()?, fields.u64()?);
    let index = DeviceIndex(fields.u16()?);
    let class = class_of(fields.u8()?)?;
    fields.bytes(5)?;
    Some(DeviceEntry { index, id, class, bytes })
}

/// Bytes that an extent takes.
pub(crate) const EXTENT_BYTES: usize = 18;

pub(crate) fn encode_extent(extent: &Extent, bytes: &mut Vec<u8>) {
    bytes.extend(extent.device.0.to_le_bytes());
    bytes.extend(extent.offset_bytes.to_le_bytes());
    bytes.extend(extent.bytes.to_le_bytes());
}

pub(crate) fn decode_extent(fields: &mut Fields<'_>) -> Option<Extent> {
    let device = DeviceIndex(fields.u16()?);
    let (offset_bytes, bytes) = (fields.u64()?, fields.u64()?);
    let is_whole = |count: u64| count.is_multiple_of(BLOCK_BYTES as u64);
    let is_sane = is_whole(offset_bytes) && is_whole(bytes);
    (is_sane && offset_bytes.checked_add(bytes).is_some()).then_some(Extent {
        device,
        offset_bytes,
        bytes,
    })
}

/// The number of a class in the format.
pub(crate) const fn class_number(class: MediaClass) -> u8 {
    match class {
        MediaClass::Capacity => 0,
        MediaClass::Staging => 1,
        MediaClass::Archive => 2,
    }
}

pub(crate) const fn class_of(number: u8) -> Option<MediaClass> {
    match number {
        0 => Some(MediaClass::Capacity),
        1 => Some(MediaClass::Staging),
        2 => Some(MediaClass::Archive),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock(seed: u64, devices: u16) -> Superblock {
        let extent = |at: u64| Extent {
            device: DeviceIndex((at % u64::from(devices)) as u16),
            offset_bytes: (at + seed % 1000) * 4096,
            bytes: 65_536,
        };
        let entry = |index: u16| DeviceEntry {
            index: DeviceIndex(index),
            id: u128::from(seed) << 64 | u128::from(index),
            class: [MediaClass::Capacity, MediaClass::Staging][usize::from(index % 2)],
            bytes: seed ^ u64::from(index),
        };
        Superblock {
            copy: (seed % 2) as u8,
            revision: seed,
            pool: u128::from(seed) << 33,
            name: format!("pool-{seed}").parse().unwrap(),
            residence: if seed.is_multiple_of(3) { Residence::Exported } else { Residence::Here },
            device: DeviceIndex((seed % u64::from(devices)) as u16),
            opening: seed >> 3,
            nonce: !seed,
            catalogue: [[extent(0), extent(1)], [extent(2), extent(3)]],
            devices: (0..devices).map(entry).collect(),
            has_archive: seed.is_multiple_of(2),
        }
    }

    #[test]
    fn older_code_refuses_pools_with_an_archive_and_no_others() {
        for (has_archive, version) in [(false, 1), (true, 2)] {
            let mut block = vec![0; BLOCK_BYTES];
            Superblock { has_archive, ..superblock(1, 2) }.encode(&mut block);
            assert_eq!(block[8..12], u32::to_le_bytes(version));
        }
    }

    proptest! {
        #[test]
        fn superblocks_are_read_as_they_were_written(
            seed: u64,
            devices in 1..=MOST_DEVICES as u16,
        ) {
            let superblock = superblock(seed, devices);
            let mut block = vec![0xa5; BLOCK_BYTES];
            superblock.encode(&mut block);
            prop_assert_eq!(Superblock::decode(superblock.copy, &block), Ok(superblock));
        }

        #[test]
        fn counters_that_have_no_successor_are_damage(seed: u64) {
            for (revision, opening) in [(u64::MAX, 1), (1, u64::MAX)] {
                let forged = Superblock { revision, opening, ..superblock(seed, 4) };
                let mut block = vec![0; BLOCK_BYTES];
                forged.encode(&mut block);
                prop_assert_eq!(
                    Superblock::decode(forged.copy, &block),
                    Err(NoSuperblock::Damaged)
                );
            }
        }

        /// A hostile hand can make any fields at all, with a checksum that is right.
        #[test]
        fn fields_that_nobody_wrote_are_damage(
            seed: u64,
            changes in prop::collection::vec((16..400_usize, any::<u8>()), 1..6),
        ) {
            let mut block = vec![0; BLOCK_BYTES];
            superblock(seed, 4).encode(&mut block);
            for (at, byte) in changes {
                block[at] = byte;
            }
            let checksum = checksum_of(&block);
            block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
            if let Ok(superblock) = Superblock::decode((seed % 2) as u8, &block) {
                let mut again = vec![0; BLOCK_BYTES];
                superblock.encode(&mut again);
                prop_assert_eq!(Superblock::decode(superblock.copy, &again), Ok(superblock));
            }
        }
    }
}
