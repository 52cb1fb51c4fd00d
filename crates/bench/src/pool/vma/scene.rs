//! Objects to map, and the ways to map them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use bindery_pool::device::Device;
use bindery_pool::map::{BackEndChoice, BackEndKind, Map, MapOptions, Maps, Temperature};
use bindery_pool::object::{Damage, Object, ReadError};
use bindery_pool::{MediaClass, ObjectId, UNIT_BYTES};
use bindery_sys::cache;
use bindery_sys::direct::Buffer;
use bindery_sys::mapped::View;
use bindery_sys::mapping::Mapping;

use super::{FAULTS, OBJECT_BYTES};

/// A way to map objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Each a file, mapped by itself.
    Files,
    /// Each a slice of one file, mapped by itself.
    Slices,
    /// Maps of collections, by the file.
    Maps,
    /// Maps of collections, by memory that is filled on demand.
    MemoryMaps,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Files, Self::Slices, Self::Maps, Self::MemoryMaps];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Files => "mmap a file",
            Self::Slices => "mmap a slice",
            Self::Maps => "map, file",
            Self::MemoryMaps => "map, memfd",
        }
    }
}

/// The same objects, as files and as slices of one.
pub(super) struct Scene {
    directory: PathBuf,
    device: Arc<OneFile>,
    objects: Vec<Arc<dyn Object>>,
    collection: usize,
}

/// Objects that are mapped.
pub(super) enum Mapped {
    Each(Vec<Mapping>),
    Collections { maps: Vec<Map>, collection: usize },
}

impl Mapped {
    /// The first byte of an object.
    pub(super) fn byte(&self, object: usize) -> u8 {
        match self {
            Self::Each(mappings) => View::of(&mappings[object], 0, 1).byte(0),
            Self::Collections { maps, collection } => {
                let view = maps[object / collection].get(object % collection, 0, 1);
                view.expect("no object is empty").byte(0)
            }
        }
    }
}

impl Scene {
    pub(super) fn new(directory: &Path, objects: usize, collection: usize) -> Result<Self> {
        let device = Arc::new(OneFile::new(&directory.join("pool"), objects as u64)?);
        let slice = |at: usize| {
            let device: Arc<dyn Device> = Arc::<OneFile>::clone(&device);
            let checksum = crc_fast::crc32_iscsi(&[0; UNIT_BYTES]);
            Arc::new(Slice { id: ObjectId(at as u64), device, checksum }) as Arc<dyn Object>
        };
        let slices = (0..objects).map(slice).collect();
        let scene = Self { directory: directory.into(), device, objects: slices, collection };
        for object in 0..objects {
            let path = scene.path(object);
            fs::create_dir_all(path.parent().context("no directory")?)?;
            let file = File::create_new(path).context("cannot make a file an object")?;
            file.set_len(OBJECT_BYTES)?;
            if object < FAULTS {
                write(&file, 0)?;
            }
        }
        Ok(scene)
    }

    /// A thousand files a directory.
    fn path(&self, object: usize) -> PathBuf {
        self.directory.join(format!("{}/{object}", object / 1000))
    }

    pub(super) fn map(&self, kind: Kind, objects: usize) -> Result<Mapped> {
        let bytes = OBJECT_BYTES as usize;
        let random = |mapping: Mapping| mapping.advise_random().map(|()| mapping);
        let each = |map: &dyn Fn(usize) -> io::Result<Mapping>| {
            let mappings = (0..objects).map(|object| map(object).and_then(random));
            Ok(Mapped::Each(mappings.collect::<io::Result<_>>()?))
        };
        let file = |object: usize| {
            let file = File::open(self.path(object))?;
            Mapping::shared(file.as_fd(), bytes, false)
        };
        let slice = |object: usize| {
            let offset_bytes = object as u64 * OBJECT_BYTES;
            Mapping::shared_at(self.device.file.as_fd(), offset_bytes, bytes, false)
        };
        match kind {
            Kind::Files => each(&file),
            Kind::Slices => each(&slice),
            Kind::Maps => self.collections(BackEndKind::File, objects),
            Kind::MemoryMaps => self.collections(BackEndKind::Memfd, objects),
        }
    }

    fn collections(&self, kind: BackEndKind, objects: usize) -> Result<Mapped> {
        let maps = Maps::default();
        let map = |objects: &[Arc<dyn Object>]| {
            let options =
                MapOptions { choice: BackEndChoice::Fixed(kind), ..MapOptions::default() };
            maps.map(objects, Temperature::Warm, &options)
        };
        let maps = self.objects[..objects].chunks(self.collection).map(map);
        let (maps, collection) = (maps.collect::<Result<_, _>>()?, self.collection);
        Ok(Mapped::Collections { maps, collection })
    }

    /// The first objects as another process would map them: what is in memory is, and not mapped.
    pub(super) fn map_again(&self, kind: Kind, mapped: &Mapped, objects: usize) -> Result<Mapped> {
        let Mapped::Collections { maps, .. } = mapped else { return self.map(kind, objects) };
        let others = Maps::default();
        let map = |map: &Map| {
            let memory = map.memory().map(File::try_clone).transpose()?;
            let options = MapOptions { memory, ..MapOptions::default() };
            Ok::<_, anyhow::Error>(others.map(map.objects(), Temperature::Warm, &options)?)
        };
        let maps = maps.iter().take(objects.div_ceil(self.collection)).map(map);
        let (maps, collection) = (maps.collect::<Result<_>>()?, self.collection);
        Ok(Mapped::Collections { maps, collection })
    }

    /// Has nothing of the first objects in memory.
    pub(super) fn evict(&self, mapped: &Mapped, objects: usize) -> Result<()> {
        for object in 0..objects {
            cache::evict(File::open(self.path(object))?.as_fd(), 0, OBJECT_BYTES)?;
        }
        cache::evict(self.device.file.as_fd(), 0, objects as u64 * OBJECT_BYTES)?;
        if let Mapped::Collections { maps, .. } = mapped {
            maps.iter()
                .take(objects.div_ceil(self.collection))
                .try_for_each(|map| map.purge().map(drop))?;
        }
        Ok(())
    }
}

/// Writes an object, durably: what is not written has no blocks, and no device is read for it.
fn write(file: &File, offset_bytes: u64) -> io::Result<()> {
    file.write_all_at(&[0; OBJECT_BYTES as usize], offset_bytes)?;
    file.sync_all()
}

/// A file that is a device of objects of zeros.
#[derive(Debug)]
struct OneFile {
    file: File,
}

impl OneFile {
    fn new(path: &Path, objects: u64) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = file.context("cannot make a file of all objects")?;
        file.set_len(objects * OBJECT_BYTES)?;
        for object in 0..objects.min(FAULTS as u64) {
            write(&file, object * OBJECT_BYTES)?;
        }
        Ok(Self { file })
    }
}

impl Device for OneFile {
    fn bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        self.file.read_exact_at(into, offset_bytes)
    }

    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()> {
        self.file.write_all_at(from, offset_bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn discard(&self, _offset_bytes: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn grow(&self, bytes: u64) -> io::Result<u64> {
        self.file.set_len(bytes).map(|()| bytes)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// An object of zeros.
#[derive(Debug)]
struct Slice {
    id: ObjectId,
    device: Arc<dyn Device>,
    /// Of a unit of zeros.
    checksum: u32,
}

impl Object for Slice {
    fn id(&self) -> ObjectId {
        self.id
    }

    fn class(&self) -> MediaClass {
        MediaClass::Capacity
    }

    fn length_bytes(&self) -> u64 {
        OBJECT_BYTES
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn offset_bytes(&self) -> u64 {
        self.id.0 * OBJECT_BYTES
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> Result<(), ReadError> {
        let failed = |source| ReadError::Device { object: self.id, offset_bytes, source };
        self.device.read(self.offset_bytes() + offset_bytes, into).map_err(failed)?;
        let units = into.chunks(UNIT_BYTES).zip(offset_bytes / UNIT_BYTES as u64..);
        Ok(units.into_iter().try_for_each(|(bytes, unit)| self.verify_unit(unit, bytes))?)
    }

    fn verify_unit(&self, unit: u64, bytes: &[u8]) -> Result<(), Damage> {
        let (expected, found) = (self.checksum, crc_fast::crc32_iscsi(bytes));
        let offset_bytes = unit * UNIT_BYTES as u64;
        let damage = Damage { object: self.id, offset_bytes, expected, found };
        if expected == found { Ok(()) } else { Err(damage) }
    }
}
