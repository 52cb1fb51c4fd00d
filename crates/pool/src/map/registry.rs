//! All maps of a program: what they share, and where the reaper finds them.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bindery_sys::process::Origin;

use super::back_end::BackEnd;
use super::error::MapError;
use super::file::FileMap;
use super::memory::MemoryMap;
use super::options::{BackEndKind, Choice, Options, Temperature};
use super::window::DeviceFiles;
use super::{Map, Mapped};
use crate::object::Object;
use crate::process::{self, OtherProcess};

/// Makes maps, and knows those that there are. A handle: copies are of the same.
#[derive(Clone, Debug, Default)]
pub struct Maps(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    origin: Origin,
    files: DeviceFiles,
    maps: Mutex<BTreeMap<usize, Weak<Mapped>>>,
    made: AtomicU64,
    /// Rises whenever a map comes or goes.
    version: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        let (made, version) = (AtomicU64::new(0), AtomicU64::new(0));
        let (files, maps) = (DeviceFiles::default(), Mutex::default());
        Self { origin: Origin::here(), files, maps, made, version }
    }
}

impl Maps {
    /// Refuses children of the process that made this, before they wait for one of its locks.
    pub(super) fn check_here(&self) -> Result<(), OtherProcess> {
        process::check(self.0.origin)
    }

    /// Maps objects, in this order. See [the module](super) for what it costs, and [`Options`].
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(
        &self,
        objects: &[Arc<dyn Object>],
        temperature: Temperature,
        options: &Options,
    ) -> Result<Map, MapError> {
        if objects.is_empty() {
            return Err(MapError::Empty);
        }
        self.check_here()?;
        objects.iter().try_for_each(|object| object.device().check_here())?;
        let back_end: Box<dyn BackEnd> = match choose(objects, options)? {
            BackEndKind::Memfd => Box::new(MemoryMap::new(objects, options)?),
            BackEndKind::File => {
                let id = self.0.made.fetch_add(1, Ordering::Relaxed);
                let file = file_of(&*objects[0])?;
                Box::new(FileMap::new(id, objects, file, &self.0.files, options)?)
            }
        };
        let temperature = AtomicU8::new(temperature.number());
        let mapped = Arc::new(Mapped { objects: objects.to_vec(), back_end, temperature });
        self.lock().insert(Arc::as_ptr(&mapped).addr(), Arc::downgrade(&mapped));
        self.0.version.fetch_add(1, Ordering::Release);
        Ok(Map::new(mapped, self.clone()))
    }

    pub(super) fn forget(&self, mapped: &Arc<Mapped>) {
        self.lock().remove(&Arc::as_ptr(mapped).addr());
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// All maps that there are now.
    pub(crate) fn all(&self) -> Vec<Arc<Mapped>> {
        self.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// A number that is another one when a map has come or gone.
    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Weak<Mapped>>> {
        // Whole between any two statements.
        self.0.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn file_of(object: &dyn Object) -> Result<BorrowedFd<'_>, MapError> {
    object.device().file().ok_or_else(|| MapError::no_file(object))
}

/// The back end for these objects.
fn choose(objects: &[Arc<dyn Object>], options: &Options) -> Result<BackEndKind, MapError> {
    let device = |object: &Arc<dyn Object>| Arc::as_ptr(object.device()).addr();
    let elsewhere = objects.iter().find(|object| device(object) != device(&objects[0]));
    match (options.choice, &options.memory, elsewhere) {
        (_, Some(_), _)
        | (Choice::Fixed(BackEndKind::Memfd), ..)
        | (Choice::Automatic, _, Some(_)) => Ok(BackEndKind::Memfd),
        (Choice::Fixed(BackEndKind::File), _, Some(object)) => {
            Err(MapError::SeveralDevices { first: objects[0].id(), object: object.id() })
        }
        (Choice::Automatic | Choice::Fixed(BackEndKind::File), _, None) => Ok(BackEndKind::File),
    }
}
