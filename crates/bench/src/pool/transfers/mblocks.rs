//! Objects of a pool: written with their checksums and committed, read and verified.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use bindery_pool::device::{Access, Options};
use bindery_pool::mblock::Committed;
use bindery_pool::object::Object;
use bindery_pool::{MediaClass, Pool};
use bindery_sys::direct::Buffer;

use super::contender::{Contender, folded, pattern};
use super::{READ_BYTES, WRITE_BYTES};
use crate::pool::one_file;

/// Objects that hold the file's bytes one after the other.
pub(super) struct Mblocks {
    pool: Pool,
    objects: Vec<Arc<Committed>>,
    bytes: u64,
    object_bytes: u64,
    /// Reads block: so many threads read.
    threads: usize,
    pattern: Buffer,
}

impl Mblocks {
    pub(super) fn create(
        directory: &Path,
        bytes: u64,
        object_bytes: u64,
        depth: usize,
    ) -> Result<Self> {
        let options = Options { depth, ..Options::new(Access::Write) };
        let path = directory.join(format!("mblocks-{depth}"));
        let pool = one_file::create(&path, bytes, &options)?;
        let (objects, pattern) = (Vec::new(), pattern());
        Ok(Self { pool, objects, bytes, object_bytes, threads: depth, pattern })
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
        "mblocks".into()
    }

    fn empty(&mut self) -> Result<()> {
        for object in self.objects.drain(..) {
            self.pool.delete(object.id())?;
        }
        self.pool.reclaim();
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        for start in (0..self.bytes).step_by(self.object_bytes as usize) {
            let bytes = self.object_bytes.min(self.bytes - start);
            let mut writer = self.pool.allocate_mblock(MediaClass::Capacity, bytes)?;
            for _ in 0..bytes / WRITE_BYTES as u64 {
                writer.append(&self.pattern)?;
            }
            self.objects.push(writer.commit()?);
        }
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
