//! The back end whose objects are in one device's file: the file's shared mapping, and arithmetic.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bindery_sys::cache;
use bindery_sys::mapped::View;
use bindery_sys::pagemap::Pagemap;
use bindery_units::PAGE_BYTES;

use super::back_end::{BackEnd, Duty, MemoryIdentity, MemoryRange, PageRun};
use super::content::verify_units;
use super::error::{EvictError, MapError};
use super::map_options::{BackEndKind, MapOptions};
use super::window::{DeviceFiles, Extent, Tenant, Window};
use crate::UNIT_BYTES;
use crate::object::{Object, ReadError, units_of};

/// Bytes that a checked read reads at once.
const READ_BYTES: u64 = 128 << 10;

/// Objects that lie closer than this to each other are evicted together, with what is between them: the
/// kernel drops huge pages whole or not at all.
const EVICT_GAP_BYTES: u64 = 64 << 10;

/// Largest alignment of a huge page of a file, in bytes.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

#[derive(Debug)]
pub(super) struct FileMap {
    id: u64,
    objects: Vec<Arc<dyn Object>>,
    window: Arc<Window>,
    duty: Duty,
    /// True if the map's maker wants reports of lost pages.
    tenant: bool,
}

impl FileMap {
    pub(super) fn new(
        id: u64,
        objects: &[Arc<dyn Object>],
        file: BorrowedFd<'_>,
        files: &DeviceFiles,
        options: &MapOptions,
    ) -> Result<Self, MapError> {
        let bytes = objects.iter().map(|object| extent(object).1).max().unwrap_or(0);
        let window = files.window(file, bytes, options.access)?;
        if let Some(on_lost) = options.on_lost {
            let tenant = |object: &Arc<dyn Object>| {
                let (offset_bytes, bytes) = (object.offset_bytes(), object.length_bytes());
                Tenant { map: id, object: object.id(), offset_bytes, bytes, on_lost }
            };
            window.let_in(&objects.iter().map(tenant).collect::<Vec<_>>());
        }
        window.device().show(objects.iter().map(extent));
        let (objects, tenant) = (objects.to_vec(), options.on_lost.is_some());
        Ok(Self { id, objects, window, duty: Duty::default(), tenant })
    }

    /// Returns the start and the length of a run in the file, in bytes.
    fn place(&self, run: PageRun) -> (u64, u64) {
        let start = self.objects[run.object].offset_bytes() + run.first_page * PAGE_BYTES as u64;
        (start, run.pages * PAGE_BYTES as u64)
    }

    fn whole(&self, object: usize) -> PageRun {
        PageRun { object, first_page: 0, pages: units_of(&*self.objects[object]) }
    }

    /// Reads whole units through the kernel's cache and verifies them.
    fn read_units(
        &self,
        object: &dyn Object,
        first: u64,
        into: &mut [u8],
    ) -> Result<(), ReadError> {
        use std::os::unix::fs::FileExt;
        let offset_bytes = first * UNIT_BYTES as u64;
        let file = self.window.device().cached_file();
        file.read_exact_at(into, object.offset_bytes() + offset_bytes)
            .map_err(|source| ReadError::Device { object: object.id(), offset_bytes, source })?;
        Ok(verify_units(object, first, into)?)
    }

    /// Evicts a range of the file that no mapping of this process shows any more.
    fn evict_range(&self, start: u64, end: u64) -> io::Result<()> {
        for window in self.window.device().windows() {
            let end = end.min(window.mapped().bytes() as u64);
            if start < end {
                window.mapped().forget(start as usize, (end - start) as usize)?;
            }
        }
        cache::evict(self.window.device().file(), start, end - start)
    }

    fn resident_in(&self, start: u64, end: u64) -> io::Result<u64> {
        Ok(cache::cached(self.window.device().file(), start, end - start)?.resident_pages)
    }
}

/// Returns the extent of an object on its device, without its checksums.
fn extent(object: &Arc<dyn Object>) -> Extent {
    let start = object.offset_bytes();
    (start, start + units_of(&**object) * UNIT_BYTES as u64)
}

impl BackEnd for FileMap {
    fn kind(&self) -> BackEndKind {
        BackEndKind::File
    }

    fn identity(&self, object: usize) -> MemoryIdentity {
        let offset_bytes = self.objects[object].offset_bytes();
        MemoryIdentity { holder: self.window.holder(), offset_bytes }
    }

    fn view(&self, object: usize, offset_bytes: u64, bytes: usize) -> View<'_> {
        let start = self.objects[object].offset_bytes() + offset_bytes;
        self.window.mapped().view(start as usize, bytes)
    }

    fn read(&self, object: usize, offset_bytes: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let object = &*self.objects[object];
        object.load_checksums()?;
        let (mut at, mut into) = (offset_bytes, into);
        let mut units = Vec::new();
        while !into.is_empty() {
            let (first, skip) = (at / UNIT_BYTES as u64, at % UNIT_BYTES as u64);
            let wanted = (skip + into.len() as u64).min(READ_BYTES);
            units.resize(wanted.next_multiple_of(UNIT_BYTES as u64) as usize, 0);
            self.read_units(object, first, &mut units)?;
            let (piece, rest) = into.split_at_mut((wanted - skip) as usize);
            piece.copy_from_slice(&units[skip as usize..][..piece.len()]);
            at += piece.len() as u64;
            into = rest;
        }
        Ok(())
    }

    fn prefetch(&self, runs: &[PageRun]) -> Result<(), ReadError> {
        let failed = |run: PageRun| {
            let object = self.objects[run.object].id();
            let offset_bytes = run.first_page * PAGE_BYTES as u64;
            move |source| ReadError::Device { object, offset_bytes, source }
        };
        // All reads are under way before the first is waited for.
        for &run in runs {
            let (start, bytes) = self.place(run);
            let begun = cache::read_ahead(self.window.device().file(), start, bytes);
            begun.map_err(failed(run))?;
        }
        for &run in runs {
            let (start, bytes) = self.place(run);
            let read = self.window.mapped().populate(start as usize, bytes as usize);
            read.map_err(failed(run))?;
        }
        Ok(())
    }

    fn allocated_bytes(&self) -> Option<u64> {
        None
    }

    fn resident_pages(&self, object: usize) -> Result<u64, EvictError> {
        let (start, bytes) = self.place(self.whole(object));
        self.resident_in(start, start + bytes).map_err(self.failed("count the pages", object))
    }

    fn mapped_runs(
        &self,
        pagemap: &Pagemap,
        object: usize,
        found: &mut dyn FnMut(u64, u64),
    ) -> Result<(), EvictError> {
        let (start, bytes) = self.place(self.whole(object));
        for window in self.window.device().windows() {
            let mapped = window.mapped();
            // What grew beyond a window is in a longer one.
            let bytes = bytes.min((mapped.bytes() as u64).saturating_sub(start));
            if bytes > 0 {
                let seen = mapped.runs_mapped(pagemap, start as usize, bytes as usize, found);
                seen.map_err(self.failed("find the mapped pages", object))?;
            }
        }
        Ok(())
    }

    fn fault_singly(&self) {
        self.window.fault_singly();
    }

    fn forget(&self, run: PageRun) -> Result<(), EvictError> {
        let (start, bytes) = self.place(run);
        for window in self.window.device().windows() {
            let mapped = window.mapped();
            if start + bytes <= mapped.bytes() as u64 {
                let forgotten = mapped.forget(start as usize, bytes as usize);
                forgotten.map_err(self.failed("unmap pages", run.object))?;
            }
        }
        Ok(())
    }

    fn evict(&self, objects: &[usize]) -> Result<(), EvictError> {
        let place = |&object: &usize| (extent(&self.objects[object]), object);
        let mut places: Vec<_> = objects.iter().map(place).filter(|((a, b), _)| a < b).collect();
        places.sort_unstable();
        let evicted: Vec<Extent> = places.iter().map(|(extent, _)| *extent).collect();
        let near = |a: &(Extent, usize), b: &(Extent, usize)| {
            b.0.0.saturating_sub(a.0.1) <= EVICT_GAP_BYTES
        };
        for together in places.chunk_by(near) {
            let (start, end) = (together[0].0.0, together[together.len() - 1].0.1);
            let failed = || self.failed("evict the pages", together[0].1);
            self.evict_range(start, end).map_err(failed())?;
            if self.resident_in(start, end).map_err(failed())? > 0 {
                // A huge page that begins before or ends behind. What else is in it is read again when
                // it is touched; what a map shows, this one or another, stays.
                let start = start & !(HUGE_PAGE_BYTES - 1);
                let end = end.next_multiple_of(HUGE_PAGE_BYTES);
                if !self.window.device().shows_others((start, end), &evicted) {
                    self.evict_range(start, end).map_err(failed())?;
                }
            }
        }
        Ok(())
    }

    fn cached_runs(
        &self,
        object: usize,
        found: &mut dyn FnMut(usize, usize),
    ) -> Result<(), EvictError> {
        let (start, bytes) = self.place(self.whole(object));
        let view = self.window.mapped().view(start as usize, bytes as usize);
        view.runs_cached(found).map_err(self.failed("find the pages in memory", object))
    }

    fn forget_ranges(&self, ranges: &[MemoryRange]) -> io::Result<()> {
        for window in self.window.device().windows() {
            let end = window.mapped().bytes() as u64;
            let is_inside = |(start, bytes): &&MemoryRange| start + bytes <= end;
            let inside = ranges.iter().filter(is_inside);
            let inside: Vec<_> =
                inside.map(|&(start, bytes)| (start as usize, bytes as usize)).collect();
            window.mapped().forget_all(&inside)?;
        }
        Ok(())
    }

    fn evict_ranges(&self, ranges: &[MemoryRange]) -> io::Result<Vec<(usize, u64)>> {
        self.forget_ranges(ranges)?;
        let mut left = Vec::new();
        for (at, &(start, bytes)) in ranges.iter().enumerate() {
            cache::evict(self.window.device().file(), start, bytes)?;
            let pages = self.resident_in(start, start + bytes)?;
            if pages > 0 {
                left.push((at, pages));
            }
        }
        Ok(left)
    }

    fn take_fetched(&self, _object: usize) -> bool {
        false
    }

    fn duty(&self) -> &Duty {
        &self.duty
    }

    fn memory(&self) -> Option<&File> {
        None
    }
}

impl FileMap {
    fn failed(&self, what: &'static str, object: usize) -> impl FnOnce(io::Error) -> EvictError {
        let object = self.objects[object].id();
        move |source| EvictError { what, object, source }
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        self.window.device().hide(self.objects.iter().map(extent));
        if self.tenant {
            self.window.turn_out(self.id);
        }
    }
}
