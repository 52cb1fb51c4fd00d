//! Children of fork that still look at our pages.
//!
//! A child's copy of a merged page shows the store's slot, and nobody serves the child's faults: it
//! needs the slot for as long as it has the mapping. The daemon frees a slot once no guest maps it,
//! and it knows only guests. So while a child lives that has neither ended nor called exec, pages keep
//! their slots, and the daemon is told of no loss, of no region that is gone, and not which pages are
//! merged: what the child may see is then still taken for merged, by each connection to a daemon that
//! lives.
//!
//! Whether it lives shows on a pipe whose other end the child alone holds, close-on-exec, and its
//! own children after it. The child has nothing to do for it: it is born with that end. A child that
//! closes descriptors which it does not know gives up the protection; one that asked for
//! `MADV_DONTFORK` never needed it. All this ends with the process: of children that outlive it the
//! daemon knows by the description of the store that it has lent, which their mappings use.

use std::io::{PipeWriter, pipe};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bindery_sys::socket::wait_readable;
use bindery_sys::table::{self, Kept};

use crate::Space;

/// The pipes of all children.
#[derive(Debug)]
pub(super) struct Children {
    space: Arc<Space>,
    pipes: Mutex<Pipes>,
}

#[derive(Debug, Default)]
struct Pipes {
    /// Of the fork under way. Forks come one at a time: each has paused the space.
    forking: Option<(Kept<OwnedFd>, PipeWriter)>,
    living: Vec<Kept<OwnedFd>>,
}

impl Pipes {
    const fn are_any(&self) -> bool {
        self.forking.is_some() || !self.living.is_empty()
    }
}

impl Children {
    pub(super) fn of(space: Arc<Space>) -> Self {
        Self { space, pipes: Mutex::default() }
    }

    fn pipes(&self) -> MutexGuard<'_, Pipes> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a fork, in the thread that forks, once it has paused the space. False if a descriptor
    /// could not be had: the child is then not protected.
    pub(super) fn prepare(&self) -> bool {
        // The child is born with one end, and so has the program's table; the other is ours.
        let made =
            pipe().and_then(|(reader, writer)| Ok((table::adopt(reader.into())?, writer))).ok();
        let mut pipes = self.pipes();
        pipes.forking = made;
        self.space.keep_slots(pipes.are_any());
        pipes.forking.is_some()
    }

    /// After a fork, in the parent.
    pub(super) fn forked(&self) {
        let mut pipes = self.pipes();
        if let Some((reader, _writer)) = pipes.forking.take() {
            pipes.living.push(reader);
        }
    }

    /// Whether any child may still see our pages.
    pub(super) fn any(&self) -> bool {
        self.look().are_any()
    }

    /// Does `work` if no child may see our pages, and has none born meanwhile: forks wait, with the space
    /// paused. So it must be short, hold no pages and allocate nothing (an allocator may be locked for the
    /// fork); it may wait for those who hold pages.
    pub(super) fn unless_any<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let pipes = self.look();
        (!pipes.are_any()).then(work)
    }

    fn look(&self) -> MutexGuard<'_, Pipes> {
        let mut pipes = self.pipes();
        if pipes.are_any() {
            // Nobody writes to these pipes: readable means that the last writer is gone.
            let has_ended =
                |reader: &OwnedFd| wait_readable(reader, Duration::ZERO).unwrap_or(false);
            pipes.living.retain(|reader| !reader.with(has_ended));
            self.space.keep_slots(pipes.are_any());
        }
        pipes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_child_counts_until_the_last_holder_of_its_end_is_gone() {
        let Ok(space) = Space::start() else {
            eprintln!("SKIPPED: memory cannot be managed here");
            return;
        };
        let children = Children::of(Arc::clone(&space));
        let slots_stay = || space.core.slots_stay.load(Ordering::Relaxed);
        assert_eq!((children.any(), children.unless_any(|| 5)), (false, Some(5)));
        assert!(children.prepare());
        assert!(children.any() && slots_stay(), "while it forks");
        // What fork does: the child has a copy of its own.
        let copy = children.pipes().forking.as_ref().unwrap().1.try_clone().unwrap();
        children.forked();
        assert!(children.any() && slots_stay());
        assert_eq!(children.unless_any(|| 5), None);
        drop(copy);
        assert!(!children.any() && !slots_stay());
    }
}
