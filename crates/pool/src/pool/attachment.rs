//! The archive of a pool that is open, if it is.

use crate::ObjectId;
use crate::format::record::ArchivedEntry;
use crate::mblock::Committed;
use crate::pool::FindError;

#[cfg(feature = "archive")]
pub(crate) use with_archive::Attachment;

#[cfg(not(feature = "archive"))]
pub(crate) use without::Attachment;

#[cfg(feature = "archive")]
mod with_archive {
    use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

    use uuid::Uuid;

    use super::{ArchivedEntry, Committed, FindError, ObjectId};
    use crate::archive::Archive;
    use crate::mblock::Archived;

    /// The archive, once somebody has opened it.
    #[derive(Debug, Default)]
    pub(crate) struct Attachment {
        archive: RwLock<Option<Archive>>,
        /// Shared by those who move objects, and held alone by whoever changes the archive.
        moves: RwLock<()>,
    }

    impl Attachment {
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
        pub(crate) fn delete(&self, pool: u128, id: ObjectId) {
            let Some(archive) = self.get() else {
                return tracing::warn!(%id, "is left in the archive, which is not open: sweep it");
            };
            if let Err(error) = archive.delete(Uuid::from_u128(pool), id) {
                tracing::warn!(%id, %error, "is left in the archive: sweep it");
            }
        }
    }
}

#[cfg(not(feature = "archive"))]
mod without {
    use super::{ArchivedEntry, Committed, FindError, ObjectId};

    /// No archive can be opened.
    #[derive(Debug, Default)]
    pub(crate) struct Attachment {}

    impl Attachment {
        pub(crate) fn object(
            &self,
            _pool: u128,
            entry: ArchivedEntry,
        ) -> Result<Committed, FindError> {
            Err(FindError::Archived(entry.id))
        }

        pub(crate) fn delete(&self, _pool: u128, id: ObjectId) {
            tracing::warn!(%id, "is left in the archive, which this program cannot open");
        }
    }
}
