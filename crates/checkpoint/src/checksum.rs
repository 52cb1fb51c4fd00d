//! Checksum of everything that a checkpoint writes.

use crc_fast::{CrcAlgorithm, Digest};

/// Computes CRC-32C (RFC 3720, B.4) of bytes that are given in parts.
pub(crate) fn crc32c<const PARTS: usize>(parts: [&[u8]; PARTS]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.into_iter().for_each(|part| digest.update(part));
    u32::try_from(digest.finalize()).expect("CRC-32C has 32 bits")
}
