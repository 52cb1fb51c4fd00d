//! Places that the catalogue has for mblocks.

use crate::ObjectId;
use crate::format::record::{ArchivedEntry, MblockEntry, ObjectEntry};

/// Location of an mblock, as the catalogue has it.
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
