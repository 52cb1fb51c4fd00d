//! The descriptors that managing memory needs: of our own table, whoever calls.
//!
//! Handlers and lanes have that table, and use them at once. A call of the VMM's is done by an errand thread
//! ([`table`](bindery_sys::table)), so whoever has more than one of them to make hands over all together.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};

use bindery_sys::pagemap::{self, Extent, Query, Scanned};
use bindery_sys::table::Kept;
use bindery_sys::userfault::{self, Fault, Stopped};
use bindery_units::HostAddress;

use crate::agent::log;

/// As [`userfault::Userfault`], which says what each call does and needs.
#[derive(Debug)]
pub(crate) struct Userfault(Kept<userfault::Userfault>);

impl Userfault {
    pub(crate) const READ_MAX: usize = userfault::Userfault::READ_MAX;

    pub(crate) fn open(features: u64) -> io::Result<Self> {
        Kept::open(|| userfault::Userfault::open(features)).map(Self)
    }

    /// # Safety
    /// See there.
    pub(crate) unsafe fn register(
        &self,
        start: HostAddress,
        bytes: usize,
        modes: u64,
    ) -> io::Result<()> {
        // SAFETY: the caller's contract.
        self.0.with(|faults| unsafe { faults.register(start, bytes, modes) })
    }

    /// # Safety
    /// See there.
    pub(crate) unsafe fn unregister(&self, start: HostAddress, bytes: usize) -> io::Result<()> {
        // SAFETY: the caller's contract.
        self.0.with(|faults| unsafe { faults.unregister(start, bytes) })
    }

    /// As [`open`](Self::open), for who polls before it reads.
    pub(crate) fn open_to_poll(features: u64) -> io::Result<Self> {
        let open = || {
            let faults = userfault::Userfault::open(features)?;
            faults.set_nonblocking()?;
            Ok(faults)
        };
        Kept::open(open).map(Self)
    }

    pub(crate) fn wake(&self, start: HostAddress, bytes: usize) -> io::Result<()> {
        self.0.with(|faults| faults.wake(start, bytes))
    }

    /// # Safety
    /// See there.
    pub(crate) unsafe fn zero(
        &self,
        start: HostAddress,
        bytes: usize,
        wake: bool,
    ) -> Result<(), Stopped> {
        // SAFETY: the caller's contract.
        self.0.with(|faults| unsafe { faults.zero(start, bytes, wake) })
    }

    /// # Safety
    /// See there.
    pub(crate) unsafe fn copy(
        &self,
        destination: HostAddress,
        source: HostAddress,
        bytes: usize,
    ) -> Result<(), Stopped> {
        // SAFETY: the caller's contract.
        self.0.with(|faults| unsafe { faults.copy(destination, source, bytes) })
    }

    /// # Safety
    /// See there.
    pub(crate) unsafe fn poison(&self, start: HostAddress, bytes: usize) -> Result<(), Stopped> {
        // SAFETY: the caller's contract.
        self.0.with(|faults| unsafe { faults.poison(start, bytes) })
    }

    /// # Safety
    /// See there.
    pub(crate) unsafe fn move_pages(
        &self,
        destination: HostAddress,
        source: HostAddress,
        bytes: usize,
    ) -> Result<(), Stopped> {
        // SAFETY: the caller's contract.
        self.0.with(|faults| unsafe { faults.move_pages(destination, source, bytes) })
    }

    pub(crate) fn write_protect(
        &self,
        start: HostAddress,
        bytes: usize,
        protect: bool,
    ) -> io::Result<()> {
        self.0.with(|faults| faults.write_protect(start, bytes, protect))
    }

    pub(crate) fn read<'a>(
        &self,
        faults: &'a mut [Fault; Self::READ_MAX],
    ) -> io::Result<&'a [Fault]> {
        self.0.inside().read(faults)
    }

    pub(crate) fn inside(&self) -> &userfault::Userfault {
        self.0.inside()
    }
}

/// As [`pagemap::Pagemap`].
#[derive(Debug)]
pub(crate) struct Pagemap {
    pagemap: Kept<pagemap::Pagemap>,
    /// Error number of a scan that failed for good and of which the log has not heard, or 0.
    failure: AtomicI32,
    /// Error number that the log has heard of last.
    said: AtomicI32,
}

impl Pagemap {
    pub(crate) fn of_self() -> io::Result<Self> {
        let pagemap = Kept::open(pagemap::Pagemap::of_self)?;
        Ok(Self { pagemap, failure: AtomicI32::new(0), said: AtomicI32::new(0) })
    }

    /// Notes that a scan failed for good. May be called by a fault handler: neither logs nor waits.
    pub(crate) fn note(&self, errno: i32) {
        self.failure.store(errno, Ordering::Relaxed);
    }

    /// Logs a failure that was noted, unless the one before it was the same.
    pub(crate) fn say_failure(&self) {
        let errno = self.failure.swap(0, Ordering::Relaxed);
        if errno != 0 && self.said.swap(errno, Ordering::Relaxed) != errno {
            let error = io::Error::from_raw_os_error(errno);
            log::say(format_args!(
                "the kernel does not say where pages are (PAGEMAP_SCAN: {error}): they stay as they are, \
                 and no more are merged"
            ));
        }
    }

    pub(crate) fn scan(
        &self,
        start: HostAddress,
        bytes: usize,
        query: Query,
        extents: &mut [Extent],
    ) -> io::Result<Scanned> {
        self.pagemap.with(|pagemap| pagemap.scan(start, bytes, query, extents))
    }
}

/// A file of a store.
pub(crate) type StoreFile = Kept<OwnedFd>;
