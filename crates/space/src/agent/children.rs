//! Children of fork that still look at our pages.
//!
//! A child's copy of a merged page shows the store's slot, and nobody serves the child's faults: it
//! needs the slot for as long as it has the mapping. The daemon frees a slot once no guest maps it,
//! and it knows only guests. So while a child lives that has neither ended nor called exec, no loss
//! is reported: what the child may see is then still taken for merged.
//!
//! Whether it lives shows on a pipe whose other end the child alone holds, close-on-exec, and its
//! own children after it. The child has nothing to do for it: it is born with that end. A child that closes descriptors which it does not know gives up the
//! protection; one that asked for `MADV_DONTFORK` never needed it.

use std::io::{PipeReader, PipeWriter, pipe};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bindery_sys::socket::wait_readable;

/// The pipes of all children.
#[derive(Debug, Default)]
pub(super) struct Children {
    pipes: Mutex<Pipes>,
}

#[derive(Debug, Default)]
struct Pipes {
    /// Of the fork under way. Forks come one at a time: each has paused the space.
    forking: Option<(PipeReader, PipeWriter)>,
    living: Vec<PipeReader>,
}

impl Children {
    fn pipes(&self) -> MutexGuard<'_, Pipes> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a fork, in the thread that forks. False if a descriptor could not be had: the child
    /// is then not protected.
    pub(super) fn prepare(&self) -> bool {
        let made = pipe().ok();
        let mut pipes = self.pipes();
        pipes.forking = made;
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
        let mut pipes = self.pipes();
        // Nobody writes to these pipes: readable means that the last writer is gone.
        pipes.living.retain(|reader| !wait_readable(reader, Duration::ZERO).unwrap_or(false));
        !pipes.living.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_counts_until_the_last_holder_of_its_end_is_gone() {
        let children = Children::default();
        assert!(!children.any());
        assert!(children.prepare());
        // What fork does: the child has a copy of its own.
        let copy = children.pipes().forking.as_ref().unwrap().1.try_clone().unwrap();
        children.forked();
        assert!(children.any());
        drop(copy);
        assert!(!children.any());
    }
}
