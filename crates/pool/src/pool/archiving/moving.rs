//! Moving one object to the archive or back.

use std::sync::Arc;

use uuid::Uuid;

use super::error::MoveError;
use crate::archive::{self, Archive, Stored};
use crate::format::record::{ArchivedEntry, ObjectEntry};
use crate::mblock::Committed;
use crate::object::Object;
use crate::pool::handle::Pool;
use crate::session::{FindError, PoolSession, mblock_in};
use crate::write::Writer;
use crate::{MediaClass, ObjectId};

impl Pool {
    /// Moves an mblock to the archive. When this returns it is durable there, and all of it was read back
    /// ([`read_back`](crate::archive::ArchiveOptions::read_back)) or each part was looked at; its space on the device
    /// is free when the last one who has it from there lets it go. Blocks; reads the object twice, and makes two
    /// or more requests for each of its parts.
    ///
    /// After a failure or a crash it is where it was, whole; what was copied of it is taken up by the
    /// next attempt, which reads that back.
    ///
    /// # Errors
    /// See [`MoveError`].
    pub fn move_to_archive(&self, id: ObjectId) -> Result<Arc<Committed>, MoveError> {
        self.session.check_here().map_err(FindError::from)?;
        let _archive_stays = self.session.attachment.archive_stays();
        let archive = self.archive()?;
        let _transit = Transit::begin(&self.session, id)?;
        let object = self.session.find(id)?;
        if object.archived().is_some() {
            return Err(MoveError::There { id, class: MediaClass::Archive });
        }
        let stored = copy(&archive, Uuid::from_u128(self.id()), &object)?;
        let (length_bytes, digest) = (object.length_bytes(), stored.header().digest.0);
        let entry = ArchivedEntry { id, length_bytes, digest };
        let new = Arc::new(self.session.attachment.object(self.id(), entry)?);
        let moved = self.session.move_to(ObjectEntry::Archived(entry));
        moved.map_err(|source| MoveError::Catalogue { id, source })?;
        self.session.adopt(&new);
        // Behind the record: only now may its space be given away.
        object.delete();
        self.session.uses.forget(id);
        self.session.counters.archived(length_bytes);
        Ok(new)
    }

    /// Brings an mblock back from the archive, to devices of a class. When this returns it is durable
    /// there. What is in the archive stays until the object is deleted and the archive swept. Blocks;
    /// reads all of it, several parts at once, and verifies each unit and the whole.
    ///
    /// # Errors
    /// See [`MoveError`].
    pub fn bring_back(&self, id: ObjectId, class: MediaClass) -> Result<Arc<Committed>, MoveError> {
        if class == MediaClass::Archive {
            return Err(MoveError::Class);
        }
        self.session.check_here().map_err(FindError::from)?;
        let _archive_stays = self.session.attachment.archive_stays();
        let _transit = Transit::begin(&self.session, id)?;
        let object = self.session.find(id)?;
        let Some(archived) = object.archived() else {
            return Err(MoveError::There { id, class: object.class() });
        };
        let stored = archived.stored()?;
        let length_bytes = object.length_bytes();
        let (pool_device, extents) = self.hold_room(class, length_bytes)?;
        let mut writer =
            Writer::new(Arc::clone(&self.session), pool_device, id, extents, length_bytes);
        stored.read_all::<MoveError>(|bytes| Ok(writer.append(bytes)?))?;
        let new = writer.settle()?;
        self.session.counters.brought_back(length_bytes);
        Ok(new)
    }
}

/// Copies an object, and sees that it is there: the copy here is given away next, and there is no other. All of
/// it is read back; or each part is looked at, where the archive's options say so, and no part is of an earlier
/// attempt, of which nobody knows how it ended.
fn copy(archive: &Archive, pool: Uuid, object: &Committed) -> Result<Stored, MoveError> {
    let receipt = archive.put(pool, object)?;
    let see = || {
        let stored = archive.head_of(pool, object.id(), object.length_bytes(), receipt.digest)?;
        match archive.reads_back() || receipt.parts_found > 0 {
            true => stored.verify()?,
            false => stored.look()?,
        }
        Ok(stored)
    };
    see().map_err(|error| match error {
        archive::ReadError::Fault(_) => error.into(),
        _ => MoveError::NotKept { id: object.id(), source: Box::new(error) },
    })
}

/// An object that nobody else moves or deletes meanwhile.
struct Transit<'a> {
    session: &'a PoolSession,
    id: ObjectId,
}

impl<'a> Transit<'a> {
    fn begin(session: &'a PoolSession, id: ObjectId) -> Result<Self, MoveError> {
        let mut handles = session.handles();
        if handles.leaving.contains(&id) {
            return Err(FindError::NotFound(id).into());
        }
        mblock_in(&session.catalogue.contents(), id)?;
        if handles.moving.insert(id) { Ok(Self { session, id }) } else { Err(MoveError::Busy(id)) }
    }
}

impl Drop for Transit<'_> {
    fn drop(&mut self) {
        self.session.handles().moving.remove(&self.id);
    }
}
