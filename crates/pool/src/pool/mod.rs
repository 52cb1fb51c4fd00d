//! Pools: made, opened, filled, grown, looked through, and ended.
//!
//! One process at a time has a pool open for writing ([`Pool`]); any number read it meanwhile
//! ([`PoolReader`]). All methods take any number of threads.

#[cfg(feature = "archive")]
mod archiving;
pub(crate) mod assemble;
mod attachment;
pub(crate) mod core;
mod create;
mod error;
mod grow;
mod logs;
pub(crate) mod member;
mod open;
mod paths;
mod reader;
mod scan;
mod statistics;
mod superblocks;
mod syncs;
mod verify;

#[cfg(feature = "archive")]
pub use archiving::{ArchiveError, Archived, MoveError, Sweep};
pub use attachment::LeftBehind;
pub use create::{CATALOGUE_BYTES, CreateOptions, NewDevice};
pub use error::{
    AllocateError, ChangeError, CreateError, DeleteError, FindError, GrowError, JoinError,
    LogError, OpenError,
};
pub use logs::{OpenLog, OpenMdc};
pub use member::{Attached, Usage};
pub use paths::{DevicePath, PathError};
pub use reader::{PoolReader, ReaderError};
pub use scan::{FoundPool, Scan, scan};
pub use statistics::{Amount, DeviceUsage, Statistics};
pub use verify::{Finding, Report};

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use self::core::Core;
use self::member::Member;
use crate::catalogue::{CatalogueError, Contents};
use crate::format::record::{ObjectEntry, Record};
use crate::format::superblock::{DeviceEntry, Residence};
use crate::log::Damage;
use crate::mblock::{Committed, Committer, Writer, table_bytes};
use crate::{BLOCK_BYTES, Extent, MediaClass, ObjectId, PoolName};

/// What the largest objects are aligned to, in bytes: a large page, so that a file system can cache,
/// and a map can map, such pages (kernel: `PMD_SIZE` of x86-64 and of arm64 with pages of 4 KiB).
pub const LARGEST_ALIGNMENT: u64 = 2 << 20;

/// A pool that is open for writing.
///
/// What was taken from it (objects, writers, logs) keeps its devices open, and so keeps others from
/// opening it for writing, after this was dropped.
///
/// It is one process's, and so is what was taken from it. In a child of fork(2) whatever would read or write is
/// refused ([`OtherProcess`](crate::OtherProcess)), what only looks at memory ([`list`](Self::list),
/// [`usage`](Self::usage) and the like) shows what was so when it was forked, and to drop any of it does nothing.
#[derive(Debug)]
pub struct Pool {
    core: Arc<Core>,
    /// What opening has found damaged, and made good.
    healed: Vec<Damage>,
    /// Held while the pool itself is changed: its name, its devices.
    administration: Mutex<()>,
}

impl Pool {
    fn of(core: Core, healed: Vec<Damage>) -> Self {
        Self { core: Arc::new(core), healed, administration: Mutex::default() }
    }

    /// What it is, wherever it is and whatever it is called.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.core.pool
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> PoolName {
        self.core.catalogue.contents().name().expect("a pool that is open has a name").clone()
    }

    /// The number of this opening, higher each time.
    #[must_use]
    pub fn opening(&self) -> u64 {
        self.core.opening
    }

    /// Blocks of the catalogue that opening found damaged in one copy, and made good from the other.
    #[must_use]
    pub fn healed(&self) -> &[Damage] {
        &self.healed
    }

    /// Its devices, by index.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceEntry> {
        self.core.members().iter().map(|member| member.entry()).collect()
    }

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
        self.core.check_here()?;
        let (member, extents) = self.hold_room(class, capacity_bytes)?;
        match self.core.new_ids(1) {
            Ok(id) => Ok(Writer::new(Arc::clone(&self.core), member, id, extents, capacity_bytes)),
            Err(error) => {
                extents.into_iter().for_each(|extent| member.give_back(extent));
                Err(error.into())
            }
        }
    }

    /// What commits mblocks while the next ones are written. Costs a thread.
    ///
    /// # Errors
    /// As pthread_create(3); `PermissionDenied` in a child of the process that opened the pool.
    pub fn committer(&self) -> io::Result<Committer> {
        self.core.check_here()?;
        Committer::start(Arc::clone(&self.core))
    }

    /// Holds room for the data and the checksums of an mblock.
    fn hold_room(
        &self,
        class: MediaClass,
        capacity_bytes: u64,
    ) -> Result<(Arc<Member>, [Extent; 2]), AllocateError> {
        let no_room = || self.core.no_space(class, capacity_bytes);
        let data_bytes = capacity_bytes.checked_next_multiple_of(BLOCK_BYTES as u64);
        let data_bytes = data_bytes.filter(|bytes| *bytes < 1 << 62).ok_or_else(no_room)?;
        let alignment = data_bytes.next_power_of_two().min(LARGEST_ALIGNMENT);
        let table_bytes = table_bytes(capacity_bytes);
        let find = |alignment| {
            let hold = |member: &Arc<Member>| member.hold(data_bytes, alignment, table_bytes);
            self.core.find_room(class, data_bytes, hold)
        };
        find(alignment).or_else(|_| find(BLOCK_BYTES as u64))
    }

    /// A committed mblock. Does no I/O, also where it is in the archive.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn get(&self, id: ObjectId) -> Result<Arc<Committed>, FindError> {
        let object = self.core.find(id)?;
        object.use_it();
        Ok(object)
    }

    /// Everything that was committed, by id.
    #[must_use]
    pub fn list(&self) -> Vec<ObjectEntry> {
        self.core.catalogue.contents().objects().cloned().collect()
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
        let outcome = self.core.catalogue.submit(Record::Delete(id));
        let mut handles = self.core.handles();
        handles.leaving.remove(&id);
        outcome.map_err(|source| DeleteError::Catalogue { id, source })?;
        let holder = handles.take(id);
        let lingers = handles.lingers(id);
        // While nobody else sees the handles: who finds none leaving finds all space accounted for.
        match (&holder, &entry) {
            (Some(object), _) => object.delete(),
            (None, ObjectEntry::Archived(_)) => {}
            (None, entry) => {
                entry.extents().for_each(|extent| self.core.member(extent.device).retire(extent))
            }
        }
        drop(handles);
        self.core.uses.forget(id);
        let left = match entry {
            // Whoever still reads it there can go on, and a sweep will find it.
            ObjectEntry::Archived(_) if holder.is_some() || lingers => Some(LeftBehind::Read),
            ObjectEntry::Archived(_) => self.core.attachment.delete(self.id(), id),
            _ => None,
        };
        if let Some(why) = &left {
            tracing::warn!(%id, %why, "keys of it are left in the archive: sweep it");
        }
        self.core.counters.deleted();
        Ok(left)
    }

    /// Makes sure that only one thread deletes it.
    fn announce_deletion(&self, id: ObjectId) -> Result<ObjectEntry, DeleteError> {
        self.core.check_here().map_err(FindError::from)?;
        let mut handles = self.core.handles();
        let entry = self.core.catalogue.contents().object(id).cloned();
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
        let mine = self.core.check_here().is_ok().then(|| self.core.members());
        mine.iter().flatten().map(|member| member.reclaim()).sum()
    }

    /// Calls it something else. Blocks for syncs of all devices.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn rename(&self, name: PoolName) -> Result<(), ChangeError> {
        self.change(Record::Name(name))
    }

    /// Closes it, and marks it as one that is to be imported before it is used again.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn export(self) -> Result<(), ChangeError> {
        self.change(Record::Residence(Residence::Exported))
    }

    /// Writes a change of the pool itself to the catalogue, and then to all superblocks.
    fn change(&self, record: Record) -> Result<(), ChangeError> {
        let _alone = self.administration()?;
        self.core.catalogue.submit(record)?;
        open::write_superblocks(&self.core)
    }

    /// The turn to change the pool itself.
    fn administration(&self) -> Result<MutexGuard<'_, ()>, CatalogueError> {
        self.core.check_here()?;
        Ok(self.administration.lock().expect("nobody panics while the pool is changed"))
    }

    /// What is on the devices of a class, or, of class archive, the objects that are there.
    #[must_use]
    pub fn usage(&self, class: MediaClass) -> Usage {
        if class == MediaClass::Archive {
            return Usage::of_archived(&self.core.catalogue.contents());
        }
        self.core.members_of(class).iter().map(|member| member.usage()).sum()
    }

    /// The URL of its archive, if it ever had one.
    #[must_use]
    pub fn archive_url(&self) -> Option<String> {
        self.core.catalogue.contents().archive().map(str::to_owned)
    }

    /// What the catalogue says. Nothing is committed or deleted while `look` runs.
    pub fn with_contents<T>(&self, look: impl FnOnce(&Contents) -> T) -> T {
        look(&self.core.catalogue.contents())
    }
}
