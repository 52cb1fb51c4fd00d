//! Sizes that every format of a pool is made of.

/// Bytes of a block. Devices are read and written in blocks, and all their structures are aligned to
/// one: the least that O_DIRECT takes on every device of today, and a page.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes that one checksum of an object covers.
pub const UNIT_BYTES: usize = BLOCK_BYTES;
