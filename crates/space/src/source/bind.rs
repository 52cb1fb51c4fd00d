//! Binding memory to a source, and letting go of it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bindery_sys::{
    mapping,
    maps::{self, AdvisedMappings},
    table::Bell,
    userfault::{feature, mode},
};
use bindery_units::HostAddress;
use bindery_wire::control::{BoundRange, are_bindable};

use super::{Bound, Phase, Source, table::BoundTable, table::Part};
use crate::{
    Core, ManageError, ReleaseError, Space, descriptors::Userfault, end_of, manage::is_suitable,
    release::Release,
};

/// `MADV_DONTNEED_LOCKED` (Linux 5.18): as `MADV_DONTNEED`, locked memory included.
const MADV_DONTNEED_LOCKED: i32 = 24;

/// Why memory was not bound. Its content is what it was, unless the kernel failed to discard it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("memory is bound to another source, of which pages are missing")]
    Busy,
    #[error("the ranges are no memory that could be bound together")]
    Nonsense,
    #[error("{0}, which cannot be bound to a source: only private anonymous memory can")]
    Unsuitable(#[from] ManageError),
    #[error(transparent)]
    Release(#[from] ReleaseError),
    #[error("the kernel refused to bind memory to a source: {0}")]
    Kernel(#[from] io::Error),
}

impl BindError {
    /// Returns the error that the daemon is told.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Busy => libc::EBUSY,
            Self::Nonsense => libc::EINVAL,
            Self::Unsuitable(_) => libc::EOPNOTSUPP,
            Self::Release(_) => libc::ENOMEM,
            Self::Kernel(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl Bound {
    /// Prepares a source for `token`. Its thread may serve it already.
    pub(crate) fn prepare(&self, token: Vec<u8>) -> Result<Arc<Source>, BindError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.is_some() {
            return Err(BindError::Busy);
        }
        let bell = match self.bell.get() {
            Some(bell) => *bell,
            None => {
                let bell = Bell::new()?;
                *self.bell.get_or_init(|| bell)
            }
        };
        // Without the mark for lost pages there is no telling them from zeros.
        let faults = Userfault::open_to_poll(feature::POISON)?;
        let source = Arc::new(Source { faults, state: Mutex::default(), bell, token });
        *current = Some(Arc::clone(&source));
        Ok(source)
    }

    fn forget(&self, source: &Arc<Source>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take_if(|current| Arc::ptr_eq(current, source));
    }
}

impl Space {
    /// Discards ranges and binds them to a source that was prepared. What else was managed in their regions is
    /// offered anew. On an error the source is at its end.
    pub(crate) fn bind_to_source(
        &self,
        source: &Arc<Source>,
        ranges: &[BoundRange],
    ) -> Result<(), BindError> {
        let bound = self.try_bind(source, ranges);
        if bound.is_err() {
            self.cancel_source(source);
        }
        bound
    }

    /// Ends a source that nothing was bound to.
    pub(crate) fn cancel_source(&self, source: &Arc<Source>) {
        source.lock().phase = Phase::Ended;
        source.bell.ring();
        self.core.bound.forget(source);
    }

    fn try_bind(&self, source: &Arc<Source>, ranges: &[BoundRange]) -> Result<(), BindError> {
        if !are_bindable(ranges) {
            return Err(BindError::Nonsense);
        }
        let mut rest = Vec::new();
        for range in ranges {
            let (start, end) = bounds(range);
            // A region is given back as a whole.
            for region in self.regions_in(start, end.0 - start.0) {
                rest.push((region.address, region.address.plus_pages(region.pages.count)));
            }
            self.core.offers.withdraw(start, end);
            Release::new(&self.core)?.release(start, end)?;
        }
        let bound = self.core.bind_ranges(source, ranges);
        let is_bound = bound.is_ok();
        for range in ranges.iter().filter(|_| is_bound) {
            rest = rest.into_iter().flat_map(|all| without(all, bounds(range))).collect();
        }
        for (start, end) in rest {
            // What cannot be offered stays ordinary memory.
            let _ = self.offer(start, end.0 - start.0, false);
        }
        bound
    }

    /// Ends a source of which no page is missing: its memory is ordinary memory from then on, and offered.
    /// Returns false if it has pages that are missing, or the kernel cannot end its registration now: its faults
    /// are to be served until a later call.
    pub(crate) fn end_source(&self, source: &Arc<Source>) -> bool {
        let mut state = source.lock();
        if state.table.missing() > 0 {
            return false;
        }
        if !state.table.parts().iter().all(|part| unwatch(source, part)) {
            return false;
        }
        let table = std::mem::take(&mut state.table);
        state.phase = Phase::Ended;
        self.core.bound.follow(&state.table);
        drop(state);
        self.core.bound.forget(source);
        for part in table.parts().iter().filter(|part| part.is_offered) {
            // What cannot be offered stays ordinary memory.
            let _ = self.offer(part.start, part.end().0 - part.start.0, false);
        }
        true
    }
}

impl Core {
    fn bind_ranges(&self, source: &Arc<Source>, ranges: &[BoundRange]) -> Result<(), BindError> {
        for range in ranges {
            let (start, end) = bounds(range);
            is_suitable(&maps::between(start, end)?, start, end)?;
        }
        let advised = AdvisedMappings::of_self()?;
        let mut state = source.lock();
        state.table = BoundTable::new(ranges);
        self.bound.follow(&state.table);
        for range in ranges {
            let (start, end) = bounds(range);
            let mappings = advised.between(start, end);
            for (at, (from, advised)) in mappings.iter().enumerate() {
                let to = mappings.get(at + 1).map_or(end, |(next, _)| *next);
                if advised.dont_fork {
                    state.table.within(*from, to).iter_mut().for_each(|part| part.forks = false);
                }
            }
        }
        // Faults from here on wait for the lock.
        let watched = state.table.parts().iter().try_for_each(|part| watch(source, part));
        let bound = watched.and_then(|()| state.table.parts().iter().try_for_each(empty));
        match bound {
            Ok(()) => state.phase = Phase::Bound,
            Err(_) => {
                state.table.parts().iter().for_each(|part| _ = unwatch(source, part));
                state.table = BoundTable::default();
                self.bound.follow(&state.table);
            }
        }
        Ok(bound?)
    }

    /// Ends the registration of what is bound between two addresses, if nothing of it is missing. Returns false if
    /// the kernel cannot.
    pub(crate) fn unwatch_filled(
        &self,
        source: &Arc<Source>,
        start: HostAddress,
        end: HostAddress,
    ) -> bool {
        let mut state = source.lock();
        let parts: Vec<Part> = state.table.within(start, end).to_vec();
        let mut are_ended = true;
        for part in parts {
            if state.table.first_missing(part.pages, 1).is_none() {
                if unwatch(source, &part) {
                    state.table.cut(part.start, part.end());
                } else {
                    are_ended = false;
                }
            }
        }
        self.bound.follow(&state.table);
        source.ring_if_complete(&state);
        are_ended
    }
}

fn watch(source: &Source, part: &Part) -> io::Result<()> {
    let bytes = part.end().0 - part.start.0;
    // SAFETY: the source's thread serves the faults; a child that has no copy of the memory sees no zeros in it.
    unsafe {
        source.faults.register(part.start, bytes, mode::MISSING)?;
        mapping::advise(part.start, bytes, libc::MADV_DONTFORK)
    }
}

fn empty(part: &Part) -> io::Result<()> {
    // SAFETY: whoever binds memory replaces its content.
    unsafe { mapping::advise(part.start, part.end().0 - part.start.0, MADV_DONTNEED_LOCKED) }
}

/// Makes ordinary memory of a part: all its pages are there, or zero. Returns false if the kernel could not, at the
/// limit of mappings: a page that is absent would be waited for without end.
fn unwatch(source: &Source, part: &Part) -> bool {
    let bytes = part.end().0 - part.start.0;
    // SAFETY: absent pages are zero ones. The advice keeps content.
    unsafe {
        // What is not watched any more, for it was unmapped by a call that we did not see, needs nothing: EINVAL.
        if matches!(source.faults.unregister(part.start, bytes), Err(error) if is_full(&error)) {
            return false;
        }
        if part.forks {
            let _ = mapping::advise(part.start, bytes, libc::MADV_DOFORK);
        }
    }
    true
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOMEM)
}

fn bounds(range: &BoundRange) -> (HostAddress, HostAddress) {
    (range.address, end_of(range.address, range.bytes as usize))
}

/// Returns what is left of a range without another.
fn without(
    (start, end): (HostAddress, HostAddress),
    (from, to): (HostAddress, HostAddress),
) -> impl Iterator<Item = (HostAddress, HostAddress)> {
    let left = [(start, end.min(from)), (start.max(to), end)];
    left.into_iter().filter(|(start, end)| start < end)
}
