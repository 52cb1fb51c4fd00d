//! Objects of a pool: allocated, found, deleted.

use std::io;
use std::sync::Arc;

use super::error::DeleteError;
use super::handle::Pool;
use crate::format::record::{ObjectEntry, Record};
use crate::mblock::Committed;
use crate::mblock::checksum::table_bytes;
use crate::media::PoolDevice;
use crate::session::{AllocateError, FindError, LeftBehind};
use crate::write::{Committer, Writer};
use crate::{BLOCK_BYTES, Extent, MediaClass, ObjectId};

/// Largest alignment of objects, in bytes: a large page, so that a file system can cache,
/// and a map can map, such pages (kernel: `PMD_SIZE` of x86-64 and of arm64 with pages of 4 KiB).
pub const LARGEST_ALIGNMENT: u64 = 2 << 20;

impl Pool {
    /// Begins an mblock of up to `capacity_bytes`, in one piece, aligned to the next power of two up
    /// to [`LARGEST_ALIGNMENT`], or to a block where there is no such place left. Blocks for a sync
    /// once in 4096 objects.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn allocate_mblock(
        &self,
        class: MediaClass,
        capacity_bytes: u64,
    ) -> Result<Writer, AllocateError> {
        if capacity_bytes == 0 {
            return Err(AllocateError::Nothing);
        }
        self.session.check_here()?;
        let (pool_device, extents) = self.hold_room(class, capacity_bytes)?;
        match self.session.new_ids(1) {
            Ok(id) => {
                Ok(Writer::new(Arc::clone(&self.session), pool_device, id, extents, capacity_bytes))
            }
            Err(error) => {
                extents.into_iter().for_each(|extent| pool_device.give_back(extent));
                Err(error.into())
            }
        }
    }

    /// Starts a thread that commits mblocks while the next ones are written.
    ///
    /// # Errors
    /// As pthread_create(3); `PermissionDenied` in a child of the process that opened the pool.
    pub fn committer(&self) -> io::Result<Committer> {
        self.session.check_here()?;
        Committer::start(Arc::clone(&self.session))
    }

    /// Holds room for the data and the checksums of an mblock.
    pub(super) fn hold_room(
        &self,
        class: MediaClass,
        capacity_bytes: u64,
    ) -> Result<(Arc<PoolDevice>, [Extent; 2]), AllocateError> {
        let no_room = || self.session.no_space(class, capacity_bytes);
        let data_bytes = capacity_bytes.checked_next_multiple_of(BLOCK_BYTES as u64);
        let data_bytes = data_bytes.filter(|bytes| *bytes < 1 << 62).ok_or_else(no_room)?;
        let alignment = data_bytes.next_power_of_two().min(LARGEST_ALIGNMENT);
        let table_bytes = table_bytes(capacity_bytes);
        let find = |alignment| {
            let hold = |pool_device: &Arc<PoolDevice>| {
                pool_device.hold(data_bytes, alignment, table_bytes)
            };
            self.session.find_room(class, data_bytes, hold)
        };
        find(alignment).or_else(|_| find(BLOCK_BYTES as u64))
    }

    /// A committed mblock. Does no I/O, also where it is in the archive.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn get(&self, id: ObjectId) -> Result<Arc<Committed>, FindError> {
        let object = self.session.find(id)?;
        object.use_it();
        Ok(object)
    }

    /// Deletes an mblock, or a log or MDC that nobody has open. It is gone when this returns; its
    /// space is free when the last one who has it lets it go. Blocks for a sync, which it shares with
    /// others that change the pool at the same time; and, if it is in the archive, for requests that
    /// delete it there. What remains there (of an object that somebody has, or that was brought back, or
    /// because the archive is not open or does not answer) is for a sweep to find.
    ///
    /// # Errors
    /// See [`DeleteError`].
    pub fn delete(&self, id: ObjectId) -> Result<(), DeleteError> {
        self.delete_fully(id).map(drop)
    }

    /// As [`delete`](Self::delete). Why keys of an object in the archive were left there, if they were.
    ///
    /// # Errors
    /// See [`DeleteError`].
    pub fn delete_fully(&self, id: ObjectId) -> Result<Option<LeftBehind>, DeleteError> {
        let entry = self.announce_deletion(id)?;
        let outcome = self.session.catalogue.submit(Record::Delete(id));
        let mut handles = self.session.handles();
        handles.leaving.remove(&id);
        outcome.map_err(|source| DeleteError::Catalogue { id, source })?;
        let holder = handles.take(id);
        let lingers = handles.lingers(id);
        // While nobody else sees the handles: who finds none leaving finds all space accounted for.
        match (&holder, &entry) {
            (Some(object), _) => object.delete(),
            (None, ObjectEntry::Archived(_)) => {}
            (None, entry) => entry
                .extents()
                .for_each(|extent| self.session.pool_device(extent.device).retire(extent)),
        }
        drop(handles);
        self.session.uses.forget(id);
        let left = match entry {
            // Whoever still reads it there can go on, and a sweep will find it.
            ObjectEntry::Archived(_) if holder.is_some() || lingers => Some(LeftBehind::Read),
            ObjectEntry::Archived(_) => self.session.attachment.delete(self.id(), id),
            _ => None,
        };
        if let Some(why) = &left {
            tracing::warn!(%id, %why, "keys of it are left in the archive: sweep it");
        }
        self.session.counters.deleted();
        Ok(left)
    }

    /// Makes sure that only one thread deletes it.
    fn announce_deletion(&self, id: ObjectId) -> Result<ObjectEntry, DeleteError> {
        self.session.check_here().map_err(FindError::from)?;
        let mut handles = self.session.handles();
        let entry = self.session.catalogue.contents().object(id).cloned();
        let entry = entry.ok_or(FindError::NotFound(id))?;
        if handles.logs.contains(&id) {
            return Err(DeleteError::Open(id));
        }
        if handles.moving.contains(&id) {
            return Err(DeleteError::Moving(id));
        }
        if !handles.leaving.insert(id) {
            return Err(FindError::NotFound(id).into());
        }
        Ok(entry)
    }

    /// Discards the space of deleted objects that nobody reads any more, and frees it. Allocation does
    /// so by itself when it finds no room. How much became free, in bytes. Blocks.
    pub fn reclaim(&self) -> u64 {
        let mine = self.session.check_here().is_ok().then(|| self.session.pool_devices());
        mine.iter().flatten().map(|pool_device| pool_device.reclaim()).sum()
    }
}
