//! What becomes of devices that nobody looks after.

use bindery_pool::BLOCK_BYTES;
use libfuzzer_sys::arbitrary::{self, Arbitrary};

/// Something that happens to the bytes of a device.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Change {
    /// A byte is another one.
    Flip { block: u16, at: u16, by: u8 },
    /// A block was never written.
    Zero { block: u16 },
    /// A block was written to the wrong place.
    CowCopy { from: u16, to: u16 },
    /// A hostile hand puts up to 8 bytes into a superblock or a block of a log, and makes its checksum
    /// right.
    Forge { structure: u8, at: u16, value: u64, length: u8 },
}

impl Change {
    pub fn is_forged(self) -> bool {
        matches!(self, Self::Forge { .. })
    }

    /// The block that becomes another; none where that depends on what there is.
    pub fn block(self, blocks: u64) -> Option<u64> {
        match self {
            Self::Flip { block, .. } | Self::Zero { block } | Self::CowCopy { to: block, .. } => {
                Some(u64::from(block) % blocks)
            }
            Self::Forge { .. } => None,
        }
    }

    /// Does it to the content of a device.
    pub fn apply(self, content: &mut [u8]) {
        let blocks = content.len() / BLOCK_BYTES;
        let start = |block: u16| usize::from(block) % blocks * BLOCK_BYTES;
        match self {
            Self::Flip { block, at, by } => {
                content[start(block) + usize::from(at) % BLOCK_BYTES] ^= by;
            }
            Self::Zero { block } => content[start(block)..][..BLOCK_BYTES].fill(0),
            Self::CowCopy { from, to } => {
                let from = start(from);
                content.copy_within(from..from + BLOCK_BYTES, start(to));
            }
            Self::Forge { structure, at, value, length } => {
                let value = &value.to_le_bytes()[..usize::from(length % 8) + 1];
                forge(content, structure.into(), at.into(), value);
            }
        }
    }
}

/// Changes one of the blocks that begin as superblocks or blocks of logs do.
fn forge(content: &mut [u8], structure: usize, at: usize, value: &[u8]) {
    let blocks = content.chunks_exact_mut(BLOCK_BYTES);
    let mut structures: Vec<_> = blocks.filter(|it| it.starts_with(b"Bnd")).collect();
    let count = structures.len();
    if count > 0 {
        let block = &mut structures[structure % count];
        let at = at % (BLOCK_BYTES - 8);
        block[at..at + value.len()].copy_from_slice(value);
        make_right(block);
    }
}

/// Puts the right checksum into a superblock or a block of a log (`docs/formats/pool.md`).
pub fn make_right(block: &mut [u8]) {
    let checksum = if block.starts_with(b"BndrPool") {
        block[12..16].fill(0);
        crc_fast::crc32_iscsi(block)
    } else {
        crc_fast::crc32_iscsi(&[&block[..12], &block[16..]].concat())
    };
    block[12..16].copy_from_slice(&checksum.to_le_bytes());
}
