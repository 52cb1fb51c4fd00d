//! Content of the memfd back end: units of objects, read past the kernel's cache and verified.
//!
//! [`PageSource::fetch`] runs in a signal handler. It takes no lock and allocates nothing: the devices' files
//! are open, the checksums loaded, and the buffer is given.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_demand::PageSource;
use bindery_sys::direct::Transfer;
use bindery_units::PAGE_BYTES;

use super::back_end::Duty;
use super::layout::Layout;
use super::map_options::{Lost, MapAccess};
use crate::UNIT_BYTES;
use crate::object::{Damage, Object, units_of};

/// Verifies whole units from `first` on.
pub(super) fn verify_units(object: &dyn Object, first: u64, bytes: &[u8]) -> Result<(), Damage> {
    let units = bytes.chunks_exact(UNIT_BYTES).zip(first..);
    units.into_iter().try_for_each(|(bytes, unit)| object.verify_unit(unit, bytes))
}

/// An object and where it is read.
pub(super) struct MappedObject {
    pub(super) object: Arc<dyn Object>,
    pub(super) file: Arc<File>,
    /// True if units of the object were fetched since the reaper last looked.
    pub(super) fetched: AtomicBool,
}

/// The content of a map.
pub(super) struct Content {
    pub(super) layout: Layout,
    pub(super) places: Vec<MappedObject>,
    pub(super) duty: Duty,
    pub(super) access: MapAccess,
    pub(super) on_lost: Option<fn(Lost)>,
}

impl fmt::Debug for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Content of {} objects", self.places.len())
    }
}

/// Pages that are read at once where reading goes forwards.
const SEQUENTIAL_PAGES: usize = 32;

impl Content {
    /// The object of a page and its unit, if the object has that much.
    fn find(&self, page: usize) -> Option<(&MappedObject, u64)> {
        let (object, unit) = self.layout.find(page);
        let place = self.places.get(object)?;
        let unit = unit as u64;
        (unit < units_of(&*place.object)).then_some((place, unit))
    }
}

impl PageSource for Content {
    fn window(&self, page: usize) -> Range<usize> {
        let delay = self.duty.fault_delay();
        if !delay.is_zero() {
            // One system call; no allocation and no lock. Up to twice as long, so that those who wait
            // do not go on all at once.
            std::thread::sleep(delay + delay * (page % 16) as u32 / 16);
        }
        let alone = page..page + 1;
        let (MapAccess::Sequential, Some((place, unit))) = (self.access, self.find(page)) else {
            return alone;
        };
        let left = (units_of(&*place.object) - unit) as usize;
        let limit = usize::try_from(self.duty.readahead_pages()).unwrap_or(usize::MAX);
        page..page + left.min(SEQUENTIAL_PAGES).min(limit).max(1)
    }

    fn fetch(&self, first_page: usize, into: &mut [u8]) -> bool {
        let Some((place, unit)) = self.find(first_page) else { return false };
        place.fetched.store(true, Ordering::Relaxed);
        let at = place.object.offset_bytes() + unit * UNIT_BYTES as u64;
        // Not by the C library, for which pread(2) is a place to be cancelled at.
        let read = Transfer::read(at, into).run(place.file.as_fd());
        read.is_ok() && verify_units(&*place.object, unit, into).is_ok()
    }

    fn lost(&self, page: usize) {
        let (Some(on_lost), (object, unit)) = (self.on_lost, self.layout.find(page)) else {
            return;
        };
        if let Some(place) = self.places.get(object) {
            let offset_bytes = (unit * PAGE_BYTES) as u64;
            on_lost(Lost { object: place.object.id(), offset_bytes });
        }
    }
}
