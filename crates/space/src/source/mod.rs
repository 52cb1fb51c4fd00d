//! Memory that is bound to a source: its pages come from the daemon, when they are touched or before.
//!
//! A [`Source`] has a userfaultfd of its own, of the kind that also serves the kernel's faults. The thread
//! `bindery-source` ([`agent`](crate::agent)) reads its faults, asks the daemon for the pages, and fills in what
//! comes. Bound memory is neither managed nor offered; it is offered once all of it is there.
//!
//! ```text
//!            fault of a page          decided: zero-filled here (the VMM discarded it, or it is zero)
//!  guest ----------------------> table
//!  thread                             missing: asked for once, and filled when it comes
//!
//!            madvise(DONTNEED)
//!  VMM   ----------------------> table: decided from then on, whatever is on its way
//! ```
//!
//! # Concurrency
//! The table's lock is held while a run of pages is filled, and while the VMM's own discard is carried out: a
//! page that is on its way and discarded is decided there. Neither touches a page of the guest, so nobody waits
//! for a fault under the lock.
//!
//! # What a VMM may do meanwhile
//! | call | bound memory |
//! |---|---|
//! | `MADV_DONTNEED`, `_FREE`, `_GUARD_INSTALL` | is discarded, and zero from then on |
//! | `munmap`, `mmap(MAP_FIXED)` | goes; what was on its way is dropped |
//! | `mprotect`, `mlock`, `mbind`, other advice | the kernel's: pages are filled under any protection |
//! | `mremap` that moves it, a userfaultfd of the VMM's, `MADV_DOFORK` | filled first, then let go |
//! | `fork` | children do not have it, as with `MADV_DONTFORK`, while any page is missing |

mod bind;
mod fill;
mod table;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bindery_sys::mapping::{self, Mapping};
use bindery_sys::table::Bell;
use bindery_units::{HostAddress, PAGE_BYTES, PageRange};
use std::io;
use std::os::fd::OwnedFd;

pub(crate) use self::bind::BindError;
pub(crate) use self::fill::Content;
use self::table::BoundTable;
use crate::{Core, Space, descriptors::Userfault, end_of, extents::Extents};

/// Pages that are brought in at a time for a call that needs ordinary memory.
const LET_GO_PAGES: u32 = 512;

/// The bound memory of the process: of one source at a time.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    current: Mutex<Option<Arc<Source>>>,
    /// Bounds of its parts, for those who may not wait.
    extents: Extents,
    /// Wakes the thread that serves it.
    bell: OnceLock<&'static Bell>,
}

/// Memory that was bound together, and where its pages come from.
#[derive(Debug)]
pub(crate) struct Source {
    faults: Userfault,
    state: Mutex<State>,
    pub(crate) bell: &'static Bell,
    pub(crate) token: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    table: BoundTable,
    phase: Phase,
    /// Connection that the serving thread is to go on with.
    link: Option<Link>,
    /// Number of connections that were lost.
    losses: u32,
    is_lost: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Not bound yet: the serving thread has nothing to do.
    #[default]
    Binding,
    Bound,
    /// All of it is there, or it could not be bound.
    Ended,
}

/// Connection to the daemon's end of a source.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: OwnedFd,
    pub(crate) window: Mapping,
}

/// Next act of the serving thread.
#[derive(Debug)]
pub(crate) enum Step {
    /// Serve faults and what comes.
    Serve,
    /// Go on with this connection.
    Relink(Link),
    /// Nothing is missing: [`Core::end_source`].
    Complete,
    /// Never bound.
    Cancelled,
}

impl Source {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the serving thread is to do now. With a new connection, whoever waits for a page asks
    /// again.
    pub(crate) fn step(&self) -> Step {
        let mut state = self.lock();
        match state.phase {
            Phase::Ended => Step::Cancelled,
            Phase::Bound if state.table.missing() == 0 => Step::Complete,
            _ => match state.link.take() {
                None => Step::Serve,
                Some(link) => {
                    state.is_lost = false;
                    state.table.forget_asked();
                    for part in state.table.parts() {
                        let woken = self.faults.wake(part.start, part.end().0 - part.start.0);
                        assert!(woken.is_ok(), "waking a range of whole pages cannot fail");
                    }
                    Step::Relink(link)
                }
            },
        }
    }

    /// Gives the serving thread a connection to go on with. Returns it if nothing is missing any more, and the
    /// thread has ended.
    pub(crate) fn give_link(&self, link: Link) -> Option<Link> {
        let mut state = self.lock();
        if state.phase == Phase::Ended {
            return Some(link);
        }
        state.link = Some(link);
        self.bell.ring();
        None
    }

    /// Takes a connection that the serving thread has not begun to use.
    pub(crate) fn take_link(&self) -> Option<Link> {
        self.lock().link.take()
    }

    /// Notes that the connection is lost.
    pub(crate) fn note_loss(&self) {
        let mut state = self.lock();
        state.losses = state.losses.wrapping_add(1);
        state.is_lost = true;
    }

    /// Returns how often it was lost, and how many pages are missing, if it is lost now.
    pub(crate) fn loss(&self) -> Option<(u32, u64)> {
        let state = self.lock();
        let is_lost = state.is_lost && state.link.is_none() && state.phase == Phase::Bound;
        is_lost.then(|| (state.losses, state.table.missing()))
    }

    /// Returns what is missing, as runs with pages among them that are not.
    pub(crate) fn lacks(&self) -> Vec<PageRange> {
        self.lock().table.lacks()
    }

    pub(crate) fn faults(&self) -> &Userfault {
        &self.faults
    }

    /// Wakes the serving thread, which looks if all is there.
    fn ring_if_complete(&self, state: &State) {
        if state.table.missing() == 0 {
            self.bell.ring();
        }
    }
}

impl Bound {
    pub(crate) fn current(&self) -> Option<Arc<Source>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the source that memory between two addresses is bound to. Takes no lock where none is.
    fn overlapping(&self, start: HostAddress, end: HostAddress) -> Option<Arc<Source>> {
        let source = self.extents.may_overlap(start, end).then(|| self.current()).flatten()?;
        let overlaps =
            source.lock().table.parts().iter().any(|part| part.start < end && start < part.end());
        overlaps.then_some(source)
    }

    /// Returns true if any byte between two addresses is bound.
    pub(crate) fn overlaps(&self, start: HostAddress, end: HostAddress) -> bool {
        self.overlapping(start, end).is_some()
    }

    /// Returns the bound ranges between two addresses, cut to them, ascending.
    pub(crate) fn parts_in(
        &self,
        start: HostAddress,
        end: HostAddress,
    ) -> Vec<(HostAddress, HostAddress)> {
        let Some(source) = self.overlapping(start, end) else { return Vec::new() };
        let state = source.lock();
        let parts = state.table.parts().iter();
        parts
            .map(|part| (part.start.max(start), part.end().min(end)))
            .filter(|(from, to)| from < to)
            .collect()
    }

    /// Notes that memory between two addresses is to be offered once it is filled. Returns false if none is bound.
    pub(crate) fn offer_later(&self, start: HostAddress, end: HostAddress) -> bool {
        self.mark(start, end, |part| part.is_offered = true)
    }

    /// Keeps memory between two addresses from children of fork for good: its owner said so.
    pub(crate) fn keep_from_children(&self, start: HostAddress, end: HostAddress) {
        self.mark(start, end, |part| part.forks = false);
    }

    fn mark(
        &self,
        start: HostAddress,
        end: HostAddress,
        mark: impl FnMut(&mut table::Part),
    ) -> bool {
        let Some(source) = self.overlapping(start, end) else { return false };
        let mut state = source.lock();
        let parts = state.table.within(start, end);
        let any = !parts.is_empty();
        parts.iter_mut().for_each(mark);
        self.follow(&state.table);
        any
    }

    /// Brings the bounds up to date. The table is locked, and there is one at a time.
    fn follow(&self, table: &BoundTable) {
        let bounds = table.parts().iter().map(|part| (part.start, part.end()));
        // Parts come by division alone, but for those of a new source, of which there are few.
        self.extents.follow(bounds, None);
    }
}

impl Core {
    /// Throws away bound pages, as madvise(2) with `advice` that discards. Pages that are bound no more are
    /// given the advice alone.
    pub(crate) fn discard_bound(
        &self,
        start: HostAddress,
        end: HostAddress,
        advice: i32,
    ) -> io::Result<()> {
        // SAFETY: the VMM throws the pages away.
        let discard = || unsafe { mapping::advise(start, end.0 - start.0, advice) };
        let Some(source) = self.bound.overlapping(start, end) else { return discard() };
        let mut state = source.lock();
        // Nothing is filled meanwhile. Around holes the kernel discards the rest.
        let result = discard();
        if result.as_ref().is_err_and(|error| error.raw_os_error() != Some(libc::ENOMEM)) {
            return result;
        }
        let discarded = state.table.pages_between(start, end);
        discarded.into_iter().for_each(|pages| state.table.decide(pages));
        // Whoever waits for a page that comes no more.
        source.wake_between(state.table.extent(start, end));
        source.ring_if_complete(&state);
        result
    }
}

impl Space {
    pub(crate) fn bound_source(&self) -> Option<Arc<Source>> {
        self.core.bound.current()
    }

    /// Prepares a source, whose thread may serve it from then on.
    pub(crate) fn prepare_source(&self, token: Vec<u8>) -> Result<Arc<Source>, BindError> {
        self.core.bound.prepare(token)
    }

    /// Returns the number of pages of bound memory that are missing. `None` if none is bound.
    #[must_use]
    pub fn missing_pages(&self) -> Option<u64> {
        let source = self.core.bound.current()?;
        let state = source.lock();
        (state.phase == Phase::Bound).then(|| state.table.missing())
    }

    /// Does to bound memory in a range what advice does that leaves zeros, or guards; the rest of the range is
    /// left alone.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn discard_bound(&self, address: HostAddress, bytes: usize, advice: i32) -> io::Result<()> {
        let parts = self.core.bound.parts_in(address, end_of(address, bytes));
        parts.into_iter().try_for_each(|(from, to)| self.core.discard_bound(from, to, advice))
    }

    /// Notes that bound memory in a range is to stay unmanaged once it is filled.
    pub fn withhold(&self, address: HostAddress, bytes: usize) {
        self.core.bound.mark(address, end_of(address, bytes), |part| part.is_offered = false);
    }

    /// Forgets bound memory that its owner has unmapped, replaced or moved.
    pub fn forget_bound(&self, address: HostAddress, bytes: usize) {
        let end = end_of(address, bytes);
        let Some(source) = self.core.bound.overlapping(address, end) else { return };
        let mut state = source.lock();
        let extent = state.table.extent(address, end);
        state.table.cut(address, end);
        self.core.bound.follow(&state.table);
        source.wake_between(extent);
        source.ring_if_complete(&state);
    }

    /// Makes ordinary memory of what is bound in a range: waits until its pages are there, as long as that
    /// takes, and ends their registration. False if some cannot be brought in (memory that may not be read), or the
    /// kernel cannot end it at the limit of mappings.
    pub fn let_go(&self, address: HostAddress, bytes: usize) -> bool {
        let end = end_of(address, bytes);
        while let Some(source) = self.core.bound.overlapping(address, end) {
            let Some((start, run)) = source.first_missing_in(address, end) else {
                if !self.core.unwatch_filled(&source, address, end) {
                    return false;
                }
                continue;
            };
            // SAFETY: reading a page changes no content.
            let read = unsafe {
                mapping::advise(start, run.count as usize * PAGE_BYTES, libc::MADV_POPULATE_READ)
            };
            let stuck = |error: io::Error| error.raw_os_error() != Some(libc::EINTR);
            if read.is_err_and(stuck)
                && source.first_missing_in(address, end).is_some_and(|(_, left)| left == run)
            {
                return false;
            }
        }
        true
    }
}

impl Source {
    /// Returns the first run of missing pages between two addresses.
    fn first_missing_in(
        &self,
        start: HostAddress,
        end: HostAddress,
    ) -> Option<(HostAddress, PageRange)> {
        let state = self.lock();
        let parts = state.table.pages_between(start, end);
        parts.into_iter().find_map(|pages| state.table.first_missing(pages, LET_GO_PAGES))
    }
}
