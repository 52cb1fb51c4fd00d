//! mlogs: records that are appended, made durable, read back in order, and erased all at once.
//!
//! A log lies in one or more **copies** of the same blocks, each a run of blocks of a device. With two, a
//! block that is damaged in one is named, read from the other, and written anew; with one, damage is
//! named. Each sync ends its block, and a block that was synced is not written again until the log is
//! erased, so that a torn write hurts nothing that was durable.
//!
//! A log ends at the first block that is not there ([`Reader::torn`] says what lies there instead). A
//! block that is not there, though a later one says that it was durable, is damage. Only of the very
//! last block nobody says so, until one more is written: so [`Log::open`] and [`Log::close`] write a
//! **mark** behind it.
//!
//! What a crash left behind the end is not taken for what comes next, because every block holds the
//! checksum of the block before it and the number of the opening that wrote it, and those never fall.

mod chain;
mod error;
mod find;
mod heads;
mod log_copies;
mod log_copy;
mod reader;
mod records;
mod repair;
mod window;
mod writer;

pub use error::{Damage, DeviceError, OpenError, WriteError};
pub use log_copy::LogCopy;
pub use reader::Reader;
pub use records::Records;
pub use writer::Log;

/// The least blocks that a log lies in: two heads, one of records, one mark.
pub const LEAST_BLOCKS: u64 = 4;
