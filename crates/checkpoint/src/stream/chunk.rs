//! Format of a stream: a head, and chunks.

use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use crate::checksum::crc32c;
use crate::fields::Fields;
use crate::format_error::FormatError;

/// Length of the head of a stream, in bytes.
pub(super) const STREAM_HEAD_BYTES: usize = 64;

/// Length of the head of a chunk without its check, in bytes.
pub(super) const CHUNK_HEAD_BYTES: usize = 24;

/// Most pages of a chunk.
pub(crate) const CHUNK_PAGES: u32 = 64;

/// Most bytes of the description in one chunk.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Length of what the end says, in bytes.
pub(super) const END_BYTES: usize = 16;

const MAGIC: &[u8; 8] = b"BndrExpt";
const VERSION: u32 = 1;
const STREAM: &str = "head";
const CHUNK: &str = "chunk";

/// Head of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// Id of the stream, drawn at random: its key is derived from it.
    pub id: u128,
    /// True if its chunks are encrypted.
    pub is_sealed: bool,
}

impl StreamHead {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; STREAM_HEAD_BYTES] {
        let mut bytes = [0; STREAM_HEAD_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.id.to_le_bytes());
        bytes[32] = u8::from(self.is_sealed);
        let checksum = crc32c([&bytes]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a head that begins `bytes`.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.first_chunk::<STREAM_HEAD_BYTES>();
        let mut fields = Fields::new(STREAM, bytes.ok_or(FormatError::Short { what: STREAM })?);
        if fields.array::<8>()? != *MAGIC {
            return Err(FormatError::Foreign { what: "export" });
        }
        let found = fields.u32()?;
        fields.u32()?;
        let head = Self { id: fields.u128()?, is_sealed: fields.u8()? & 1 == 1 };
        if found != VERSION {
            return Err(FormatError::Newer { what: STREAM, found, known: VERSION });
        }
        let again = head.encode();
        // All that it does not say is zero: so only one head has this checksum.
        if Some(&again) == bytes {
            return Ok(head);
        }
        Err(FormatError::Checksum { what: STREAM })
    }
}

/// Kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// A piece of the description.
    Description,
    /// Pages of a memory block.
    Pages {
        /// Number of the block.
        block: u16,
        /// The pages.
        pages: PageRange,
    },
    /// The end: number of pages and of chunks before it.
    End,
}

/// Head of a chunk. A check of 16 bytes follows it, and the chunk as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHead {
    /// Kind of the chunk.
    pub kind: ChunkKind,
    /// True if the chunk is compressed with zstd.
    pub is_compressed: bool,
    /// Length of the content, in bytes.
    pub plain_bytes: u32,
    /// Length as it is stored, in bytes.
    pub stored_bytes: u32,
}

impl ChunkHead {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; CHUNK_HEAD_BYTES] {
        let (kind, block, pages) = match self.kind {
            ChunkKind::Description => (1, 0, PageRange::new(PageIndex(0), 0)),
            ChunkKind::Pages { block, pages } => (2, block, pages),
            ChunkKind::End => (3, 0, PageRange::new(PageIndex(0), 0)),
        };
        let mut bytes = [0; CHUNK_HEAD_BYTES];
        bytes[0] = kind;
        bytes[1] = u8::from(self.is_compressed);
        bytes[2..4].copy_from_slice(&block.to_le_bytes());
        bytes[4..8].copy_from_slice(&pages.first.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&pages.count.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.plain_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.stored_bytes.to_le_bytes());
        bytes
    }

    /// Reads a head that begins `bytes`. Lengths are within what a chunk can have; beyond that its check
    /// vouches for it.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.first_chunk::<CHUNK_HEAD_BYTES>();
        let mut fields = Fields::new(CHUNK, bytes.ok_or(FormatError::Short { what: CHUNK })?);
        let (kind, codec, block) = (fields.u8()?, fields.u8()?, fields.u16()?);
        let (first, count) = (fields.u32()?, fields.u32()?);
        let (plain_bytes, stored_bytes) = (fields.u32()?, fields.u32()?);
        let kind = match kind {
            1 => ChunkKind::Description,
            2 if first.checked_add(count).is_some() => {
                ChunkKind::Pages { block, pages: PageRange::new(PageIndex(first), count) }
            }
            3 => ChunkKind::End,
            _ => return Err(FormatError::impossible(CHUNK, "an unknown kind")),
        };
        let head = Self { kind, is_compressed: codec == 1, plain_bytes, stored_bytes };
        if head.is_possible() && Some(&head.encode()) == bytes {
            return Ok(head);
        }
        Err(FormatError::impossible(CHUNK, "its lengths do not fit"))
    }

    fn is_possible(&self) -> bool {
        let plain_bytes = self.plain_bytes as usize;
        let plain = match self.kind {
            ChunkKind::Description => (1..=PIECE_BYTES).contains(&plain_bytes),
            ChunkKind::Pages { pages, .. } => {
                (1..=CHUNK_PAGES).contains(&pages.count)
                    && plain_bytes == pages.count as usize * PAGE_BYTES
            }
            ChunkKind::End => plain_bytes == END_BYTES,
        };
        let stored = match self.is_compressed {
            true => (1..self.plain_bytes).contains(&self.stored_bytes),
            false => self.stored_bytes == self.plain_bytes,
        };
        plain && stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn damage_of_a_head_is_seen() {
        let head = StreamHead { id: 0x1234 << 80, is_sealed: true };
        let bytes = head.encode();
        assert_eq!(StreamHead::decode(&bytes), Ok(head));
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 2;
            StreamHead::decode(&damaged).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn a_chunk_head_has_one_form(
            kind in 0..5_u8, codec in 0..3_u8, block in 0..2_u16, first: u32, count in 0..70_u32,
            plain in prop_oneof![Just(4096_u32), Just(16), any::<u32>()],
            stored in prop_oneof![Just(4096_u32), Just(16), 0..4096_u32],
        ) {
            let mut bytes = vec![kind, codec];
            bytes.extend_from_slice(&block.to_le_bytes());
            for number in [first, count, plain, stored, 0] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            if let Ok(head) = ChunkHead::decode(&bytes) {
                prop_assert_eq!(head.encode().to_vec(), bytes);
            }
        }
    }
}
