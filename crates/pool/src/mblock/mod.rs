//! mblocks: objects that are written once, committed, read, mapped, and deleted.
//!
//! An mblock is two runs of blocks of one device: its data, and a table with a checksum of each
//! [`UNIT_BYTES`](crate::UNIT_BYTES) of it. The table stands apart, so that data begins and ends where
//! large pages do, and objects of a power of two lie side by side without gaps.

mod checksum;
mod committed;
mod writer;

pub use checksum::unit_checksum;
pub use committed::Committed;
pub use writer::{AppendError, CommitError, Writer};

pub(crate) use writer::table_bytes;
