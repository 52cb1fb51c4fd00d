//! Objects in plain files, for what needs no catalogue.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bindery_pool::device::Device;
use bindery_pool::object::{Damage, Object, ReadError};
use bindery_pool::{MediaClass, ObjectId, UNIT_BYTES};
use bindery_sys::direct::Buffer;

/// A file as a device.
#[derive(Debug)]
pub struct FileDevice {
    pub file: File,
    pub path: PathBuf,
    mappable: bool,
    pub reads: AtomicU64,
}

impl FileDevice {
    pub fn open(path: &Path) -> Self {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).unwrap();
        Self { file, path: path.to_owned(), mappable: true, reads: AtomicU64::new(0) }
    }

    pub fn unmappable(path: &Path) -> Self {
        Self { mappable: false, ..Self::open(path) }
    }
}

impl Device for FileDevice {
    fn bytes(&self) -> u64 {
        self.file.metadata().unwrap().len()
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
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
        self.file.set_len(bytes)?;
        Ok(bytes)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.mappable.then(|| self.file.as_fd())
    }
}

/// An object whose bytes follow from its name.
#[derive(Debug)]
pub struct TestObject {
    id: ObjectId,
    device: Arc<dyn Device>,
    offset_bytes: u64,
    length_bytes: u64,
    checksums: Vec<u32>,
}

/// What byte `at` of object `id` is.
pub fn byte(id: ObjectId, at: u64) -> u8 {
    let word = (id.0 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ (at / 8).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    word.rotate_left((at % 8) as u32 * 8).to_le_bytes()[0]
}

pub fn bytes(id: ObjectId, offset_bytes: u64, length: usize) -> Vec<u8> {
    (offset_bytes..offset_bytes + length as u64).map(|at| byte(id, at)).collect()
}

fn checksum(id: ObjectId, unit: u64, bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes) ^ (id.0 ^ unit << 32) as u32 ^ unit as u32
}

impl TestObject {
    /// Writes an object, or finds it where another process has written it.
    pub fn new(id: u64, device: &Arc<FileDevice>, offset_bytes: u64, length_bytes: u64) -> Self {
        let object = Self::placed(id, device, offset_bytes, length_bytes);
        let id = object.id;
        let units = length_bytes.div_ceil(UNIT_BYTES as u64);
        let mut content = bytes(id, 0, length_bytes as usize);
        content.resize(units as usize * UNIT_BYTES, 0);
        if units > 0 {
            let mut there = vec![0; content.len()];
            let found = device.file.read_exact_at(&mut there, offset_bytes);
            if found.is_err() || there != content {
                device.file.write_all_at(&content, offset_bytes).unwrap();
            }
        }
        object
    }

    /// An object that somebody else writes.
    pub fn placed(id: u64, device: &Arc<FileDevice>, offset_bytes: u64, length_bytes: u64) -> Self {
        let id = ObjectId(id);
        let mut content = bytes(id, 0, length_bytes as usize);
        content.resize(content.len().next_multiple_of(UNIT_BYTES), 0);
        let checksums = content.chunks(UNIT_BYTES).zip(0..);
        let checksums = checksums.map(|(bytes, unit)| checksum(id, unit, bytes)).collect();
        let device = Arc::<FileDevice>::clone(device);
        Self { id, device, offset_bytes, length_bytes, checksums }
    }
}

impl Object for TestObject {
    fn id(&self) -> ObjectId {
        self.id
    }

    fn class(&self) -> MediaClass {
        MediaClass::Capacity
    }

    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> Result<(), ReadError> {
        let read = self.device.read(self.offset_bytes + offset_bytes, into);
        read.map_err(|source| ReadError::Device { object: self.id, offset_bytes, source })?;
        for (bytes, unit) in into.chunks(UNIT_BYTES).zip(offset_bytes / UNIT_BYTES as u64..) {
            self.verify_unit(unit, bytes)?;
        }
        Ok(())
    }

    fn verify_unit(&self, unit: u64, bytes: &[u8]) -> Result<(), Damage> {
        let expected = self.checksums[unit as usize];
        let found = checksum(self.id, unit, bytes);
        let offset_bytes = unit * UNIT_BYTES as u64;
        let damage = Damage { object: self.id, offset_bytes, expected, found };
        if expected == found { Ok(()) } else { Err(damage) }
    }
}

/// Files in a directory of their own, on a real file system.
pub struct Bench {
    pub directory: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    pub fn device(&self, name: &str) -> Arc<FileDevice> {
        Arc::new(FileDevice::open(&self.directory.path().join(name)))
    }
}

pub type Objects = Vec<Arc<dyn Object>>;

/// Objects of one length, each at a multiple of `step_bytes`, durable.
pub fn row(device: &Arc<FileDevice>, count: u64, length_bytes: u64, step_bytes: u64) -> Objects {
    let object = |at: u64| {
        let object = TestObject::new(at, device, at * step_bytes, length_bytes);
        Arc::new(object) as Arc<dyn Object>
    };
    let objects = (0..count).map(object).collect();
    device.file.sync_all().unwrap();
    objects
}

const CHILD: &str = "BINDERY_MAPS_CHILD";

/// What the parent tells this process, if it is a child.
pub fn from_parent() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// Runs the test `name` of this program again, in a process of its own.
pub fn in_child(name: &str, told: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, told).output().unwrap()
}

/// Purges a map until nothing of it is left: what the kernel is reading ahead at the moment stays.
pub fn purge(map: &bindery_pool::map::Map) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while map.purge().unwrap() > 0 {
        assert!(Instant::now() < deadline, "{:?} stay", map.residency());
        thread::sleep(Duration::from_millis(1));
    }
}
