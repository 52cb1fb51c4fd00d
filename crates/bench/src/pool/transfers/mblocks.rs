//! Objects of a pool: written with their checksums and committed, read and verified.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use bindery_pool::device::{DeviceAccess, DeviceOptions};
use bindery_pool::mblock::Committed;
use bindery_pool::object::Object;
use bindery_pool::write::Writer;
use bindery_pool::{MediaClass, Pool};
use bindery_sys::direct::Buffer;

use super::contender::{Contender, folded, pattern};
use super::{READ_BYTES, WRITE_BYTES};
use crate::pool::one_file;

/// How objects are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// From memory that the pool shares, as the bare file has it, and committed while the next are.
    Shared,
    /// From memory that is copied, and committed while the next are written.
    Copied,
    /// From memory that is copied, and each committed before the next is begun.
    OneByOne,
}

/// Objects that hold the file's bytes one after the other.
pub(super) struct Mblocks {
    path: PathBuf,
    pool: Pool,
    objects: Vec<Arc<Committed>>,
    bytes: u64,
    object_bytes: u64,
    how: How,
    /// Reads block: so many threads read.
    threads: usize,
    pattern: Arc<Buffer>,
}

impl Mblocks {
    pub(super) fn create(
        directory: &Path,
        bytes: u64,
        object_bytes: u64,
        depth: usize,
        how: How,
    ) -> Result<Self> {
        let options = DeviceOptions { depth, ..DeviceOptions::new(DeviceAccess::Write) };
        let path = directory.join(format!("mblocks-{}-{depth}-{how:?}", object_bytes >> 20));
        let pool = one_file::create(&path, bytes, &options)?;
        let pattern = Arc::new(pattern((object_bytes as usize).min(WRITE_BYTES)));
        let (objects, threads) = (Vec::new(), depth);
        Ok(Self { path, pool, objects, bytes, object_bytes, how, threads, pattern })
    }

    fn append(&self, writer: &mut Writer, bytes: u64) -> Result<()> {
        let rest = writer.length_bytes()..bytes;
        for start in rest.step_by(self.pattern.len()) {
            let part = &self.pattern[..(bytes - start).min(self.pattern.len() as u64) as usize];
            match self.how {
                How::Shared if part.len() == self.pattern.len() => {
                    writer.append_shared(&self.pattern)?;
                }
                _ => writer.append(part)?,
            }
        }
        Ok(())
    }

    fn read_by_one(&self, offsets: &[u64]) -> Result<u64> {
        let mut buffer = Buffer::zeroed(READ_BYTES);
        let mut check = 0u64;
        for offset in offsets {
            let object = &self.objects[(offset / self.object_bytes) as usize];
            object.read(offset % self.object_bytes, &mut buffer)?;
            check = check.wrapping_add(folded(&buffer));
        }
        Ok(check)
    }
}

impl Contender for Mblocks {
    fn name(&self) -> String {
        let how = match self.how {
            How::Shared => "",
            How::Copied => ", copied",
            How::OneByOne => ", copied, one by one",
        };
        format!("mblocks of {} MiB{how}", self.object_bytes >> 20)
    }

    fn empty(&mut self) -> Result<()> {
        for object in self.objects.drain(..) {
            self.pool.delete(object.id())?;
        }
        self.pool.reclaim();
        // The file system's own note of it.
        Ok(File::open(&self.path)?.sync_data()?)
    }

    fn write(&mut self) -> Result<()> {
        let committer = self.pool.committer()?;
        for start in (0..self.bytes).step_by(self.object_bytes as usize) {
            let bytes = self.object_bytes.min(self.bytes - start);
            let mut writer = self.pool.allocate_mblock(MediaClass::Capacity, bytes)?;
            self.append(&mut writer, bytes)?;
            match self.how {
                How::OneByOne => self.objects.push(writer.commit()?),
                How::Shared | How::Copied => committer.commit(writer)?,
            }
        }
        for committed in committer.finish() {
            self.objects.push(committed?);
        }
        // As they were begun.
        self.objects.sort_by_key(|object| object.id());
        Ok(())
    }

    fn read(&mut self, offsets: &[u64]) -> Result<u64> {
        let this = &*self;
        let share = offsets.len().div_ceil(self.threads);
        thread::scope(|scope| {
            let readers = offsets.chunks(share);
            let readers: Vec<_> =
                readers.map(|offsets| scope.spawn(|| this.read_by_one(offsets))).collect();
            readers.into_iter().try_fold(0u64, |check, reader| {
                Ok(check.wrapping_add(reader.join().expect("no read panics")?))
            })
        })
    }
}
