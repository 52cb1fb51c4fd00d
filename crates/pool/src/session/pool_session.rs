//! State that everything shares which belongs to an open pool.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use bindery_sys::process::Origin;

use super::archive_attachment::ArchiveAttachment;
use super::error::{AllocateError, FindError};
use super::lookup::mblock_in;
use super::object_handles::ObjectHandles;
use super::session_counters::SessionCounters;
use crate::catalogue::{Catalogue, CatalogueError, FIRST_ID};
use crate::format::record::{ObjectEntry, Record};
use crate::mblock::{Committed, Local, Uses, Whereabouts};
use crate::media::PoolDevice;
use crate::object::Object;
use crate::process::{self, OtherProcess};
use crate::{DeviceIndex, Extent, MediaClass, ObjectId};

/// Ids are set aside in the catalogue so many at a time.
const IDS_AT_ONCE: u64 = 4096;

/// State that all parts of a pool share that is open for writing.
pub(crate) struct PoolSession {
    origin: Origin,
    pub(crate) pool_id: u128,
    pub(crate) opening: u64,
    pub(crate) nonce: u64,
    /// Extents of the catalogue, for superblocks.
    pub(crate) places: [[Extent; 2]; 2],
    pub(crate) catalogue: Catalogue,
    pub(crate) counters: SessionCounters,
    pub(crate) uses: Arc<Uses>,
    pub(crate) attachment: ArchiveAttachment,
    pool_devices: RwLock<Vec<Arc<PoolDevice>>>,
    handles: Mutex<ObjectHandles>,
    ids: Mutex<Ids>,
}

impl fmt::Debug for PoolSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "opening {} of pool {:032x}", self.opening, self.pool_id)
    }
}

/// Ids that were set aside and not given yet.
#[derive(Debug)]
struct Ids {
    next: u64,
    below: u64,
}

impl PoolSession {
    pub(crate) fn new(
        pool_id: u128,
        (opening, nonce): (u64, u64),
        places: [[Extent; 2]; 2],
        catalogue: Catalogue,
        pool_devices: Vec<Arc<PoolDevice>>,
    ) -> Self {
        let below = catalogue.contents().ids_below().max(FIRST_ID);
        Self {
            origin: Origin::here(),
            pool_id,
            opening,
            nonce,
            places,
            catalogue,
            counters: SessionCounters::default(),
            uses: Arc::new(Uses::new()),
            attachment: ArchiveAttachment::default(),
            pool_devices: RwLock::new(pool_devices),
            handles: Mutex::default(),
            ids: Mutex::new(Ids { next: below, below }),
        }
    }

    /// Refuses children of the process that opened the pool, before they wait for one of its locks.
    pub(crate) fn check_here(&self) -> Result<(), OtherProcess> {
        process::check(self.origin)
    }

    pub(crate) fn pool_devices(&self) -> Vec<Arc<PoolDevice>> {
        self.pool_devices.read().expect("the list is whole at any time").clone()
    }

    pub(crate) fn add_device(&self, pool_device: Arc<PoolDevice>) {
        self.pool_devices.write().expect("the list is whole at any time").push(pool_device);
    }

    /// # Panics
    /// If the pool has no such device: the catalogue names only those that it has.
    pub(crate) fn pool_device(&self, index: DeviceIndex) -> Arc<PoolDevice> {
        let pool_devices = self.pool_devices.read().expect("the list is whole at any time");
        let found = pool_devices.iter().find(|pool_device| pool_device.index == index);
        Arc::clone(found.expect("the devices that objects lie on were there when it was opened"))
    }

    /// The devices of a class, those with the most room first.
    pub(crate) fn devices_of(&self, class: MediaClass) -> Vec<Arc<PoolDevice>> {
        let mut pool_devices = self.pool_devices();
        pool_devices.retain(|pool_device| pool_device.class == class);
        pool_devices.sort_by_key(|pool_device| std::cmp::Reverse(pool_device.free_bytes()));
        pool_devices
    }

    /// Finds room on a device of a class; where there is none, makes what was deleted free first.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub(crate) fn find_room<T>(
        &self,
        class: MediaClass,
        bytes: u64,
        mut hold: impl FnMut(&Arc<PoolDevice>) -> Option<T>,
    ) -> Result<(Arc<PoolDevice>, T), AllocateError> {
        self.check_here()?;
        let pool_devices = self.devices_of(class);
        if pool_devices.is_empty() {
            return Err(AllocateError::NoClass { class });
        }
        let mut find = || {
            let found =
                pool_devices.iter().find_map(|pool_device| Some((pool_device, hold(pool_device)?)));
            found.map(|(pool_device, held)| (Arc::clone(pool_device), held))
        };
        if let Some(found) = find() {
            return Ok(found);
        }
        pool_devices.iter().for_each(|pool_device| {
            pool_device.reclaim();
        });
        find().ok_or_else(|| self.no_space(class, bytes))
    }

    /// Returns the error for a request of `bytes` that no device of a class has room for.
    pub(crate) fn no_space(&self, class: MediaClass, bytes: u64) -> AllocateError {
        let pool_devices = self.devices_of(class);
        AllocateError::NoSpace {
            class,
            bytes,
            free_bytes: pool_devices.iter().map(|pool_device| pool_device.free_bytes()).sum(),
            longest_bytes: pool_devices
                .iter()
                .map(|pool_device| pool_device.longest_bytes())
                .max()
                .unwrap_or(0),
        }
    }

    /// Ids that were never given before; the first of `count` that follow each other.
    pub(crate) fn new_ids(&self, count: u64) -> Result<ObjectId, CatalogueError> {
        self.check_here()?;
        let mut ids = self.ids.lock().expect("ids are set aside before they are given");
        if ids.next + count > ids.below {
            let below = ids.below + IDS_AT_ONCE;
            self.catalogue.submit(Record::Ids { below })?;
            ids.below = below;
        }
        let id = ids.next;
        ids.next += count;
        Ok(ObjectId(id))
    }

    pub(crate) fn handles(&self) -> MutexGuard<'_, ObjectHandles> {
        self.handles.lock().expect("the handles are whole at any time")
    }

    /// An object, the one that others have if there are others.
    pub(crate) fn find(&self, id: ObjectId) -> Result<Arc<Committed>, FindError> {
        self.check_here()?;
        let mut handles = self.handles();
        // Under both locks: what is deleted meanwhile finds the handle that is made here.
        let whereabouts = mblock_in(&self.catalogue.contents(), id)?;
        if let Some(object) = handles.held(id) {
            return Ok(object);
        }
        let object = Arc::new(match whereabouts {
            Whereabouts::Device(entry) => {
                let local = Local::new(entry, self.pool_device(entry.data.device), None);
                Committed::on_device(local, Some(Arc::clone(&self.uses)))
            }
            Whereabouts::Archive(entry) => self.attachment.object(self.pool_id, entry)?,
        });
        handles.insert(&object);
        Ok(object)
    }

    /// Commits objects, which are found by all as those that their writers hold.
    pub(crate) fn commit_all<'a>(
        &self,
        new: impl Iterator<Item = &'a Arc<Committed>> + Clone,
    ) -> Vec<Result<(), CatalogueError>> {
        let mut handles = self.handles();
        new.clone().for_each(|object| handles.insert(object));
        drop(handles);
        let records = new.clone().map(|object| Record::Commit(object.entry()));
        let committed = self.catalogue.submit_all(records);
        let failed = new.zip(&committed).filter(|(_, committed)| committed.is_err());
        let mut handles = self.handles();
        failed.for_each(|(object, _)| drop(handles.mblocks.remove(&object.id())));
        drop(handles);
        committed
    }

    pub(crate) fn commit(&self, entry: ObjectEntry) -> Result<(), CatalogueError> {
        self.catalogue.submit(Record::Commit(entry))
    }

    /// An mblock is somewhere else from now on; the caller has seen to it that it is there, and that
    /// nobody else moves or deletes it.
    #[cfg(feature = "archive")]
    pub(crate) fn move_to(&self, entry: ObjectEntry) -> Result<(), CatalogueError> {
        self.catalogue.submit(Record::Move(entry))
    }

    /// Makes the handle of an object that was moved the one that all find. Until then all find the handle that
    /// whoever moves it holds, so that there is never a second one of what lies on a device.
    #[cfg(feature = "archive")]
    pub(crate) fn adopt(&self, new: &Arc<Committed>) {
        let mut handles = self.handles();
        handles.take(new.id());
        handles.insert(new);
    }
}
