//! Transfers done by io_uring, or by threads where that is refused.
//!
//! Container runtimes forbid io_uring by default (Docker's seccomp profile, since 2023), so the second
//! way is an ordinary one.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::str::FromStr;

use bindery_sys::direct::Transfer;
use bindery_sys::uring::{Ring, RunError};
use thiserror::Error;

mod threads;

/// Ways to do transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoEngine {
    /// A ring for each thread that calls.
    Uring,
    /// Threads that each do one at a time.
    Threads,
}

impl IoEngine {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Uring, Self::Threads];

    /// io_uring if this process may use it, threads otherwise, with the kernel's reason.
    pub(super) fn choose() -> (Self, Option<io::Error>) {
        match Ring::new(1) {
            Ok(_) => (Self::Uring, None),
            Err(error) => (Self::Threads, Some(error)),
        }
    }

    /// Returns the name of the engine.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uring => "io_uring",
            Self::Threads => "threads",
        }
    }

    /// Does all transfers, `depth` at once at most. Blocks until none is under way.
    ///
    /// # Errors
    /// Of the first that failed, which comes with its place among them.
    pub(super) fn run(
        self,
        file: BorrowedFd<'_>,
        depth: usize,
        transfers: &mut [Transfer<'_>],
    ) -> Result<(), (usize, io::Error)> {
        match (self, transfers) {
            (_, [one]) => one.run(file).map_err(|error| (0, error)),
            (Self::Uring, transfers) => run_in_ring(file, depth, transfers),
            (Self::Threads, transfers) => threads::run(file, depth, transfers),
        }
    }
}

impl fmt::Display for IoEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// An engine that there is not.
#[derive(Debug, Error)]
#[error("{0:?} is no way to do I/O: they are io_uring and threads")]
pub struct UnknownIoEngine(pub String);

impl FromStr for IoEngine {
    type Err = UnknownIoEngine;

    fn from_str(name: &str) -> Result<Self, UnknownIoEngine> {
        let found = Self::ALL.into_iter().find(|engine| engine.name() == name);
        found.ok_or_else(|| UnknownIoEngine(name.into()))
    }
}

thread_local! {
    /// Made at this thread's first batch, for all devices.
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// A thread that gets no ring (descriptors or memory are short), or whose ring fails, has threads do it:
/// what was done twice by then was done the same way twice.
fn run_in_ring(
    file: BorrowedFd<'_>,
    depth: usize,
    transfers: &mut [Transfer<'_>],
) -> Result<(), (usize, io::Error)> {
    let outcome = RING.with_borrow_mut(|ring| {
        let ring = match ring {
            // A child of fork has not its parent's.
            Some(ring) if ring.depth() == depth && ring.is_here() => ring,
            _ => ring.insert(Ring::new(depth).map_err(RunError::Ring)?),
        };
        ring.run(file, transfers)
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(RunError::Transfer { index, error }) => Err((index, error)),
        Err(RunError::Ring(error)) => {
            RING.take();
            tracing::warn!("threads do what io_uring does not: {error}");
            threads::run(file, depth, transfers)
        }
    }
}
