//! Back ends of maps, behind one trait.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bindery_sys::mapped::View;
use bindery_sys::pagemap::Pagemap;

use super::error::EvictError;
use super::map_options::BackEndKind;
use crate::object::ReadError;

/// Consecutive pages of an object of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// The object's number in the map.
    pub object: usize,
    /// The first page.
    pub first_page: u64,
    /// Number of pages.
    pub pages: u64,
}

/// Result of a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetched {
    /// Number of pages that were asked for and are in memory now.
    pub pages: u64,
}

/// Identity of the memory of one object: of two maps of the same object, the file
/// back end has the same memory, and the memfd back end has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MemoryIdentity {
    /// The address of what holds the memory, which lives as long as the map.
    pub(crate) holder: usize,
    /// Start in that memory, in bytes.
    pub(crate) offset_bytes: u64,
}

/// Start and length of a part of a holder's memory, in bytes.
pub(crate) type MemoryRange = (u64, u64);

/// A back end of a map. Numbers of objects are positions in the map's list; ranges are within the
/// object, pages beyond its end excepted.
pub(crate) trait BackEnd: Send + Sync + fmt::Debug {
    fn kind(&self) -> BackEndKind;
    fn identity(&self, object: usize) -> MemoryIdentity;
    fn view(&self, object: usize, offset_bytes: u64, bytes: usize) -> View<'_>;
    /// Copies, verified.
    fn read(&self, object: usize, offset_bytes: u64, into: &mut [u8]) -> Result<(), ReadError>;
    /// Brings pages into memory and waits for them.
    fn prefetch(&self, runs: &[PageRun]) -> Result<(), ReadError>;
    /// Returns the memory that the back end takes now, if that is known at once and is nobody else's.
    fn allocated_bytes(&self) -> Option<u64>;
    /// Returns the number of an object's pages that are in memory.
    fn resident_pages(&self, object: usize) -> Result<u64, EvictError>;
    /// Reports each run of an object's pages that this process has in its page tables: the first, and
    /// how many.
    fn mapped_runs(
        &self,
        pagemap: &Pagemap,
        object: usize,
        found: &mut dyn FnMut(u64, u64),
    ) -> Result<(), EvictError>;
    /// Returns the number of an object's pages that this process has in its page tables.
    fn mapped_pages(&self, pagemap: &Pagemap, object: usize) -> Result<u64, EvictError> {
        let mut mapped = 0;
        self.mapped_runs(pagemap, object, &mut |_, pages| mapped += pages)?;
        Ok(mapped)
    }
    /// From now on a fault maps the page that was touched and no others, as far as the kernel can do
    /// that for this memory.
    fn fault_singly(&self);
    /// Takes pages out of this process's page tables; they stay in memory.
    fn forget(&self, run: PageRun) -> Result<(), EvictError>;
    /// Gives the memory of objects back, as far as the kernel takes it.
    fn evict(&self, objects: &[usize]) -> Result<(), EvictError>;
    /// Reports each run of an object's pages that are in memory, in page tables or not: the first, and how
    /// many.
    fn cached_runs(
        &self,
        object: usize,
        found: &mut dyn FnMut(usize, usize),
    ) -> Result<(), EvictError>;
    /// Takes whole pages out of this process's page tables; they stay in memory. They are ranges of
    /// the holder's memory ([`MemoryIdentity`]), of whatever map.
    fn forget_ranges(&self, ranges: &[MemoryRange]) -> io::Result<()>;
    /// Gives the memory of whole pages back, as far as the kernel takes it: ranges of the holder's memory.
    /// Returns the positions of those of which something is left, and how many pages.
    fn evict_ranges(&self, ranges: &[MemoryRange]) -> io::Result<Vec<(usize, u64)>>;
    /// Returns true if pages of an object were fetched since the last call, as far as the back end knows.
    fn take_fetched(&self, object: usize) -> bool;
    /// Returns the limits that the reaper imposes.
    fn duty(&self) -> &Duty;
    /// The memfd, if there is one.
    fn memory(&self) -> Option<&File>;
}

/// Limits that the reaper imposes on a map while memory is short.
#[derive(Debug)]
pub(crate) struct Duty {
    fault_delay_us: AtomicU32,
    readahead_pages: AtomicU64,
}

impl Default for Duty {
    fn default() -> Self {
        Self { fault_delay_us: AtomicU32::new(0), readahead_pages: AtomicU64::new(u64::MAX) }
    }
}

impl Duty {
    pub(crate) fn impose(&self, fault_delay: Duration, readahead_pages: u64) {
        let delay_us = u32::try_from(fault_delay.as_micros()).unwrap_or(u32::MAX);
        self.fault_delay_us.store(delay_us, Ordering::Relaxed);
        self.readahead_pages.store(readahead_pages, Ordering::Relaxed);
    }

    /// Returns the time that a fault waits before it is served.
    pub(crate) fn fault_delay(&self) -> Duration {
        Duration::from_micros(self.fault_delay_us.load(Ordering::Relaxed).into())
    }

    /// Returns the most pages that may be read at once though nobody has touched them.
    pub(crate) fn readahead_pages(&self) -> u64 {
        self.readahead_pages.load(Ordering::Relaxed)
    }
}
