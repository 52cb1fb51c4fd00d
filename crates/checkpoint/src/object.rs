//! The first block that every object of ours begins with, and objects read and written whole.

use std::sync::Arc;

use bindery_pool::object::{Object, ReadError};
use bindery_pool::write::Writer;
use bindery_pool::{AllocateError, BLOCK_BYTES, MediaClass, Pool};
use bindery_sys::direct::Buffer;

use crate::checksum::crc32c;
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::format_error::FormatError;

/// Length of the head, in bytes.
pub(crate) const HEAD_BYTES: usize = BLOCK_BYTES;

/// Start of the fields of one kind of object in its head.
pub(crate) const KIND_FIELDS_AT: usize = 64;

/// Most bytes that are read at once.
const CHUNK_BYTES: u64 = 1 << 20;

const MAGIC: &[u8; 8] = b"BndrCkpt";
const VERSION: u32 = 1;
const CHECKSUM_AT: usize = 12;
const WHAT: &str = "head";

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Pack = 1,
    Manifest = 2,
    Touched = 3,
}

/// Head of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectHead {
    /// Id of the store that wrote it.
    pub(crate) store: u128,
    /// Id of the object, drawn at random: its key is derived from it.
    pub(crate) id: u128,
    pub(crate) kind: ObjectKind,
    pub(crate) is_sealed: bool,
}

impl ObjectHead {
    /// Encodes the block, with the fields of the kind.
    pub(crate) fn encode(&self, kind_fields: &[u8]) -> [u8; HEAD_BYTES] {
        let mut block = [0; HEAD_BYTES];
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[16..32].copy_from_slice(&self.store.to_le_bytes());
        block[32..48].copy_from_slice(&self.id.to_le_bytes());
        block[48] = self.kind as u8;
        block[49] = u8::from(self.is_sealed);
        block[KIND_FIELDS_AT..KIND_FIELDS_AT + kind_fields.len()].copy_from_slice(kind_fields);
        put_checksum(&mut block, CHECKSUM_AT);
        block
    }

    /// Reads a head. More bytes may follow.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let block = bytes.first_chunk::<HEAD_BYTES>().ok_or(FormatError::Short { what: WHAT })?;
        let mut fields = Fields::new(WHAT, block);
        if fields.array::<8>()? != *MAGIC {
            return Err(FormatError::Foreign { what: "object of a checkpoint" });
        }
        let version = fields.u32()?;
        if !has_checksum(block, CHECKSUM_AT) {
            return Err(FormatError::Checksum { what: WHAT });
        }
        if version != VERSION {
            return Err(FormatError::Newer { what: WHAT, found: version, known: VERSION });
        }
        fields.u32()?;
        let (store, id) = (fields.u128()?, fields.u128()?);
        let kind = match fields.u8()? {
            1 => ObjectKind::Pack,
            2 => ObjectKind::Manifest,
            3 => ObjectKind::Touched,
            _ => return Err(FormatError::impossible(WHAT, "an unknown kind of object")),
        };
        let is_sealed = match fields.u8()? {
            0 => false,
            1 => true,
            _ => return Err(FormatError::impossible(WHAT, "an unknown cipher")),
        };
        Ok(Self { store, id, kind, is_sealed })
    }

    /// Reads the head of an object that must be of a kind.
    pub(crate) fn expect(bytes: &[u8], kind: ObjectKind) -> Result<Self, FormatError> {
        let head = Self::decode(bytes)?;
        if head.kind == kind {
            return Ok(head);
        }
        Err(FormatError::impossible(WHAT, "it is another kind of object"))
    }
}

/// Puts the CRC-32C of a block, with zeros in its place, at `at`.
pub(crate) fn put_checksum(block: &mut [u8; BLOCK_BYTES], at: usize) {
    block[at..at + 4].fill(0);
    let checksum = crc32c([&block[..]]);
    block[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// Returns true if a block has the checksum that [`put_checksum`] puts.
pub(crate) fn has_checksum(block: &[u8; BLOCK_BYTES], at: usize) -> bool {
    let found = crc32c([&block[..at], &[0; 4], &block[at + 4..]]);
    block[at..at + 4] == found.to_le_bytes()
}

/// Begins an object and appends all of its bytes. Nobody sees it before it is committed.
pub(crate) fn write_whole(
    pool: &Pool,
    class: MediaClass,
    bytes: &[u8],
) -> Result<Writer, CheckpointError> {
    let mut writer = pool.allocate_mblock(class, bytes.len() as u64)?;
    writer.append(bytes)?;
    Ok(writer)
}

/// Begins an object of up to `capacity(pages)` bytes, for fewer pages where there is less room. Returns the
/// number of pages that it has room for.
pub(crate) fn allocate_some(
    pool: &Pool,
    class: MediaClass,
    mut pages: u32,
    capacity: impl Fn(u32) -> u64,
) -> Result<(Writer, u32), CheckpointError> {
    loop {
        match pool.allocate_mblock(class, capacity(pages)) {
            Ok(writer) => return Ok((writer, pages)),
            Err(AllocateError::NoSpace { .. }) if pages > 16 => pages /= 2,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads a range of an object. Blocks.
pub(crate) fn read_range(
    object: &dyn Object,
    offset_bytes: u64,
    bytes: u64,
) -> Result<Vec<u8>, ReadError> {
    let block = BLOCK_BYTES as u64;
    let end = offset_bytes.saturating_add(bytes).min(object.length_bytes());
    let mut read = Vec::new();
    let mut at = offset_bytes / block * block;
    while at < end {
        let length = (end - at).min(CHUNK_BYTES).next_multiple_of(block);
        let mut buffer = Buffer::zeroed(length as usize);
        object.read(at, &mut buffer)?;
        let skipped = offset_bytes.saturating_sub(at) as usize;
        let wanted = (end - at).min(length) as usize;
        read.extend_from_slice(&buffer[skipped..wanted]);
        at += length;
    }
    Ok(read)
}

/// Reads all of an object. Blocks.
pub(crate) fn read_whole(object: &Arc<dyn Object>) -> Result<Vec<u8>, ReadError> {
    read_range(&**object, 0, object.length_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back_and_damage_is_seen() {
        let head = ObjectHead { store: 1, id: u128::MAX, kind: ObjectKind::Pack, is_sealed: true };
        let block = head.encode(b"fields");
        assert_eq!(ObjectHead::decode(&block), Ok(head));
        assert_eq!(&block[KIND_FIELDS_AT..][..6], b"fields");
        for at in 0..HEAD_BYTES {
            let mut damaged = block;
            damaged[at] ^= 0x10;
            ObjectHead::decode(&damaged).unwrap_err();
        }
        ObjectHead::decode(&block[..HEAD_BYTES - 1]).unwrap_err();
        ObjectHead::expect(&block, ObjectKind::Manifest).unwrap_err();
    }
}
