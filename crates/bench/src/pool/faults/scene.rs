//! Objects in a pool, mapped, and the ways to a page of them.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bindery_pool::device::{DeviceAccess, DeviceOptions};
use bindery_pool::map::{BackEndChoice, BackEndKind, Map, MapOptions, Maps, Temperature};
use bindery_pool::object::Object;
use bindery_pool::{MediaClass, Pool};
use bindery_sys::cache;
use bindery_sys::direct::Buffer;
use bindery_sys::mapped::{MappedFile, View};
use bindery_units::PAGE_BYTES;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::pool::one_file;

/// A way to a page that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Reading it past the page cache, into memory that is there.
    Read,
    /// Touching a mapping of the whole file.
    Mmap,
    /// Touching a map, by the file.
    FileMap,
    /// Touching a map, by memory that is filled on demand.
    MemoryMap,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Read, Self::Mmap, Self::FileMap, Self::MemoryMap];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Read => "pread, direct",
            Self::Mmap => "mmap the file",
            Self::FileMap => "map, file",
            Self::MemoryMap => "map, memfd",
        }
    }
}

/// A page of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    object: usize,
    offset_bytes: u64,
}

pub(super) struct Scene {
    pub(super) object_bytes: u64,
    objects: Vec<Arc<dyn Object>>,
    collection: usize,
    file: File,
    direct: File,
    whole: MappedFile,
    by_file: Vec<Map>,
    by_memory: Vec<Map>,
    /// Kept open.
    _pool: Pool,
}

impl Scene {
    pub(super) fn new(
        directory: &Path,
        objects: usize,
        object_bytes: u64,
        collection: usize,
    ) -> Result<Self> {
        let options = DeviceOptions::new(DeviceAccess::Write);
        let pool =
            one_file::create(&directory.join("pool"), objects as u64 * object_bytes, &options)?;
        let mut random = SmallRng::seed_from_u64(5);
        let mut content = vec![0; object_bytes as usize];
        let write = |_| {
            random.fill(&mut content[..]);
            let mut writer = pool.allocate_mblock(MediaClass::Capacity, object_bytes)?;
            writer.append(&content)?;
            Ok(writer.commit()? as Arc<dyn Object>)
        };
        let objects: Vec<_> = (0..objects).map(write).collect::<Result<_>>()?;
        let file = objects[0].device().file().context("a pool without a file")?;
        let file = File::from(file.try_clone_to_owned()?);
        let direct = cache::reopen_uncached(file.as_fd())?;
        let whole = MappedFile::map(file.as_fd(), file.metadata()?.len() as usize)?;
        whole.advise_random()?;
        let maps = Maps::default();
        let map = |kind: BackEndKind| {
            let options =
                MapOptions { choice: BackEndChoice::Fixed(kind), ..MapOptions::default() };
            let map = |objects| maps.map(objects, Temperature::Warm, &options);
            objects.chunks(collection).map(map).collect::<Result<Vec<_>, _>>()
        };
        let (by_file, by_memory) = (map(BackEndKind::File)?, map(BackEndKind::Memfd)?);
        Ok(Self {
            object_bytes,
            objects,
            collection,
            file,
            direct,
            whole,
            by_file,
            by_memory,
            _pool: pool,
        })
    }

    /// All pages of all objects.
    pub(super) fn places(&self) -> Vec<Place> {
        let pages = |object| {
            let offsets = (0..self.object_bytes).step_by(PAGE_BYTES);
            offsets.map(move |offset_bytes| Place { object, offset_bytes })
        };
        (0..self.objects.len()).flat_map(pages).collect()
    }

    /// Has nothing of the file, nor of the maps, in memory.
    pub(super) fn evict(&self) -> Result<()> {
        self.whole.forget(0, self.whole.bytes())?;
        let mut left_pages = 0;
        for map in self.by_memory.iter().chain(&self.by_file) {
            left_pages += map.purge()?;
        }
        cache::evict(self.file.as_fd(), 0, self.whole.bytes() as u64)?;
        let pages = self.objects.len() as u64 * self.object_bytes / PAGE_BYTES as u64;
        ensure!(left_pages * 100 <= pages, "{left_pages} of {pages} pages stay in memory");
        Ok(())
    }

    /// The first byte of a page.
    pub(super) fn touch(&self, way: Way, place: Place, buffer: &mut Buffer) -> Result<u8> {
        let Place { object, offset_bytes } = place;
        let in_file = self.objects[object].offset_bytes() + offset_bytes;
        Ok(match way {
            Way::Read => {
                self.direct.read_exact_at(buffer, in_file)?;
                buffer[0]
            }
            Way::Mmap => self.whole.view(in_file as usize, 1).byte(0),
            Way::FileMap => self.get(&self.by_file, place)?,
            Way::MemoryMap => self.get(&self.by_memory, place)?,
        })
    }

    fn get(&self, maps: &[Map], place: Place) -> Result<u8> {
        let (map, object) = (place.object / self.collection, place.object % self.collection);
        Ok(maps[map].get(object, place.offset_bytes, 1)?.byte(0))
    }

    /// The first objects, as many as have so many bytes, but at least one: whole, in memory and mapped
    /// in either way.
    pub(super) fn resident(&self, bytes: u64) -> Result<[Vec<View<'_>>; 2]> {
        let count = (bytes / self.object_bytes).clamp(1, self.objects.len() as u64) as usize;
        let views = |maps| -> Result<Vec<View<'_>>> {
            let view = |object| self.view(maps, object);
            (0..count).map(view).collect()
        };
        Ok([views(&self.by_file)?, views(&self.by_memory)?])
    }

    fn view<'a>(&self, maps: &'a [Map], object: usize) -> Result<View<'a>> {
        let (map, object) = (&maps[object / self.collection], object % self.collection);
        map.prefetch_object(object)?;
        let view = map.get(object, 0, self.object_bytes as usize)?;
        view.touch();
        Ok(view)
    }

    /// A byte of an object by way of its map, which finds it each time.
    pub(super) fn find(&self, by_file: bool, object: usize, offset_bytes: usize) -> u8 {
        let maps = if by_file { &self.by_file } else { &self.by_memory };
        let map = &maps[object / self.collection];
        let view = map.get(object % self.collection, offset_bytes as u64, 1);
        view.expect("the object has that byte").byte(0)
    }
}
