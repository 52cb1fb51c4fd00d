//! A managed address space: regions, fault handlers, the merge primitive.
//!
//! A [`Space`] is the managed memory of one process: of a VMM that the preload library was put
//! into, or of one that links this crate. Its pages can be merged with slots of a canonical store
//! and come back when they are written, while threads, devices and the kernel use them, and none of
//! these can tell. [`space_entry`] has the states of a page and the transitions between them.
//!
//! ```text
//!             guest RAM                            canonical store (files, read-only)
//!  ...[anon][anon][store ][anon][store store]...   [slot][slot][slot][slot]...
//!      \________/    \_________________|_____________/
//!      userfaultfd 1: absent pages     userfaultfd 2: writes to mappings of the store,
//!      (and asynchronous               synchronous: the writer waits until the page is private
//!      write tracking)
//! ```
//!
//! Memory can also be *bound* to a source ([`agent`]), from which its pages come when they are touched. It is managed
//! once all of them are there.
//!
//! Several userfaultfd contexts, because asynchronous write protection is a property of a context. A third one has
//! huge pages while writes to them are tracked (`tracking`).
//!
//! # Concurrency
//! Ranges whose backing changes are *held* (`held`). Regions are read under a lock that is only
//! written when the VMM maps or unmaps managed memory. The handlers never wait for a holder.
//!
//! # Forks, other users
//! A child of fork has no managed memory: it sees ordinary copies. What it has of the store it keeps for
//! as long as it maps it: a slot's content never changes. A second userfaultfd on the same
//! memory (QEMU's post-copy and background snapshot) is refused by the kernel, so whoever wants one
//! calls [`Space::release_range`] first.

mod advice;
pub mod agent;
mod blocks;
mod budget;
mod copies;
mod descriptors;
mod discard;
mod extents;
mod handlers;
mod held;
mod manage;
mod mend;
mod merge;
mod nodes;
mod offered;
mod offers;
mod pending_reports;
mod readable;
mod refuge;
mod region;
mod regions;
mod release;
mod restore;
mod return_pages;
mod sample;
mod source;
pub mod space_entry;
mod spare;
mod store;
mod tracking;
mod transfer;
#[cfg(feature = "vm-memory")]
pub mod vm_memory;
mod worker;
mod write_streams;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

pub use advice::LastingAdvice;
use bindery_sys::{mapping::Mapping, table, thread::CpuClock, userfault::feature};
use bindery_units::{HostAddress, PAGE_BYTES, PageRange};
use bindery_wire::control::{Region, SLOTS_MAX, STORE_MAX, StoreId};
pub use manage::ManageError;
pub use release::ReleaseError;
pub use restore::Unmerged;
pub use store::{PinError, Segments};
pub use worker::{Reach, Sought, Worker};

use crate::{
    budget::Budget,
    descriptors::{Pagemap, Userfault},
    held::Held,
    offered::OfferedRanges,
    offers::Offers,
    regions::Regions,
    release::Release,
    source::Bound,
    store::StoreView,
};

/// Number of parts that a region may fall into.
const PARTS_MAX: usize = 64;

/// The managed memory of this process. There is one, and it lives as long as the process: threads
/// of the guest depend on its handlers.
#[derive(Debug)]
pub struct Space {
    core: Arc<Core>,
    handlers: [CpuClock; 3],
}

/// What the handlers, the lanes and the VMM's calls share.
#[derive(Debug)]
struct Core {
    guest_faults: Userfault,
    store_faults: Userfault,
    /// Writes to huge pages that are tracked.
    block_faults: Userfault,
    pagemap: Pagemap,
    regions: Regions,
    offers: Offers,
    offered: OfferedRanges,
    bound: Bound,
    /// Held while memory is taken under management.
    managing: Mutex<()>,
    held: Held,
    stores: RwLock<[Option<Arc<StoreView>>; STORE_MAX as usize + 1]>,
    /// The store attached last, 0 before there is any: the one that pages are merged with.
    current_store: AtomicU8,
    budget: Budget,
    /// A page of zeros, for copying.
    zeros: Mapping,
    breaks: AtomicU32,
    /// Whether the machine had uncorrected memory errors: see [`readable`].
    memory_errors: AtomicBool,
}

/// Why memory of this process cannot be managed at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// `userfaultfd` is not permitted.
    #[error(
        "userfaultfd is not permitted to this user: as root, run `sysctl vm.unprivileged_userfaultfd=1`, or give the user access to /dev/userfaultfd (chmod or an udev rule); until then this guest runs unmerged"
    )]
    NotPermitted(#[source] io::Error),
    /// The kernel is too old or built without what is needed.
    #[error(
        "this kernel lacks what merging needs (userfaultfd with MOVE and asynchronous write protection: Linux 6.8 or later, CONFIG_USERFAULTFD=y): {0}; this guest runs unmerged"
    )]
    Unsupported(#[source] io::Error),
    /// A table of descriptors apart from the program's is not permitted.
    #[error(
        "a descriptor table of its own is refused to the library ({0}): permit close_range(2) with CLOSE_RANGE_UNSHARE, or unshare(2) with CLONE_FILES, in this process's filter of system calls (seccomp); this guest runs unmerged"
    )]
    Table(#[source] io::Error),
    /// Memory, descriptors or threads ran out.
    #[error("cannot set up memory management: {0}; this guest runs unmerged")]
    Resources(#[source] io::Error),
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// It is larger than an entry can tell slots apart, or its name is taken or out of range.
    #[error(
        "store {store} with {slots} slots, {segment_slots} in a segment, does not fit: at most {SLOTS_MAX} slots, names 1 to {STORE_MAX}, each once"
    )]
    Nonsense {
        /// Its name.
        store: u8,
        /// Its size.
        slots: u32,
        /// The size of its segments.
        segment_slots: u32,
    },
    /// There are no addresses or no memory for it.
    #[error("there is no room for the store: {0}")]
    Map(#[source] io::Error),
}

impl Space {
    /// Starts managing memory of this process: opens the userfaultfds, starts the three handlers.
    /// They run until the process ends.
    ///
    /// # Errors
    /// [`StartError`] says what to change.
    pub fn start() -> Result<Arc<Self>, StartError> {
        table::start().map_err(table_error)?;
        table::run(Self::start_inside)
    }

    fn start_inside() -> Result<Arc<Self>, StartError> {
        let core = Arc::new(Core {
            guest_faults: Userfault::open(feature::GUEST_MEMORY).map_err(start_error)?,
            store_faults: Userfault::open(feature::STORE_MAPPINGS).map_err(start_error)?,
            block_faults: Userfault::open(feature::WHOLE_BLOCKS).map_err(start_error)?,
            pagemap: Pagemap::of_self().map_err(StartError::Resources)?,
            regions: Regions::default(),
            offers: Offers::default(),
            offered: OfferedRanges::default(),
            bound: Bound::default(),
            managing: Mutex::new(()),
            held: Held::new(),
            stores: RwLock::new([const { None }; STORE_MAX as usize + 1]),
            current_store: AtomicU8::new(0),
            budget: Budget::new().map_err(StartError::Resources)?,
            zeros: Mapping::anonymous(PAGE_BYTES).map_err(StartError::Resources)?,
            breaks: AtomicU32::new(0),
            memory_errors: AtomicBool::new(false),
        });
        let handlers = handlers::start(&core).map_err(StartError::Resources)?;
        Ok(Arc::new(Self { core, handlers }))
    }

    /// Returns what is managed now, ascending by page.
    #[must_use]
    pub fn regions(&self) -> Vec<Region> {
        self.core.regions.read().iter().map(|region| region.announced).collect()
    }

    /// Gives everything back: private memory, unwatched, as if it had never been managed. Takes
    /// about a microsecond for each merged page.
    ///
    /// # Errors
    /// [`ReleaseError`]: what could not be given back is still managed.
    pub fn release(&self) -> Result<Vec<PageRange>, ReleaseError> {
        self.release_range(HostAddress(0), usize::MAX)
    }

    /// Gives back every region that the range touches, and withdraws what is offered of it. Returns the
    /// pages given back.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn release_range(
        &self,
        address: HostAddress,
        bytes: usize,
    ) -> Result<Vec<PageRange>, ReleaseError> {
        let end = end_of(address, bytes);
        self.core.offers.withdraw(address, end);
        if !self.core.regions.may_overlap(address, end) {
            return Ok(Vec::new());
        }
        table::run(|| Release::new(&self.core)?.release(address, end))
    }

    /// Withdraws what is offered of a range and not managed yet. Returns how many bytes that were.
    pub fn withdraw(&self, address: HostAddress, bytes: usize) -> usize {
        self.core.offers.withdraw(address, end_of(address, bytes))
    }

    /// Throws away the pages of a range, as `madvise` with `advice` (`MADV_DONTNEED`,
    /// `MADV_DONTNEED_LOCKED`, `MADV_FREE`, `MADV_REMOVE`) would: managed pages are zero afterwards, and
    /// what is not managed, or not any more, is given the advice.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn discard(&self, address: HostAddress, bytes: usize, advice: i32) -> io::Result<()> {
        let end = end_of(address, bytes);
        self.core.offers.while_resting(address, end, || {
            // As the kernel, over memory that is not mapped: the rest is discarded all the same.
            let mut at = address;
            let mut result = Ok(());
            for (from, to) in self.core.bound.parts_in(address, end) {
                result = beyond_holes(result, self.core.discard(at, from, advice))?;
                result = beyond_holes(result, self.core.discard_bound(from, to, advice))?;
                at = to;
            }
            beyond_holes(result, self.core.discard(at, end, advice))?
        })
    }

    /// Returns true if any byte of a range is managed, offered, or bound to a source. Takes no lock and
    /// allocates nothing where none is.
    #[must_use]
    pub fn overlaps(&self, address: HostAddress, bytes: usize) -> bool {
        let end = end_of(address, bytes);
        self.core.bound.overlaps(address, end)
            || self.core.offers.overlap_with(&self.core.regions, address, end)
    }

    /// Returns the managed regions that have a byte of a range, ascending by address.
    #[must_use]
    pub fn regions_in(&self, address: HostAddress, bytes: usize) -> Vec<Region> {
        let regions = self.core.regions.overlapping(address, end_of(address, bytes));
        regions.iter().map(|region| region.announced).collect()
    }

    /// Returns true if unmapping a range would leave a region in more pieces than are worth managing: its
    /// owner unmaps memory piece by piece, and had better have it back.
    #[must_use]
    pub fn would_tear(&self, address: HostAddress, bytes: usize) -> bool {
        let end = end_of(address, bytes);
        self.core.regions.overlapping(address, end).iter().any(|region| {
            let is_inside = region.start() < address && end < region.end();
            region.watched
                && is_inside
                && (region.parts() > PARTS_MAX || self.core.regions.is_full())
        })
    }

    /// Forgets the managed pages of a range that its owner is about to unmap or replace. Waits for
    /// work on them to end. Returns the pages forgotten.
    pub fn forget(&self, address: HostAddress, bytes: usize) -> Vec<PageRange> {
        let end = end_of(address, bytes);
        self.core.offers.withdraw(address, end);
        self.core.forget(address, end)
    }

    /// Leaves a range to its owner that was [forgotten](Self::forget) and stays mapped, for the call that was
    /// to unmap or replace it has failed. What was merged there stays so, as CoW copies that nobody watches.
    ///
    /// # Errors
    /// As read(2) of `/proc/self/maps`; `ENOMEM` if there are too many regions. Then discarded pages may show
    /// what they were merged with.
    pub fn leave(&self, address: HostAddress, bytes: usize) -> io::Result<()> {
        table::run(|| self.core.leave(address, end_of(address, bytes)))
    }

    /// Notes what the VMM advised for a range of whole pages, so that mappings made there later get it too.
    /// The caller then gives the advice to the kernel itself.
    pub fn note_advice(&self, address: HostAddress, bytes: usize, advice: LastingAdvice) {
        let end = end_of(address, bytes);
        self.core.offers.note_advice(address, end, advice);
        if let LastingAdvice::DontFork(true) = advice {
            self.core.bound.keep_from_children(address, end);
        }
        for region in self.core.regions.overlapping(address, end) {
            let pages = region.pages_between(address, end);
            // Work under way sees all of a run advised alike, and what it maps is there for the caller's
            // advice; later work sees the note.
            let start = region.address(pages.first);
            let _hold = self.core.hold(start, start.plus_pages(pages.count));
            region.note_advice(pages, advice);
        }
    }

    /// Makes a store known: pages can be merged with slots of its segments, once these are
    /// [pinned](Self::pin).
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_store(
        &self,
        id: StoreId,
        slots: u32,
        segment_slots: u32,
    ) -> Result<(), AttachError> {
        let nonsense = AttachError::Nonsense { store: id.0, slots, segment_slots };
        let is_named = (1..=STORE_MAX).contains(&id.0);
        if !is_named || slots > SLOTS_MAX || !(1..=SLOTS_MAX).contains(&segment_slots) {
            return Err(nonsense);
        }
        let view = StoreView::new(id, slots, segment_slots).map_err(AttachError::Map)?;
        let view = Arc::new(view);
        loop {
            let mut stores = self.core.stores.write().unwrap_or_else(PoisonError::into_inner);
            let place = &mut stores[id.0 as usize];
            match place.as_ref() {
                Some(old) if old.is_mapped() => return Err(nonsense),
                Some(old) if Arc::strong_count(old) > 1 => {}
                _ => {
                    *place = Some(view);
                    // Relaxed: written and read under the lock.
                    self.core.current_store.store(id.0, Ordering::Relaxed);
                    return Ok(());
                }
            }
            // A lane may be about to map slots of the old one.
            drop(stores);
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Has segments of a store at hand, each given by its number and a descriptor of its file for
    /// reading, ascending. The descriptors are closed when what this returns is dropped.
    ///
    /// # Errors
    /// [`PinError`].
    pub fn pin(
        &self,
        store: StoreId,
        segments: impl IntoIterator<Item = (u32, OwnedFd)>,
    ) -> Result<Segments, PinError> {
        let view = self.core.store(store).ok_or(PinError::Nonsense)?;
        Segments::pin(view, &self.core.budget, segments)
    }

    /// The stores that pages are merged with. Others are forgotten.
    #[must_use]
    pub fn stores_in_use(&self) -> Vec<StoreId> {
        let mut stores = self.core.stores.write().unwrap_or_else(PoisonError::into_inner);
        stores.iter_mut().for_each(store::forget_unused);
        stores.iter().flatten().map(|store| store.id).collect()
    }

    /// A lane's hands: a staging area and spare pages of its own.
    ///
    /// # Errors
    /// When memory or mappings run out.
    pub fn worker(&self) -> io::Result<Worker> {
        table::run(|| Worker::new(Arc::clone(&self.core)))
    }

    /// Waits until no page is in transit and keeps it so until [`resume`](Self::resume): for
    /// `pthread_atfork`.
    pub fn pause(&self) {
        self.core.held.pause();
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.core.held.resume();
        // A write to a merged page was left waiting meanwhile, as for a holder: let it come again.
        let regions = self.regions();
        table::run(|| regions.iter().for_each(|r| self.core.wake(r.address, r.pages.count)));
    }

    /// CPU time of the three fault handlers so far, in nanoseconds.
    #[must_use]
    pub fn handler_cpu_ns(&self) -> u64 {
        let time = |clock: CpuClock| clock.time().expect("handlers live as long as the process");
        self.handlers.map(time).iter().sum::<Duration>().as_nanos() as u64
    }

    /// Mappings of the process now, at worst, and how many merging may fill up to.
    #[must_use]
    pub fn mappings(&self) -> (u32, u32) {
        (self.core.budget.now(), self.core.budget.max())
    }

    /// Pages that came back because they were written. Wraps.
    #[must_use]
    pub fn breaks(&self) -> u32 {
        self.core.breaks.load(Ordering::Relaxed)
    }
}

impl Core {
    /// Wakes whoever waits for pages of a range, for whichever reason.
    fn wake(&self, start: HostAddress, pages: u32) {
        let bytes = pages as usize * PAGE_BYTES;
        table::run(|| {
            for faults in [&self.guest_faults, &self.store_faults, &self.block_faults] {
                let woken = faults.wake(start, bytes);
                assert!(woken.is_ok(), "waking a range of whole pages cannot fail");
            }
        });
    }
}

/// Returns what is to be said of two parts of a range: an error at once, but for memory that is not mapped, of
/// which is told when all is done.
fn beyond_holes(before: io::Result<()>, now: io::Result<()>) -> io::Result<io::Result<()>> {
    match now {
        Ok(()) => Ok(before),
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Ok(Err(error)),
        Err(error) => Err(error),
    }
}

fn end_of(address: HostAddress, bytes: usize) -> HostAddress {
    HostAddress(address.0.saturating_add(bytes))
}

fn table_error(error: io::Error) -> StartError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => StartError::Table(error),
        _ => StartError::Resources(error),
    }
}

fn start_error(error: io::Error) -> StartError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => StartError::NotPermitted(error),
        Some(libc::EINVAL | libc::ENOSYS | libc::ENOENT | libc::ENODEV) => {
            StartError::Unsupported(error)
        }
        _ => StartError::Resources(error),
    }
}

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
