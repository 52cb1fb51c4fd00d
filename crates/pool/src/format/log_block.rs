//! A block of an mlog.

use thiserror::Error;

use super::le::{put_u16, put_u32, put_u64, put_u128, u16_at, u32_at, u64_at, u128_at};
use crate::crc::crc32c;
use crate::id::ObjectId;
use crate::{BLOCK_BYTES, LogIdentity};

const MAGIC: &[u8; 8] = b"BndryLog";
/// The format that is written, and the latest that is read.
pub(crate) const VERSION: u32 = 1;

// Where fields lie. Magic, version and checksum stay where they are in every version.
const VERSION_AT: usize = 8;
const CHECKSUM_AT: usize = 12;
const POOL_AT: usize = 16;
const LOG_AT: usize = 32;
const GENERATION_AT: usize = 40;
const SESSION_AT: usize = 48;
const SEQUENCE_AT: usize = 56;
const DURABLE_AT: usize = 64;
const PREVIOUS_AT: usize = 72;
const KIND_AT: usize = 76;
const LENGTH_AT: usize = 78;
const PAYLOAD_AT: usize = 80;

/// Bytes of a block that are payload.
pub(crate) const PAYLOAD_BYTES: usize = BLOCK_BYTES - PAYLOAD_AT;

/// Purposes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A head: one of the two blocks with which a log begins. Its payload is the log's length in blocks.
    Head,
    /// Pieces of records.
    Records,
    /// Nothing but what its header says: all before it is durable, and no record goes on behind it.
    Mark,
}

impl Kind {
    const ALL: [(u16, Self); 3] = [(1, Self::Head), (2, Self::Records), (3, Self::Mark)];

    fn number(self) -> u16 {
        Self::ALL.into_iter().find(|&(_, kind)| kind == self).expect("all are listed").0
    }
}

/// Header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Log and pool of the block.
    pub(crate) identity: LogIdentity,
    /// Number of erases of the log before, and one.
    pub(crate) generation: u64,
    /// The opening of the pool that wrote it.
    pub(crate) session: u64,
    /// Number of the block in the generation, from 0; 0 in heads.
    pub(crate) sequence: u64,
    /// Number of blocks of the generation that were durable when the block was made.
    pub(crate) durable: u64,
    /// The checksum of the block before; 0 in the first one and in heads.
    pub(crate) previous: u32,
    pub(crate) kind: Kind,
}

/// A block that is what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    pub(crate) header: Header,
    pub(crate) checksum: u32,
    pub(crate) payload: &'a [u8],
}

/// Why bytes are no block of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotABlock {
    #[error("is no block of a log")]
    Foreign,
    #[error("does not match its checksum")]
    Checksum,
    #[error("has format {0}")]
    Version(u32),
    #[error("is of unknown kind {0}")]
    Kind(u16),
    #[error("says that {0} bytes of it are used")]
    Length(u16),
}

/// Makes a block, and returns its checksum.
///
/// # Panics
/// If the payload is longer than [`PAYLOAD_BYTES`], or `block` is none.
pub(crate) fn encode(header: &Header, payload: &[u8], block: &mut [u8]) -> u32 {
    assert!(block.len() == BLOCK_BYTES && payload.len() <= PAYLOAD_BYTES);
    block[..VERSION_AT].copy_from_slice(MAGIC);
    put_u32(block, VERSION_AT, VERSION);
    put_u128(block, POOL_AT, header.identity.pool);
    put_u64(block, LOG_AT, header.identity.log.0);
    put_u64(block, GENERATION_AT, header.generation);
    put_u64(block, SESSION_AT, header.session);
    put_u64(block, SEQUENCE_AT, header.sequence);
    put_u64(block, DURABLE_AT, header.durable);
    put_u32(block, PREVIOUS_AT, header.previous);
    put_u16(block, KIND_AT, header.kind.number());
    put_u16(block, LENGTH_AT, payload.len() as u16);
    let (used, unused) = block[PAYLOAD_AT..].split_at_mut(payload.len());
    used.copy_from_slice(payload);
    unused.fill(0);
    let checksum = checksum(block);
    put_u32(block, CHECKSUM_AT, checksum);
    checksum
}

/// Over the whole block but for the checksum itself: unused bytes are part of it, so that no bit of
/// the block can change unnoticed.
fn checksum(block: &[u8]) -> u32 {
    crc32c([&block[..CHECKSUM_AT], &block[CHECKSUM_AT + 4..]])
}

/// Reads a block.
///
/// # Errors
/// If they are none, or not one that was written like this.
pub(crate) fn decode(bytes: &[u8]) -> Result<Block<'_>, NotABlock> {
    if bytes.len() != BLOCK_BYTES || !bytes.starts_with(MAGIC) {
        return Err(NotABlock::Foreign);
    }
    let checksum = checksum(bytes);
    if u32_at(bytes, CHECKSUM_AT) != checksum {
        return Err(NotABlock::Checksum);
    }
    let version = u32_at(bytes, VERSION_AT);
    if version != VERSION {
        return Err(NotABlock::Version(version));
    }
    let number = u16_at(bytes, KIND_AT);
    let kind = Kind::ALL.into_iter().find(|&(known, _)| known == number);
    let (_, kind) = kind.ok_or(NotABlock::Kind(number))?;
    let length = u16_at(bytes, LENGTH_AT);
    let payload = bytes[PAYLOAD_AT..].get(..length.into()).ok_or(NotABlock::Length(length))?;
    let header = Header {
        identity: identity_at(bytes),
        generation: u64_at(bytes, GENERATION_AT),
        session: u64_at(bytes, SESSION_AT),
        sequence: u64_at(bytes, SEQUENCE_AT),
        durable: u64_at(bytes, DURABLE_AT),
        previous: u32_at(bytes, PREVIOUS_AT),
        kind,
    };
    Ok(Block { header, checksum, payload })
}

fn identity_at(bytes: &[u8]) -> LogIdentity {
    LogIdentity { pool: u128_at(bytes, POOL_AT), log: ObjectId(u64_at(bytes, LOG_AT)) }
}

/// Returns true if the bytes may once have been a block of a log: no single fault hides that.
pub(crate) fn resembles(bytes: &[u8], identity: LogIdentity) -> bool {
    bytes.len() == BLOCK_BYTES && (bytes.starts_with(MAGIC) || identity_at(bytes) == identity)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Header {
        Header {
            identity: LogIdentity { pool: 0x1234 << 99, log: ObjectId(0x77) },
            generation: 3,
            session: 9,
            sequence: 12,
            durable: 11,
            previous: 0xdead_beef,
            kind: Kind::Records,
        }
    }

    #[test]
    fn a_block_is_these_bytes() {
        let mut block = [0xff; BLOCK_BYTES];
        encode(&sample(), b"abc", &mut block);
        assert_eq!(&block[..12], b"BndryLog\x01\0\0\0");
        assert_eq!(block[32..40], 0x77_u64.to_le_bytes());
        assert_eq!(&block[72..84], b"\xef\xbe\xad\xde\x02\0\x03\0abc\0");
        // As anybody's CRC-32C says (RFC 3720, B.4), the field itself left out.
        let rest = [&block[..12], &block[16..]].concat();
        assert_eq!(block[12..16], crc32c([&rest]).to_le_bytes());
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut block = [0; BLOCK_BYTES];
        encode(&sample(), b"some payload", &mut block);
        let good = block;
        for bit in 0..BLOCK_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            decode(&block).unwrap_err();
            assert!(resembles(&block, sample().identity));
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(decode(&good).unwrap().header, sample());
    }

    /// A hostile hand can make any fields at all, with a checksum that is right.
    #[test]
    fn fields_that_nobody_wrote_are_refused() {
        let with = |at: usize, value: u16| {
            let mut block = [0; BLOCK_BYTES];
            encode(&sample(), b"some payload", &mut block);
            put_u16(&mut block, at, value);
            let right = checksum(&block);
            put_u32(&mut block, CHECKSUM_AT, right);
            decode(&block).unwrap_err()
        };
        assert_eq!(with(VERSION_AT, 2), NotABlock::Version(2));
        assert_eq!(with(KIND_AT, 9), NotABlock::Kind(9));
        assert_eq!(with(LENGTH_AT, 4017), NotABlock::Length(4017));
        assert_eq!(with(LENGTH_AT, 0xffff), NotABlock::Length(0xffff));
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            pool: u128, log: u64, numbers: [u64; 4], previous: u32, kind in 0..3_usize,
            payload in proptest::collection::vec(any::<u8>(), 0..=PAYLOAD_BYTES),
        ) {
            let header = Header {
                identity: LogIdentity { pool, log: ObjectId(log) },
                generation: numbers[0],
                session: numbers[1],
                sequence: numbers[2],
                durable: numbers[3],
                previous,
                kind: Kind::ALL[kind].1,
            };
            let mut block = [7; BLOCK_BYTES];
            let checksum = encode(&header, &payload, &mut block);
            prop_assert_eq!(decode(&block), Ok(Block { header, checksum, payload: &payload }));
        }

        #[test]
        fn nothing_makes_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let _ = decode(&bytes);
            let mut block = bytes;
            block.resize(BLOCK_BYTES, 0);
            block[..8].copy_from_slice(MAGIC);
            let right = checksum(&block);
            put_u32(&mut block, CHECKSUM_AT, right);
            let _ = decode(&block);
        }
    }
}
