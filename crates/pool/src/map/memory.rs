//! The back end whose objects are anywhere: memory that is filled when it is touched.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_demand::{DemandMemory, FETCH_PAGES_MAX, PageSource};
use bindery_sys::cache;
use bindery_sys::direct::Buffer;
use bindery_sys::mapped::View;
use bindery_sys::memfd;
use bindery_sys::pagemap::Pagemap;
use bindery_units::PAGE_BYTES;

use super::back_end::{BackEnd, Duty, MemoryIdentity, MemoryRange, PageRun};
use super::content::{Content, MappedObject, verify_units};
use super::error::{EvictError, MapError};
use super::layout::Layout;
use super::map_options::{BackEndKind, MapAccess, MapOptions};
use crate::UNIT_BYTES;
use crate::device::{Device, Read};
use crate::object::{Object, ReadError, units_of};

/// Number of reads of up to [`FETCH_PAGES_MAX`] pages each that a prefetch has under way at once.
const QUEUE_DEPTH: usize = 32;

#[derive(Debug)]
pub(super) struct MemoryMap {
    demand: DemandMemory,
    content: Arc<Content>,
}

impl MemoryMap {
    pub(super) fn new(objects: &[Arc<dyn Object>], options: &MapOptions) -> Result<Self, MapError> {
        let longest_bytes = objects.iter().map(|object| object.length_bytes()).max().unwrap_or(0);
        let layout = Layout::new(objects.len(), longest_bytes);
        let too_large = MapError::TooLarge { objects: objects.len(), longest_bytes };
        let layout = layout.ok_or(too_large)?;
        let places = places(objects)?;
        for object in objects {
            object.load_checksums()?;
        }
        let content = Arc::new(Content {
            layout,
            places,
            duty: Duty::default(),
            access: options.access,
            on_lost: options.on_lost,
        });
        let source: Arc<dyn PageSource> = Arc::<Content>::clone(&content);
        let demand = match &options.memory {
            None => DemandMemory::new("bindery-map", layout.bytes(), source),
            Some(file) => {
                file.try_clone().and_then(|file| DemandMemory::attach(file, layout.bytes(), source))
            }
        };
        let demand = demand.map_err(MapError::of_system("make memory that is filled on demand"))?;
        let map = Self { demand, content };
        if options.access == MapAccess::Random {
            map.fault_singly();
        }
        Ok(map)
    }

    fn object(&self, object: usize) -> &Arc<dyn Object> {
        &self.content.places[object].object
    }

    fn bytes_of(&self, object: usize) -> usize {
        units_of(&**self.object(object)) as usize * UNIT_BYTES
    }

    /// Reads units by the object's own means, which say what is wrong, and installs them.
    fn read_units(&self, object: usize, unit: u64, into: &mut Buffer) -> Result<(), ReadError> {
        self.object(object).read(unit * UNIT_BYTES as u64, into)?;
        self.install(object, unit, into)
    }

    fn install(&self, object: usize, unit: u64, content: &[u8]) -> Result<(), ReadError> {
        let first_page = self.content.layout.first_page(object) + unit as usize;
        self.demand.install(first_page, content).map_err(|source| {
            let offset_bytes = unit * UNIT_BYTES as u64;
            ReadError::Device { object: self.object(object).id(), offset_bytes, source }
        })
    }

    /// Reads some runs of one device, all at once.
    fn fetch(&self, device: &dyn Device, runs: &[PageRun]) -> Result<(), ReadError> {
        let buffer = |run: &PageRun| Buffer::zeroed(run.pages as usize * UNIT_BYTES);
        let mut buffers: Vec<Buffer> = runs.iter().map(buffer).collect();
        let reads = runs.iter().zip(&mut buffers).map(|(run, into)| {
            let start = self.object(run.object).offset_bytes();
            Read { offset_bytes: start + run.first_page * UNIT_BYTES as u64, into }
        });
        let read = device.read_many(&mut reads.collect::<Vec<_>>());
        for (run, content) in runs.iter().zip(&mut buffers) {
            let object = &**self.object(run.object);
            let verified = verify_units(object, run.first_page, content);
            if read.is_ok() && verified.is_ok() {
                self.install(run.object, run.first_page, content)?;
            } else {
                self.read_units(run.object, run.first_page, content)?;
            }
        }
        Ok(())
    }

    /// The parts of runs that are not in memory, none longer than what is read at once.
    fn absent(&self, runs: &[PageRun]) -> Vec<PageRun> {
        let pieces = runs.iter().flat_map(|run| {
            let step = FETCH_PAGES_MAX as u64;
            (0..run.pages).step_by(FETCH_PAGES_MAX).map(move |at| {
                let pages = step.min(run.pages - at);
                PageRun { object: run.object, first_page: run.first_page + at, pages }
            })
        });
        let absent = |run: &PageRun| {
            let start = self.content.layout.first_page(run.object) as u64 + run.first_page;
            let (start, bytes) = (start * PAGE_BYTES as u64, run.pages * PAGE_BYTES as u64);
            let cached = cache::cached(self.demand.file().as_fd(), start, bytes);
            !cached.is_ok_and(|cached| cached.resident_pages == run.pages)
        };
        pieces.filter(absent).collect()
    }

    fn failed(&self, what: &'static str, object: usize) -> impl FnOnce(io::Error) -> EvictError {
        let object = self.object(object).id();
        move |source| EvictError { what, object, source }
    }
}

/// Each object with its device's file, opened once a device to be read past the kernel's cache.
fn places(objects: &[Arc<dyn Object>]) -> Result<Vec<MappedObject>, MapError> {
    let mut files: Vec<((u64, u64), Arc<File>)> = Vec::new();
    let mut places = Vec::with_capacity(objects.len());
    for object in objects {
        let cached = object.device().file();
        let cached = cached.ok_or_else(|| MapError::no_file(&**object))?;
        let what = "tell one device's file from another";
        let identity = memfd::identity(cached).map_err(MapError::of_system(what))?;
        let known = files.iter().find(|(known, _)| *known == identity);
        let file = match known {
            Some((_, file)) => Arc::clone(file),
            None => {
                let what = "open a device for reading past the cache";
                let file = cache::reopen_uncached(cached).map_err(MapError::of_system(what))?;
                let file = Arc::new(file);
                files.push((identity, Arc::clone(&file)));
                file
            }
        };
        let (object, fetched) = (Arc::clone(object), AtomicBool::new(false));
        places.push(MappedObject { object, file, fetched });
    }
    Ok(places)
}

impl BackEnd for MemoryMap {
    fn kind(&self) -> BackEndKind {
        BackEndKind::Memfd
    }

    fn identity(&self, object: usize) -> MemoryIdentity {
        let offset_bytes = self.content.layout.base_bytes(object) as u64;
        MemoryIdentity { holder: Arc::as_ptr(&self.content).addr(), offset_bytes }
    }

    fn view(&self, object: usize, offset_bytes: u64, bytes: usize) -> View<'_> {
        let start = self.content.layout.base_bytes(object) + offset_bytes as usize;
        self.demand.view(start, bytes)
    }

    fn read(&self, object: usize, offset_bytes: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let base = self.content.layout.base_bytes(object);
        let (mut at, mut into) = (offset_bytes, into);
        while !into.is_empty() {
            // What is there was verified when it came; the kernel's copy ends where nothing is there.
            let mut done = self.demand.read_resident(base + at as usize, into);
            if done == 0 {
                let (unit, skip) = (at / UNIT_BYTES as u64, (at % UNIT_BYTES as u64) as usize);
                let left = units_of(&**self.object(object)) - unit;
                let wanted = (skip + into.len()).div_ceil(UNIT_BYTES);
                let units = wanted.min(FETCH_PAGES_MAX).min(left as usize);
                let mut buffer = Buffer::zeroed(units * UNIT_BYTES);
                self.read_units(object, unit, &mut buffer)?;
                done = into.len().min(buffer.len() - skip);
                into[..done].copy_from_slice(&buffer[skip..][..done]);
            }
            at += done as u64;
            into = &mut into[done..];
        }
        Ok(())
    }

    fn prefetch(&self, runs: &[PageRun]) -> Result<(), ReadError> {
        let mut runs = self.absent(runs);
        let device = |run: &PageRun| Arc::as_ptr(self.object(run.object).device()).addr();
        // Stable: of one device, in the order asked for.
        runs.sort_by_key(device);
        for of_device in runs.chunk_by(|a, b| device(a) == device(b)) {
            let device = Arc::clone(self.object(of_device[0].object).device());
            for batch in of_device.chunks(QUEUE_DEPTH) {
                self.fetch(&*device, batch)?;
            }
        }
        Ok(())
    }

    fn allocated_bytes(&self) -> Option<u64> {
        memfd::allocated_bytes(self.demand.file()).ok()
    }

    fn resident_pages(&self, object: usize) -> Result<u64, EvictError> {
        let start = self.content.layout.base_bytes(object) as u64;
        let bytes = self.bytes_of(object) as u64;
        let cached = cache::cached(self.demand.file().as_fd(), start, bytes);
        let cached = cached.map_err(self.failed("count the pages", object))?;
        Ok(cached.resident_pages)
    }

    fn mapped_runs(
        &self,
        pagemap: &Pagemap,
        object: usize,
        found: &mut dyn FnMut(u64, u64),
    ) -> Result<(), EvictError> {
        let (start, bytes) = (self.content.layout.base_bytes(object), self.bytes_of(object));
        let seen = self.demand.runs_mapped(pagemap, start, bytes, found);
        seen.map_err(self.failed("find the mapped pages", object))
    }

    fn fault_singly(&self) {
        // Without it, neighbours of what was touched count as touched, and each fault looks for them.
        let _ = self.demand.fault_singly();
    }

    fn forget(&self, run: PageRun) -> Result<(), EvictError> {
        let first = self.content.layout.first_page(run.object) + run.first_page as usize;
        let forgotten = self.demand.forget(first * PAGE_BYTES, run.pages as usize * PAGE_BYTES);
        forgotten.map_err(self.failed("unmap pages", run.object))
    }

    fn evict(&self, objects: &[usize]) -> Result<(), EvictError> {
        for &object in objects.iter().filter(|object| self.bytes_of(**object) > 0) {
            let start = self.content.layout.base_bytes(object);
            let evicted = self.demand.evict(start, self.bytes_of(object));
            evicted.map_err(self.failed("evict the pages", object))?;
        }
        Ok(())
    }

    fn cached_runs(
        &self,
        object: usize,
        found: &mut dyn FnMut(usize, usize),
    ) -> Result<(), EvictError> {
        let (start, bytes) = (self.content.layout.base_bytes(object), self.bytes_of(object));
        let cached = self.demand.view(start, bytes).runs_cached(found);
        cached.map_err(self.failed("find the pages in memory", object))
    }

    fn forget_ranges(&self, ranges: &[MemoryRange]) -> io::Result<()> {
        let forget = |&(start, bytes)| self.demand.forget(start as usize, bytes as usize);
        ranges.iter().try_for_each(forget)
    }

    fn evict_ranges(&self, ranges: &[MemoryRange]) -> io::Result<Vec<(usize, u64)>> {
        let evict = |&(start, bytes)| self.demand.evict(start as usize, bytes as usize);
        ranges.iter().try_for_each(evict)?;
        // A hole is made of whatever there was.
        Ok(Vec::new())
    }

    fn take_fetched(&self, object: usize) -> bool {
        self.content.places[object].fetched.swap(false, Ordering::Relaxed)
    }

    fn duty(&self) -> &Duty {
        &self.content.duty
    }

    fn memory(&self) -> Option<&File> {
        Some(self.demand.file())
    }
}
