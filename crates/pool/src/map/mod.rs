//! mcache maps: a list of objects as one range of memory.
//!
//! One call maps a list, and it costs at most one mapping (`vm_area_struct`), whatever the number of
//! objects, their age and their medium. Pages come when they are touched. Two back ends:
//!
//! * **file**: the objects are in one device's file, of which the process has one shared mapping that all
//!   maps use, so that a map costs no mapping at all. The kernel reads, caches and reclaims.
//! * **memfd**: the objects are anywhere. Each is a bucket of one range; the thread that touches an
//!   absent page reads it past the kernel's cache, verifies it and goes on
//!   ([`bindery_demand`]). Its memory is counted exactly, and given back by the reaper alone.
//!
//! Both share their pages with other processes that map the same objects: the file's by nature, the
//! memfd's with those that are given its descriptor.

mod accesses;
mod back_end;
mod content;
mod error;
mod file;
mod layout;
mod make;
mod map_options;
mod mapped;
mod memory;
mod registry;
mod watch;
mod window;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bindery_sys::mapped::View;

use crate::OtherProcess;
use crate::object::{self, Object, ReadError};

pub(crate) use self::accesses::{Accesses, FREQUENCIES};
pub(crate) use self::back_end::{MemoryIdentity, MemoryRange};

pub use self::back_end::{PageRun, Prefetched};
pub use self::error::{EvictError, MapError};
pub use self::map_options::{BackEndChoice, BackEndKind, Lost, MapAccess, MapOptions, Temperature};
pub(crate) use self::mapped::Mapped;
pub use self::registry::Maps;
pub(crate) use self::watch::{Misses, SAMPLED, Watch};

/// Pages of a range that are in memory, and all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// All pages of the objects.
    pub pages: u64,
    /// Pages in memory.
    pub resident_pages: u64,
}

/// A list of objects that can be read as memory, until this is dropped. They stay as they are for so
/// long, deleted or not.
///
/// A map is one process's. In a child of fork(2) every call is refused ([`OtherProcess`]),
/// and to drop it does nothing. A [`View`] that was had before shows the same bytes with the file back end, for as
/// long as the parent holds the map; the memory of the memfd back end children do not have, and to read it is
/// `SIGSEGV`.
#[derive(Debug)]
pub struct Map {
    /// There until this is dropped.
    mapped: Option<Arc<Mapped>>,
    maps: Maps,
}

impl Map {
    fn new(mapped: Arc<Mapped>, maps: Maps) -> Self {
        Self { mapped: Some(mapped), maps }
    }

    /// Returns the shared part, in whatever process.
    fn mapped(&self) -> &Mapped {
        self.mapped.as_ref().expect("a map is there until it is dropped")
    }

    /// Returns the shared part, in the process that made the map.
    fn here(&self) -> Result<&Mapped, OtherProcess> {
        self.maps.check_here()?;
        Ok(self.mapped())
    }

    /// As [`here`](Self::here), for those who are to do something with its pages.
    fn here_to(&self, what: &'static str) -> Result<&Mapped, EvictError> {
        let refused = |error: OtherProcess| {
            let object = self.mapped().objects[0].id();
            EvictError { what, object, source: error.into() }
        };
        self.here().map_err(refused)
    }

    /// Returns the number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapped().objects.len()
    }

    /// Returns true if the map has no object; no map is made of none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mapped().objects.is_empty()
    }

    /// The objects, in the order in which they were mapped.
    #[must_use]
    pub fn objects(&self) -> &[Arc<dyn Object>] {
        &self.mapped().objects
    }

    /// Returns the back end of the map.
    #[must_use]
    pub fn back_end(&self) -> BackEndKind {
        self.mapped().back_end.kind()
    }

    /// Bytes of an object, as memory. Costs arithmetic; to read them may be a fault, which reads the
    /// device. Where a page cannot be had, reading it is `SIGBUS`, and [`MapOptions::on_lost`] is called
    /// first; [`read`](Self::read) gives an error instead. The file back end does not verify checksums
    /// here; the memfd back end verifies each page that it fetches. The memfd back end's absent pages are
    /// `EFAULT` for system calls: [`prefetch`](Self::prefetch) them, or copy.
    ///
    /// A [`View`] rather than a slice, because a slice claims that nobody changes its bytes. The pool
    /// keeps that: a committed object is never written, its place is not given away while this map holds
    /// it, and what is evicted comes back as it was. What remains is for whoever calls
    /// [`View::as_slice`] to know: that no other program writes to the pool's devices, that they do not
    /// fail silently (file back end), and that nobody to whom the memfd was given writes to it (memfd).
    ///
    /// # Errors
    /// [`ReadError::BeyondEnd`].
    ///
    /// # Panics
    /// If the map has no object of that number.
    pub fn get(
        &self,
        object: usize,
        offset_bytes: u64,
        bytes: usize,
    ) -> Result<View<'_>, ReadError> {
        let mapped = self.here()?;
        object::check_range(&*mapped.objects[object], offset_bytes, bytes as u64)?;
        mapped.touch(object, offset_bytes, bytes);
        Ok(mapped.back_end.view(object, offset_bytes, bytes))
    }

    /// Reports an access to bytes of an object that are read through a view from before. Costs a
    /// nanosecond or two a page, and nothing is read. Bytes beyond the object's end are nobody's.
    ///
    /// # Panics
    /// If the map has no object of that number.
    #[inline]
    pub fn touch(&self, object: usize, offset_bytes: u64, bytes: usize) {
        if let Ok(mapped) = self.here() {
            mapped.touch(object, offset_bytes, bytes);
        }
    }

    /// Copies bytes of an object, verified against its checksums. Blocks while pages are read.
    ///
    /// # Errors
    /// See [`ReadError`]: it names the object and the place.
    ///
    /// # Panics
    /// If the map has no object of that number.
    pub fn read(&self, object: usize, offset_bytes: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let mapped = self.here()?;
        object::check_range(&*mapped.objects[object], offset_bytes, into.len() as u64)?;
        mapped.touch(object, offset_bytes, into.len());
        mapped.back_end.read(object, offset_bytes, into)
    }

    /// Brings pages into memory, as many reads at once as the devices take, and waits for them. While the
    /// machine is short of memory, runs are cut short (see [`Reaper`](crate::reaper::Reaper)).
    ///
    /// # Errors
    /// The first page that could not be had; others may have been.
    ///
    /// # Panics
    /// If the map has no such object. Pages beyond an object's end are left out.
    pub fn prefetch(&self, runs: &[PageRun]) -> Result<Prefetched, ReadError> {
        let mapped = self.here()?;
        let limit_pages = mapped.back_end.duty().readahead_pages();
        let mut runs: Vec<PageRun> = runs.to_vec();
        for run in &mut runs {
            let left = mapped.pages_of(run.object).saturating_sub(run.first_page);
            run.pages = run.pages.min(left).min(limit_pages);
        }
        runs.retain(|run| run.pages > 0);
        let pages = runs.iter().map(|run| run.pages).sum();
        mapped.back_end.prefetch(&runs)?;
        for run in &runs {
            if let Some(accesses) = mapped.accesses(run.object) {
                let pages = run.first_page as usize..(run.first_page + run.pages) as usize;
                pages.for_each(|page| _ = accesses.correct(page, true));
            }
        }
        Ok(Prefetched { pages })
    }

    /// Brings all of one object into memory, as [`prefetch`](Self::prefetch).
    ///
    /// # Errors
    /// As for `prefetch`.
    ///
    /// # Panics
    /// If the map has no object of that number.
    pub fn prefetch_object(&self, object: usize) -> Result<Prefetched, ReadError> {
        let pages = self.mapped().pages_of(object);
        self.prefetch(&[PageRun { object, first_page: 0, pages }])
    }

    /// Gives the memory of all objects back, as far as nobody else uses it. What is touched again is
    /// read again. How many pages are still there: such as others have mapped, or that lie in a huge
    /// page with something else.
    ///
    /// # Errors
    /// The kernel's.
    pub fn purge(&self) -> Result<u64, EvictError> {
        let all: Vec<usize> = (0..self.len()).collect();
        self.here_to("evict the pages")?.back_end.evict(&all)?;
        Ok(self.residency()?.resident_pages)
    }

    /// Returns the pages of the map that are in memory, whoever put them there. Costs a system call an object and some 10 ns a
    /// page.
    ///
    /// # Errors
    /// The kernel's.
    pub fn residency(&self) -> Result<Residency, EvictError> {
        let mapped = self.here_to("count the pages")?;
        let mut residency = Residency::default();
        for object in 0..self.len() {
            residency.pages += mapped.pages_of(object);
            residency.resident_pages += mapped.back_end.resident_pages(object)?;
        }
        Ok(residency)
    }

    /// Returns the temperature of the objects.
    #[must_use]
    pub fn temperature(&self) -> Temperature {
        self.mapped().temperature()
    }

    /// Sets the temperature of the objects.
    pub fn set_temperature(&self, temperature: Temperature) {
        self.mapped().temperature.store(temperature.number(), Ordering::Relaxed);
    }

    /// The memory of the memfd back end: another process passes it as [`MapOptions::memory`] with the same
    /// objects in the same order, and shares the pages. None with the file back end, whose pages are
    /// shared as they are.
    #[must_use]
    pub fn memory(&self) -> Option<&File> {
        self.mapped().back_end.memory()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let Some(mapped) = self.mapped.take() else { return };
        match self.maps.check_here() {
            Ok(()) => self.maps.forget(&mapped),
            // Threads of the parent's may have had its locks.
            Err(_) => std::mem::forget(mapped),
        }
    }
}
