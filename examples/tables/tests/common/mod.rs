//! A device whose syncs a test has in its hands.

use std::io;
use std::os::fd::BorrowedFd;

use bindery_pool::device::{Device, FileDevice};
use bindery_sys::direct::Buffer;

/// What a sync waits for.
pub(crate) trait Await: std::fmt::Debug + Send + Sync {
    fn await_it(&self);
}

/// A device that does not sync, but waits for something else.
#[derive(Debug)]
pub(crate) struct Syncing<S>(pub(crate) FileDevice, pub(crate) S);

impl<S: Await> Device for Syncing<S> {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        self.0.read(offset_bytes, into)
    }

    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()> {
        self.0.write(offset_bytes, from)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.await_it();
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> io::Result<()> {
        self.0.discard(offset_bytes, bytes)
    }

    fn grow(&self, bytes: u64) -> io::Result<u64> {
        self.0.grow(bytes)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }
}
