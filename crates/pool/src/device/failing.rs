//! A device that fails when a test wants it to.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bindery_sys::direct::Buffer;

use super::{Device, Hold, Operation};

/// A failure that a test orders.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Operations that are counted; all where it is none.
    pub operation: Option<Operation>,
    /// Number of operations that are done before one fails.
    pub after: u64,
    /// True if all operations that follow fail, too.
    pub lasts: bool,
    /// With what.
    pub kind: io::ErrorKind,
}

/// Hands everything to another device until its fault comes, for tests of those above: walk `after`
/// from 0 until [`has_failed`](Self::has_failed) says no.
///
/// Each part of a batch counts, and batches are done one part after the other. A write that fails has
/// written its first half: a caller that trusts what a failed write left is found.
#[derive(Debug)]
pub struct Failing<D> {
    device: D,
    fault: Mutex<Option<Fault>>,
    done: AtomicU64,
    has_failed: AtomicBool,
}

impl<D: Device> Failing<D> {
    /// Without a fault yet.
    #[must_use]
    pub fn new(device: D) -> Self {
        Self {
            device,
            fault: Mutex::new(None),
            done: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Sets or takes away the fault, and counts from 0 again.
    pub fn set(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
        self.done.store(0, Ordering::Relaxed);
        self.has_failed.store(false, Ordering::Relaxed);
    }

    /// Returns true if the fault came.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Returns the number of operations of the fault's kind that were asked for; of all without a fault.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn meet(&self, operation: Operation) -> io::Result<()> {
        let fault = *self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = fault.and_then(|fault| fault.operation).is_none_or(|which| which == operation);
        if !counts {
            return Ok(());
        }
        let done = self.done.fetch_add(1, Ordering::Relaxed);
        match fault {
            Some(fault) if done == fault.after || fault.lasts && done > fault.after => {
                self.has_failed.store(true, Ordering::Relaxed);
                Err(io::Error::new(fault.kind, format!("this {operation} was to fail")))
            }
            _ => Ok(()),
        }
    }
}

impl<D: Device> Device for Failing<D> {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        self.meet(Operation::Read)?;
        self.device.read(offset_bytes, into)
    }

    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()> {
        let fault = self.meet(Operation::Write);
        if fault.is_ok() {
            return self.device.write(offset_bytes, from);
        }
        let half_bytes = from.len() / crate::BLOCK_BYTES / 2 * crate::BLOCK_BYTES;
        if half_bytes > 0 {
            let mut half = Buffer::zeroed(half_bytes);
            half.copy_from_slice(&from[..half_bytes]);
            self.device.write(offset_bytes, &half)?;
        }
        fault
    }

    fn sync(&self) -> io::Result<()> {
        self.meet(Operation::Sync)?;
        self.device.sync()
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> io::Result<()> {
        self.meet(Operation::Discard)?;
        self.device.discard(offset_bytes, bytes)
    }

    fn grow(&self, bytes: u64) -> io::Result<u64> {
        self.meet(Operation::Grow)?;
        self.device.grow(bytes)
    }

    fn measure(&self) -> io::Result<u64> {
        self.device.measure()
    }

    fn hold(&self, offset_bytes: u64, bytes: u64) -> io::Result<Option<Hold>> {
        self.meet(Operation::Lock)?;
        self.device.hold(offset_bytes, bytes)
    }

    fn is_held(&self, offset_bytes: u64, bytes: u64) -> io::Result<bool> {
        self.meet(Operation::Lock)?;
        self.device.is_held(offset_bytes, bytes)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.device.file()
    }
}
