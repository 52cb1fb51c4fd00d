//! All maps of a program: what they share, and where the reaper finds them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bindery_sys::process::Origin;

use super::mapped::Mapped;
use super::watch::Watch;
use super::window::DeviceFiles;
use crate::process::{self, OtherProcess};

/// Makes maps, and knows those that there are. A handle: copies are of the same.
#[derive(Clone, Debug, Default)]
pub struct Maps(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    origin: Origin,
    files: DeviceFiles,
    watch: Arc<Watch>,
    maps: Mutex<BTreeMap<usize, Weak<Mapped>>>,
    made: AtomicU64,
    /// Rises whenever a map comes or goes.
    version: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        let (made, version) = (AtomicU64::new(0), AtomicU64::new(0));
        let (files, watch, maps) = (DeviceFiles::default(), Arc::default(), Mutex::default());
        Self { origin: Origin::here(), files, watch, maps, made, version }
    }
}

impl Maps {
    /// Refuses children of the process that made this, before they wait for one of its locks.
    pub(super) fn check_here(&self) -> Result<(), OtherProcess> {
        process::check(self.0.origin)
    }

    /// Adds a map, which is found until it is [forgotten](Self::forget).
    pub(super) fn insert(&self, mapped: &Arc<Mapped>) {
        self.lock().insert(Arc::as_ptr(mapped).addr(), Arc::downgrade(mapped));
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that no other map of this registry has.
    pub(super) fn next_id(&self) -> u64 {
        self.0.made.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the counts of the pages of all maps.
    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.0.watch
    }

    /// Mappings of devices' files, which all maps share.
    pub(super) fn files(&self) -> &DeviceFiles {
        &self.0.files
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
