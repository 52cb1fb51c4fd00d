//! The last block of a pack.

use bindery_pool::BLOCK_BYTES;

use super::group::GROUP_ENTRY_BYTES;
use crate::fields::Fields;
use crate::format_error::FormatError;
use crate::object::{HEAD_BYTES, has_checksum, put_checksum};
use crate::page_digest::DIGEST_BYTES;
use crate::seal::{CHECK_BYTES, Check};

const MAGIC: &[u8; 8] = b"BndrPkEn";
const CHECKSUM_AT: usize = 8;
const WHAT: &str = "last block";

/// Last block of a pack: where its table and its digests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackTail {
    /// Id of the pack, as in its head.
    pub(crate) id: u128,
    pub(crate) groups: u32,
    pub(crate) pages: u32,
    /// Start of the table in the pack, in bytes: a whole number of blocks.
    pub(crate) table_at: u64,
    pub(crate) table_checksum: u32,
    /// Check of the digests.
    pub(crate) digests_check: Check,
}

impl PackTail {
    pub(crate) fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[..8].copy_from_slice(MAGIC);
        block[16..32].copy_from_slice(&self.id.to_le_bytes());
        block[32..36].copy_from_slice(&self.groups.to_le_bytes());
        block[36..40].copy_from_slice(&self.pages.to_le_bytes());
        block[40..48].copy_from_slice(&self.table_at.to_le_bytes());
        block[48..52].copy_from_slice(&self.table_checksum.to_le_bytes());
        block[52..52 + CHECK_BYTES].copy_from_slice(&self.digests_check);
        put_checksum(&mut block, CHECKSUM_AT);
        block
    }

    /// Reads the last block of a pack of `length_bytes`.
    pub(crate) fn decode(block: &[u8], length_bytes: u64) -> Result<Self, FormatError> {
        let block = block.try_into().map_err(|_| FormatError::Short { what: WHAT })?;
        if !has_checksum(block, CHECKSUM_AT) {
            return Err(FormatError::Checksum { what: WHAT });
        }
        let mut fields = Fields::new(WHAT, block);
        if fields.array::<8>()? != *MAGIC {
            return Err(FormatError::Foreign { what: "pack" });
        }
        fields.u64()?;
        let tail = Self {
            id: fields.u128()?,
            groups: fields.u32()?,
            pages: fields.u32()?,
            table_at: fields.u64()?,
            table_checksum: fields.u32()?,
            digests_check: fields.array()?,
        };
        let is_possible = tail.pages >= tail.groups
            && tail.table_at >= HEAD_BYTES as u64
            && tail.table_at.is_multiple_of(BLOCK_BYTES as u64)
            && tail.table_at <= length_bytes
            && tail.table_at + blocks_of(tail.table_bytes()) + blocks_of(tail.digests_bytes())
                == length_bytes - BLOCK_BYTES as u64;
        if is_possible {
            Ok(tail)
        } else {
            Err(FormatError::impossible(WHAT, "it does not add up"))
        }
    }

    pub(crate) const fn table_bytes(&self) -> u64 {
        self.groups as u64 * GROUP_ENTRY_BYTES as u64
    }

    pub(crate) const fn digests_bytes(&self) -> u64 {
        self.pages as u64 * DIGEST_BYTES as u64
    }

    /// Returns the ordinal of the digests among the pieces of the pack: the groups come before.
    pub(crate) const fn digests_ordinal(&self) -> u64 {
        self.groups as u64
    }

    pub(crate) const fn digests_at(&self) -> u64 {
        self.table_at + blocks_of(self.table_bytes())
    }
}

/// Returns the length of whole blocks that have so many bytes.
pub(crate) const fn blocks_of(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES as u64)
}
