//! mblocks: objects that are written once, committed, read, mapped, and deleted.
//!
//! An mblock is two runs of blocks of one device: its data, and a table with a checksum of each
//! [`UNIT_BYTES`](crate::UNIT_BYTES) of it. The table stands apart, so that data begins and ends where
//! large pages do, and objects of a power of two lie side by side without gaps. One that was moved to
//! the archive lies there, in another format with checksums of its own.

#[cfg(feature = "archive")]
mod archive_source;
#[cfg(feature = "archive")]
mod archived;
pub(crate) mod checksum;
mod committed;
mod local;
mod uses;
mod whereabouts;

pub use checksum::unit_checksum;
pub use committed::Committed;

#[cfg(feature = "archive")]
pub(crate) use archived::Archived;
pub(crate) use local::Local;
pub(crate) use uses::Uses;
pub(crate) use whereabouts::Whereabouts;
