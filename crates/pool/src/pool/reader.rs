//! A pool for those who only read it, beside the one process that writes it.
//!
//! **Deleted meanwhile.** Whoever reads an object holds its place ([`Device::hold`]), which the writer
//! does not give to another object while somebody does. The hold is taken first, and the catalogue is
//! read again afterwards: the writer makes a deletion durable before it looks for holds, so either it
//! sees the hold, or the deletion is seen here. What is in the archive nobody holds: when the writer
//! deletes it, reading it becomes an error that says so.
//!
//! [`Device::hold`]: crate::device::Device::hold

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, Weak};

use bindery_sys::process::Origin;
use thiserror::Error;

use super::assemble::Assembly;
use super::error::OpenError;
use crate::catalogue::Contents;
use crate::format::record::{MblockEntry, ObjectEntry};
use crate::log::Damage;
use crate::mblock::{Committed, Local, Whereabouts};
use crate::media::{AttachedDevice, PoolDevice, SpaceUsage};
use crate::object::{Object, ReadError};
use crate::process;
use crate::session::{ArchiveAttachment, FindError, mblock_in};
use crate::{MediaClass, ObjectId, PoolName};

/// A pool as it was when it was opened, or last refreshed. One process's, as [`Pool`](crate::Pool) is.
#[derive(Debug)]
pub struct PoolReader {
    origin: Origin,
    devices: Vec<AttachedDevice>,
    id: u128,
    view: RwLock<View>,
    handles: Mutex<HashMap<ObjectId, Weak<Committed>>>,
    attachment: ArchiveAttachment,
}

#[derive(Debug)]
struct View {
    contents: Contents,
    pool_devices: Vec<Arc<PoolDevice>>,
    /// Copies of the catalogue's blocks that are not as they should be.
    damaged: Vec<Damage>,
    catalogue_bytes: u64,
}

impl View {
    fn of(assembly: Assembly) -> Result<Self, OpenError> {
        let pool_devices = assembly.pool_devices()?;
        let catalogue_bytes = assembly.lead.catalogue[0][0].bytes;
        let Assembly { contents, damaged, .. } = assembly;
        Ok(Self { contents, pool_devices, damaged, catalogue_bytes })
    }
}

/// An object could not be had.
#[derive(Debug, Error)]
pub enum ReaderError {
    /// The object was not there when the pool was opened.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The object was deleted, or moved to the archive or back, meanwhile.
    #[error("object {0} was deleted or moved meanwhile: refresh, and look again")]
    Deleted(ObjectId),
    /// The object could not be held.
    #[error("object {object} cannot be held against the pool's writer: {source}")]
    Hold {
        /// Id of the object.
        object: ObjectId,
        /// Error of the device.
        source: io::Error,
    },
    /// The checksums of the object could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The catalogue could not be read again.
    #[error(transparent)]
    Catalogue(#[from] OpenError),
}

impl PoolReader {
    /// Reads the pool whose devices these are. Writes nothing, and disturbs nobody. Blocks.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_on(devices: Vec<AttachedDevice>) -> Result<Self, OpenError> {
        let assembly = assemble(&devices, Assembly::of)?;
        let id = assembly.lead.pool;
        let view = RwLock::new(View::of(assembly)?);
        let (handles, attachment) = (Mutex::default(), ArchiveAttachment::default());
        Ok(Self { origin: Origin::here(), devices, id, view, handles, attachment })
    }

    /// Returns the id of the pool, which stays the same wherever it is and whatever it is called.
    #[must_use]
    pub const fn id(&self) -> u128 {
        self.id
    }

    /// Returns the name of the pool.
    #[must_use]
    pub fn name(&self) -> PoolName {
        self.view().contents.name().expect("a pool that was finished has a name").clone()
    }

    /// Sees the pool as it is now. Blocks; reads the catalogue.
    ///
    /// # Errors
    /// See [`OpenError`]; then what was seen before still is. [`OpenError::Missing`] where a device was
    /// added, with which the pool is to be opened again; [`OpenError::Foreign`] where another pool was
    /// made in place of this one.
    pub fn refresh(&self) -> Result<(), OpenError> {
        process::check(self.origin)?;
        let assembly = assemble(&self.devices, Assembly::of)?;
        self.check_pool(&assembly)?;
        let view = View::of(assembly)?;
        *self.view.write().expect("the view is whole") = view;
        Ok(())
    }

    /// An object, which stays readable while it is held. Blocks; reads the catalogue again.
    ///
    /// # Errors
    /// See [`ReaderError`].
    pub fn get(&self, id: ObjectId) -> Result<Arc<Committed>, ReaderError> {
        let mut objects = self.get_many(&[id])?;
        Ok(objects.pop().expect("as many objects as ids"))
    }

    /// Several objects, in the order of their ids; reads the catalogue once for all of them.
    ///
    /// # Errors
    /// See [`ReaderError`], of the first that cannot be had.
    pub fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Arc<Committed>>, ReaderError> {
        process::check(self.origin).map_err(FindError::from)?;
        let mut handles = self.handles();
        let view = self.view();
        let mut is_new = false;
        let mut objects = Vec::with_capacity(ids.len());
        for &id in ids {
            let whereabouts = mblock_in(&view.contents, id)?;
            let held = handles.get(&id).and_then(Weak::upgrade);
            let held = held.filter(|object| object.whereabouts() == whereabouts);
            let object = if let Some(object) = held {
                object
            } else {
                is_new = true;
                let new = Arc::new(match whereabouts {
                    Whereabouts::Device(entry) => hold(&view.pool_devices, entry)?,
                    Whereabouts::Archive(entry) => self.attachment.object(self.id, entry)?,
                });
                handles.insert(id, Arc::downgrade(&new));
                new
            };
            objects.push(object);
        }
        drop(view);
        if is_new {
            let checked = self.check(&objects);
            handles.retain(|_, object| object.strong_count() > 0);
            if checked.is_err() {
                ids.iter().for_each(|id| drop(handles.remove(id)));
            }
            checked?;
        }
        Ok(objects)
    }

    /// Checks that the held objects are still in the catalogue: see the module's description.
    fn check(&self, objects: &[Arc<Committed>]) -> Result<(), ReaderError> {
        let loaded = objects.iter().try_for_each(|object| object.load_checksums());
        // Devices that were added meanwhile have none of them.
        let assembly = assemble(&self.devices, Assembly::of_some)?;
        self.check_pool(&assembly)?;
        let contents = assembly.contents;
        for object in objects {
            let id = object.id();
            if mblock_in(&contents, id).ok() != Some(object.whereabouts()) {
                return Err(ReaderError::Deleted(id));
            }
        }
        Ok(loaded?)
    }

    /// Checks that the pool is still the one that was opened.
    fn check_pool(&self, Assembly { lead, found, .. }: &Assembly) -> Result<(), OpenError> {
        if lead.pool == self.id {
            return Ok(());
        }
        let device = found.first().map_or_else(String::new, |found| found.attached.label.clone());
        let (found, found_id) = (lead.name.clone(), lead.pool);
        Err(OpenError::Foreign { device, found, found_id, name: self.name(), id: self.id })
    }

    /// Everything that was committed, by id.
    #[must_use]
    pub fn list(&self) -> Vec<ObjectEntry> {
        self.view().contents.objects().cloned().collect()
    }

    /// The MDC that clients begin at.
    #[must_use]
    pub fn root(&self) -> Option<ObjectId> {
        self.view().contents.root()
    }

    /// The URL of its archive, if it ever had one.
    #[must_use]
    pub fn archive_url(&self) -> Option<String> {
        self.view().contents.archive().map(str::to_owned)
    }

    /// Reads objects that are in the archive from there, from now on. Not looked at is whether it is
    /// the pool's: what is read is verified.
    #[cfg(feature = "archive")]
    pub fn set_archive(&self, archive: crate::archive::Archive) {
        self.attachment.set(archive);
    }

    /// Returns the space on the devices of a class, or, of class archive, of the objects that are there.
    #[must_use]
    pub fn usage(&self, class: MediaClass) -> SpaceUsage {
        let view = self.view();
        if class == MediaClass::Archive {
            return SpaceUsage::of_archived(&view.contents);
        }
        let pool_devices =
            view.pool_devices.iter().filter(|pool_device| pool_device.class == class);
        pool_devices.map(|pool_device| pool_device.usage()).sum()
    }

    /// Returns the length of a log of the catalogue, in bytes.
    #[must_use]
    pub fn catalogue_bytes(&self) -> u64 {
        self.view().catalogue_bytes
    }

    /// Calls `look` with the contents of the catalogue, as they were last read.
    pub fn with_contents<T>(&self, look: impl FnOnce(&Contents) -> T) -> T {
        look(&self.view().contents)
    }

    pub(super) fn pool_devices(&self) -> Vec<Arc<PoolDevice>> {
        self.view().pool_devices.clone()
    }

    pub(super) fn damaged(&self) -> Vec<Damage> {
        self.view().damaged.clone()
    }

    fn view(&self) -> RwLockReadGuard<'_, View> {
        if let Err(error) = process::check(self.origin) {
            // Who refreshes it is not there to end it.
            return self.view.try_read().unwrap_or_else(|_| panic!("{error}"));
        }
        self.view.read().expect("the view is whole")
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<ObjectId, Weak<Committed>>> {
        self.handles.lock().expect("the handles are whole at any time")
    }
}

fn hold(pool_devices: &[Arc<PoolDevice>], entry: MblockEntry) -> Result<Committed, ReaderError> {
    let object = entry.id;
    let pool_device =
        pool_devices.iter().find(|pool_device| pool_device.index == entry.data.device);
    let pool_device = pool_device.expect("the devices that objects lie on are there");
    let held = pool_device.device.hold(entry.data.offset_bytes, entry.data.bytes);
    let held = held.map_err(|source| ReaderError::Hold { object, source })?;
    let held = held.ok_or(ReaderError::Deleted(object))?;
    Ok(Committed::on_device(Local::new(entry, Arc::clone(pool_device), Some(held)), None))
}

/// Reads what is there now. A writer may be in the middle of opening the pool, or of adding a device,
/// or of making one longer.
fn assemble(
    devices: &[AttachedDevice],
    read: impl Fn(Vec<AttachedDevice>) -> Result<Assembly, OpenError>,
) -> Result<Assembly, OpenError> {
    const ATTEMPTS: usize = 8;
    let attempt = || {
        for AttachedDevice { label, device } in devices {
            let failed = |source| OpenError::Read { device: label.clone(), source };
            device.measure().map_err(failed)?;
        }
        let assembly = read(devices.to_vec())?;
        assembly.check_residence()?;
        Ok(assembly)
    };
    let passes = |error: &OpenError| {
        matches!(
            error,
            OpenError::OldCopy { .. }
                | OpenError::Diverged { .. }
                | OpenError::Shrunk { .. }
                | OpenError::Superblocks { .. }
                | OpenError::NoPool { .. }
        )
    };
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(error) if passes(&error) => {}
            other => return other,
        }
    }
    attempt()
}
