//! A regular file or a block device.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bindery_sys::block::{self, Kind};
use bindery_sys::direct::{Buffer, Source, Transfer};
use bindery_sys::lock::{RangeLock, RangeLocks};
use bindery_sys::process::Origin;
use bindery_sys::uring::{Queue, Written};

use super::device_options::DeviceAccess;
use super::error::{IoError, Operation};
use super::io_engine::IoEngine;
use super::sync_gate::{Closed, SyncGate};
use super::under_way::{self, UnderWay};
use super::{Device, Hold, Read, Write, write_gathered};
use crate::BLOCK_BYTES;
use crate::process::{self, OtherProcess};

/// A regular file or a block device, read and written past the page cache where the file system takes
/// that.
///
/// It is its process's: a child of fork(2) is refused all of it, with [`OtherProcess`].
///
/// One alone opens it for writing (a lock that ends with the process, and for block devices the
/// kernel's exclusive use); those that read are not counted. All its errors carry an [`IoError`].
///
/// After a sync that failed nothing is written any more: the kernel reports a lost write once (fsync(2)),
/// and a later sync that succeeds would be taken for the truth.
pub struct FileDevice {
    path: PathBuf,
    parts: Arc<Parts>,
    origin: Origin,
    engine: IoEngine,
    depth: usize,
    bytes: AtomicU64,
    gate: SyncGate,
    /// Queues without writes, and buffers to fill, that a caller has left for the next one.
    idle: Mutex<Vec<UnderWay>>,
}

/// Parts of an open device.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) file: File,
    pub(super) cached: File,
    pub(super) kind: Kind,
    pub(super) locks: Arc<RangeLocks>,
    /// There if it was opened for writing.
    pub(super) writer: Option<RangeLock>,
    pub(super) buffered_because: Option<String>,
}

/// Most callers' queues and buffers that are kept, in case they write again.
const MOST_IDLE: usize = 4;

impl FileDevice {
    pub(super) fn new(
        path: PathBuf,
        parts: Parts,
        engine: IoEngine,
        depth: usize,
        bytes: u64,
    ) -> Self {
        let bytes = AtomicU64::new(whole_blocks(bytes));
        let (gate, idle) = (SyncGate::default(), Mutex::default());
        let (parts, origin) = (Arc::new(parts), Origin::here());
        Self { path, parts, origin, engine, depth, bytes, gate, idle }
    }

    /// As it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the way that transfers are done.
    #[must_use]
    pub fn engine(&self) -> IoEngine {
        self.engine
    }

    /// Returns true if the device is a block device.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.parts.kind == Kind::BlockDevice
    }

    /// Why it is read and written through the page cache; none where it is not.
    #[must_use]
    pub fn buffered_because(&self) -> Option<&str> {
        self.parts.buffered_because.as_deref()
    }

    /// Returns the access that the device was opened for.
    #[must_use]
    pub fn access(&self) -> DeviceAccess {
        if self.parts.writer.is_some() { DeviceAccess::Write } else { DeviceAccess::Read }
    }

    fn all(&self, operation: Operation, mut transfers: Vec<Transfer<'_>>) -> io::Result<()> {
        let first = transfers.first().map_or(0, Transfer::offset_bytes);
        self.check_process(operation, first)?;
        for transfer in &transfers {
            self.assert_within(transfer.offset_bytes(), transfer.left_bytes() as u64);
        }
        let outcome = self.engine.run(self.parts.file.as_fd(), self.depth, &mut transfers);
        outcome.map_err(|(index, error)| {
            self.failed(operation, transfers[index].offset_bytes(), error)
        })
    }

    fn one(&self, operation: Operation, mut transfer: Transfer<'_>) -> io::Result<()> {
        self.check_process(operation, transfer.offset_bytes())?;
        self.assert_within(transfer.offset_bytes(), transfer.left_bytes() as u64);
        let outcome = transfer.run(self.parts.file.as_fd());
        outcome.map_err(|error| self.failed(operation, transfer.offset_bytes(), error))
    }

    /// A queue for a caller that begins to write; none where the kernel gives none.
    fn queue<'a>(&self, under_way: &'a mut UnderWay) -> Option<&'a mut Queue> {
        if under_way.queue.is_none() && self.engine == IoEngine::Uring {
            under_way.queue = Queue::new(self.depth.min(under_way::MOST)).ok();
        }
        under_way.queue.as_mut()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<UnderWay>> {
        // A list of what is not used: whole between any two statements.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the outcome of a write, and keeps its buffer for the next one.
    fn ended(&self, under_way: &mut UnderWay, written: Written) -> io::Result<()> {
        under_way.give_back(written.source);
        let failed = |error| self.failed(Operation::Write, written.offset_bytes, error);
        written.outcome.map_err(failed)
    }

    fn assert_within(&self, offset_bytes: u64, bytes: u64) {
        assert_whole_blocks(offset_bytes, bytes);
        let end = offset_bytes.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes()),
            "{bytes} bytes at {offset_bytes} are not within {}, which has {}",
            self.path.display(),
            self.bytes()
        );
    }

    /// As [`check_here`](Device::check_here).
    fn check_process(&self, operation: Operation, offset_bytes: u64) -> io::Result<()> {
        self.check_here().map_err(|error| self.failed(operation, offset_bytes, error.into()))
    }

    /// Refuses a device that may not be changed.
    fn check_writable(&self, operation: Operation, offset_bytes: u64) -> io::Result<()> {
        self.check_process(operation, offset_bytes)?;
        if self.parts.writer.is_none() {
            let error =
                io::Error::new(io::ErrorKind::PermissionDenied, "it was opened for reading");
            return Err(self.failed(operation, offset_bytes, error));
        }
        self.gate.check().map_err(|closed| self.closed(closed, operation, offset_bytes))
    }

    fn closed(&self, Closed: Closed, operation: Operation, offset_bytes: u64) -> io::Error {
        let error = io::Error::other(
            "an earlier sync failed, and what was written before it may be lost; \
             see the kernel's log, then close the pool and open it again",
        );
        self.failed(operation, offset_bytes, error)
    }

    /// Notes how long it was found to be. Never less than it was: offsets that were within it have been
    /// given out.
    fn is_so_long(&self, bytes: u64) -> u64 {
        let bytes = whole_blocks(bytes);
        // Release, with the acquire of `bytes`: who sees the new length finds the file so long.
        self.bytes.fetch_max(bytes, Ordering::AcqRel).max(bytes)
    }

    fn failed(&self, operation: Operation, offset_bytes: u64, error: io::Error) -> io::Error {
        IoError::of(&self.path, operation, offset_bytes, error)
    }
}

impl Device for FileDevice {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    fn check_here(&self) -> Result<(), OtherProcess> {
        process::check(self.origin)
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        self.one(Operation::Read, Transfer::read(offset_bytes, into))
    }

    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()> {
        self.check_writable(Operation::Write, offset_bytes)?;
        self.one(Operation::Write, Transfer::write(offset_bytes, from))
    }

    fn sync(&self) -> io::Result<()> {
        self.check_writable(Operation::Sync, 0)?;
        let is_cached = self.parts.buffered_because.is_some();
        let outcome = self.gate.sync(is_cached, || self.parts.file.sync_data());
        let outcome = outcome.map_err(|closed| self.closed(closed, Operation::Sync, 0))?;
        outcome.map_err(|error| self.failed(Operation::Sync, 0, error))
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> io::Result<()> {
        self.assert_within(offset_bytes, bytes);
        self.check_writable(Operation::Discard, offset_bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let discarded = block::discard(&self.parts.file, self.parts.kind, offset_bytes, bytes);
        discarded.map(drop).map_err(|error| self.failed(Operation::Discard, offset_bytes, error))
    }

    fn grow(&self, bytes: u64) -> io::Result<u64> {
        assert_whole_blocks(0, bytes);
        self.check_writable(Operation::Grow, bytes)?;
        let Parts { file, kind, .. } = &*self.parts;
        let grown = block::bytes(file, *kind).and_then(|now| match kind {
            Kind::File if now < bytes => file.set_len(bytes).map(|()| bytes),
            Kind::File | Kind::BlockDevice => Ok(now),
        });
        let now = grown.map_err(|error| self.failed(Operation::Grow, bytes, error))?;
        Ok(self.is_so_long(now))
    }

    fn measure(&self) -> io::Result<u64> {
        self.check_process(Operation::Grow, 0)?;
        let now = block::bytes(&self.parts.file, self.parts.kind);
        Ok(self.is_so_long(now.map_err(|error| self.failed(Operation::Grow, 0, error))?))
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        let transfers = reads.iter_mut().map(|read| Transfer::read(read.offset_bytes, read.into));
        self.all(Operation::Read, transfers.collect())
    }

    fn write_many(&self, writes: &[Write<'_>]) -> io::Result<()> {
        let Some(first) = writes.first() else { return Ok(()) };
        self.check_writable(Operation::Write, first.offset_bytes)?;
        let transfers = writes.iter().map(|write| Transfer::write(write.offset_bytes, write.from));
        self.all(Operation::Write, transfers.collect())
    }

    fn under_way(&self) -> UnderWay {
        let idle = self.check_here().ok().and_then(|()| self.idle().pop());
        idle.unwrap_or_default()
    }

    fn begin_write(
        &self,
        under_way: &mut UnderWay,
        offset_bytes: u64,
        from: Source,
    ) -> io::Result<()> {
        self.assert_within(offset_bytes, from.len() as u64);
        self.check_writable(Operation::Write, offset_bytes)?;
        let file = self.parts.file.as_fd();
        let Some(queue) = self.queue(under_way) else {
            return match under_way.gather(offset_bytes, from) {
                true => write_gathered(self, under_way),
                false => Ok(()),
            };
        };
        let is_full = queue.under_way() == queue.depth();
        let earlier = if is_full { queue.wait(file) } else { None };
        let at_once = queue.begin(file, offset_bytes, from);
        let ended = [earlier, at_once].into_iter().flatten();
        ended.map(|written| self.ended(under_way, written)).fold(Ok(()), Result::and)
    }

    fn end_writes(&self, under_way: &mut UnderWay) -> io::Result<()> {
        self.check_process(Operation::Write, 0)?;
        let mut outcome = write_gathered(self, under_way);
        while let Some(written) =
            under_way.queue.as_mut().and_then(|queue| queue.wait(self.parts.file.as_fd()))
        {
            outcome = outcome.and(self.ended(under_way, written));
        }
        let is_of_use = under_way.queue.as_ref().is_some_and(|queue| !queue.is_refused());
        let mut idle = self.idle();
        if is_of_use && idle.len() < MOST_IDLE {
            idle.push(std::mem::take(under_way));
        }
        outcome
    }

    fn hold(&self, offset_bytes: u64, bytes: u64) -> io::Result<Option<Hold>> {
        self.assert_within(offset_bytes, bytes);
        self.check_process(Operation::Lock, offset_bytes)?;
        if self.parts.writer.is_some() {
            return Ok(Some(Hold { _lock: None }));
        }
        let lock = self.parts.locks.share(offset_bytes..offset_bytes + bytes);
        let lock = lock.map_err(|error| self.failed(Operation::Lock, offset_bytes, error))?;
        Ok(lock.map(|lock| Hold { _lock: Some(lock) }))
    }

    fn is_held(&self, offset_bytes: u64, bytes: u64) -> io::Result<bool> {
        self.assert_within(offset_bytes, bytes);
        self.check_process(Operation::Lock, offset_bytes)?;
        let is_held = self.parts.locks.is_held_elsewhere(offset_bytes..offset_bytes + bytes);
        is_held.map_err(|error| self.failed(Operation::Lock, offset_bytes, error))
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.cached.as_fd())
    }
}

impl Drop for FileDevice {
    /// In a child of fork: closes what the child has open, so that it does not keep the file in use, unless
    /// that would close its parent's descriptors.
    fn drop(&mut self) {
        if !self.origin.is_here() && self.origin.may_share_descriptors() {
            std::mem::forget(Arc::clone(&self.parts));
        }
    }
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileDevice")
            .field("path", &self.path)
            .field("bytes", &self.bytes())
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

fn whole_blocks(bytes: u64) -> u64 {
    bytes - bytes % BLOCK_BYTES as u64
}

pub(super) fn assert_whole_blocks(offset_bytes: u64, bytes: u64) {
    assert!(
        (offset_bytes | bytes).is_multiple_of(BLOCK_BYTES as u64),
        "{bytes} bytes at {offset_bytes} are not whole blocks"
    );
}
