//! Formats of what lies on devices: encoders and decoders that do no I/O.
//!
//! Everything is little-endian, has a magic, a version and a CRC-32C over all of it, and says whose it
//! is, so that a write that went astray is found. Decoders take any bytes: they neither panic nor
//! allocate more than they were given. Byte by byte it stands in `docs/formats/pool.md`.

pub(crate) mod fields;
pub(crate) mod le;
pub(crate) mod log_block;
pub(crate) mod mdc_record;
mod object_entry;
pub(crate) mod piece;
pub mod record;
pub mod superblock;
