//! Objects that are there, wherever they are.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_sys::direct::Buffer;

#[cfg(feature = "archive")]
use super::archived::Archived;
use super::local::Local;
use super::uses::Uses;
use super::whereabouts::Whereabouts;
use crate::device::Device;
use crate::format::record::ObjectEntry;
use crate::object::{Damage, Object, ReadError};
use crate::{MediaClass, ObjectId};

/// A committed mblock. While anybody holds it, its bytes stay where they are, also when it is deleted,
/// or moved: this goes on to read them where they were when it was had.
pub struct Committed {
    location: ObjectLocation,
    /// Table in which the end of its use is noted.
    uses: Option<Arc<Uses>>,
    /// True if a client opened it, not verification or a move.
    used: AtomicBool,
}

enum ObjectLocation {
    Device(Local),
    #[cfg(feature = "archive")]
    Archive(Archived),
}

impl Committed {
    pub(crate) const fn on_device(local: Local, uses: Option<Arc<Uses>>) -> Self {
        Self { location: ObjectLocation::Device(local), uses, used: AtomicBool::new(false) }
    }

    #[cfg(feature = "archive")]
    pub(crate) const fn in_archive(archived: Archived) -> Self {
        Self {
            location: ObjectLocation::Archive(archived),
            uses: None,
            used: AtomicBool::new(false),
        }
    }

    /// Returns the catalogue's entry at the time that the handle was opened.
    #[must_use]
    pub fn entry(&self) -> ObjectEntry {
        match self.whereabouts() {
            Whereabouts::Device(entry) => ObjectEntry::Mblock(entry),
            Whereabouts::Archive(entry) => ObjectEntry::Archived(entry),
        }
    }

    pub(crate) fn whereabouts(&self) -> Whereabouts {
        match &self.location {
            ObjectLocation::Device(local) => Whereabouts::Device(*local.entry()),
            #[cfg(feature = "archive")]
            ObjectLocation::Archive(archived) => Whereabouts::Archive(*archived.entry()),
        }
    }

    /// Accounts the object's space on a device as used.
    pub(crate) fn settle(&self) {
        match &self.location {
            ObjectLocation::Device(local) => local.settle(),
            #[cfg(feature = "archive")]
            ObjectLocation::Archive(_) => {}
        }
    }

    /// Frees the object's space on a device when the last handle is dropped.
    pub(crate) fn delete(&self) {
        match &self.location {
            ObjectLocation::Device(local) => local.delete(),
            #[cfg(feature = "archive")]
            ObjectLocation::Archive(_) => {}
        }
    }

    /// Returns the archived object, if it is in the archive.
    #[cfg(feature = "archive")]
    pub(crate) const fn archived(&self) -> Option<&Archived> {
        match &self.location {
            ObjectLocation::Device(_) => None,
            ObjectLocation::Archive(archived) => Some(archived),
        }
    }

    /// Somebody has it to use it.
    pub(crate) fn use_it(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    fn object(&self) -> &dyn Object {
        match &self.location {
            ObjectLocation::Device(local) => local,
            #[cfg(feature = "archive")]
            ObjectLocation::Archive(archived) => archived,
        }
    }
}

impl Object for Committed {
    fn id(&self) -> ObjectId {
        self.whereabouts().id()
    }

    fn class(&self) -> MediaClass {
        self.object().class()
    }

    fn length_bytes(&self) -> u64 {
        self.object().length_bytes()
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.object().device()
    }

    fn offset_bytes(&self) -> u64 {
        self.object().offset_bytes()
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> Result<(), ReadError> {
        self.object().read(offset_bytes, into)
    }

    /// # Panics
    /// If the checksums were not loaded before, or the object has no such unit.
    fn verify_unit(&self, unit: u64, bytes: &[u8]) -> Result<(), Damage> {
        self.object().verify_unit(unit, bytes)
    }

    fn load_checksums(&self) -> Result<(), ReadError> {
        self.object().load_checksums()
    }
}

impl Drop for Committed {
    fn drop(&mut self) {
        if let (ObjectLocation::Device(local), Some(uses)) = (&self.location, &self.uses)
            && *self.used.get_mut()
            && !local.is_deleted()
            && local.device().check_here().is_ok()
        {
            uses.end(local.entry().id);
        }
    }
}

impl fmt::Debug for Committed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object().fmt(formatter)
    }
}
