//! The archive of a pool that is open, if it is.

use std::fmt;

use super::error::FindError;
use crate::ObjectId;
use crate::format::record::ArchivedEntry;
use crate::mblock::Committed;

#[cfg(feature = "archive")]
pub(crate) use with_archive::ArchiveAttachment;

#[cfg(not(feature = "archive"))]
pub(crate) use without::ArchiveAttachment;

/// Why keys of an object that was deleted are still in the archive, where a sweep finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftBehind {
    /// The archive is not open.
    NotOpen,
    /// Somebody still reads the object there.
    Read,
    /// The store did not delete them, for this reason.
    Failed(String),
}

impl fmt::Display for LeftBehind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOpen => formatter.write_str("the archive is not open"),
            Self::Read => formatter.write_str("somebody still reads it there"),
            Self::Failed(why) => formatter.write_str(why),
        }
    }
}

#[cfg(feature = "archive")]
mod with_archive {
    use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

    use uuid::Uuid;

    use super::{ArchivedEntry, Committed, FindError, LeftBehind, ObjectId};
    use crate::archive::Archive;
    use crate::mblock::Archived;

    /// The archive, once somebody has opened it.
    #[derive(Debug, Default)]
    pub(crate) struct ArchiveAttachment {
        archive: RwLock<Option<Archive>>,
        /// Shared by those who move objects, and held alone by whoever changes the archive.
        moves: RwLock<()>,
    }

    impl ArchiveAttachment {
        pub(crate) fn get(&self) -> Option<Archive> {
            self.archive.read().expect("the archive is there or not").clone()
        }

        pub(crate) fn set(&self, archive: Archive) {
            *self.archive.write().expect("the archive is there or not") = Some(archive);
        }

        pub(crate) fn archive_stays(&self) -> RwLockReadGuard<'_, ()> {
            self.moves.read().expect("nobody panics while the archive is changed")
        }

        pub(crate) fn nobody_moves(&self) -> RwLockWriteGuard<'_, ()> {
            self.moves.write().expect("nobody panics while the archive is changed")
        }

        /// An object that is there. Does no I/O.
        pub(crate) fn object(
            &self,
            pool: u128,
            entry: ArchivedEntry,
        ) -> Result<Committed, FindError> {
            let archive = self.get().ok_or(FindError::Archived(entry.id))?;
            Ok(Committed::in_archive(Archived::new(archive, pool, entry)))
        }

        /// Deletes an object that no catalogue has any more. What is left of it is an orphan, which a
        /// sweep finds.
        pub(crate) fn delete(&self, pool: u128, id: ObjectId) -> Option<LeftBehind> {
            let Some(archive) = self.get() else { return Some(LeftBehind::NotOpen) };
            let deleted = archive.delete(Uuid::from_u128(pool), id);
            deleted.err().map(|error| LeftBehind::Failed(error.to_string()))
        }
    }
}

#[cfg(not(feature = "archive"))]
mod without {
    use super::{ArchivedEntry, Committed, FindError, LeftBehind, ObjectId};

    /// No archive can be opened.
    #[derive(Debug, Default)]
    pub(crate) struct ArchiveAttachment {}

    impl ArchiveAttachment {
        pub(crate) fn object(
            &self,
            _pool: u128,
            entry: ArchivedEntry,
        ) -> Result<Committed, FindError> {
            Err(FindError::Archived(entry.id))
        }

        pub(crate) fn delete(&self, _pool: u128, _id: ObjectId) -> Option<LeftBehind> {
            Some(LeftBehind::NotOpen)
        }
    }
}
