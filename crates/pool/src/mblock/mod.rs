//! mblocks: objects that are written once, committed, read, mapped, and deleted.
//!
//! An mblock is two runs of blocks of one device: its data, and a table with a checksum of each
//! [`UNIT_BYTES`](crate::UNIT_BYTES) of it. The table stands apart, so that data begins and ends where
//! large pages do, and objects of a power of two lie side by side without gaps. One that was moved to
//! the archive lies there, in another format with checksums of its own.

#[cfg(feature = "archive")]
mod archived;
mod checksum;
mod commit;
mod committed;
mod committer;
mod local;
mod uses;
mod writer;

pub use checksum::unit_checksum;
pub use commit::CommitError;
pub use committed::Committed;
pub use committer::Committer;
pub use writer::{AppendError, Writer};

#[cfg(feature = "archive")]
pub(crate) use archived::Archived;
pub(crate) use local::Local;
pub(crate) use uses::Uses;
pub(crate) use writer::table_bytes;

use crate::ObjectId;
use crate::format::record::{ArchivedEntry, MblockEntry, ObjectEntry};

/// Where the catalogue says that an mblock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    Device(MblockEntry),
    Archive(ArchivedEntry),
}

impl Whereabouts {
    /// None where that is no mblock.
    pub(crate) const fn of(entry: &ObjectEntry) -> Option<Self> {
        match entry {
            ObjectEntry::Mblock(entry) => Some(Self::Device(*entry)),
            ObjectEntry::Archived(entry) => Some(Self::Archive(*entry)),
            ObjectEntry::Log(_) | ObjectEntry::Mdc(_) => None,
        }
    }

    pub(crate) const fn id(&self) -> ObjectId {
        match self {
            Self::Device(entry) => entry.id,
            Self::Archive(entry) => entry.id,
        }
    }
}
