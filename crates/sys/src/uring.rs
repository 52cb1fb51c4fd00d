//! Many reads and writes of one file at once, through io_uring (io_uring(7)).
//!
//! The kernel reads and writes memory after the system call that asked for it has returned. What makes
//! that safe here: [`Ring::run`] borrows the memory, and does not return, by whatever way, while the
//! kernel has any of it.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use thiserror::Error;

use crate::direct::Transfer;
use crate::process::Origin;

mod queue;

pub use self::queue::{Queue, Written};

/// Two queues shared with the kernel. Any thread may use it, one at a time; a forked child may not
/// ([`is_here`](Self::is_here)), its memory has no queues.
///
/// Rings whose completions wait for their thread to ask (`IORING_SETUP_DEFER_TASKRUN`) took a fifth more
/// CPU time a read here: one batch at a time has nothing else that an interruption would disturb.
pub struct Ring {
    ring: Kernel,
    depth: usize,
}

/// A ring of the process that made it. In a child, whose memory has nothing where the ring was, dropping it
/// does nothing.
struct Kernel {
    ring: ManuallyDrop<IoUring>,
    origin: Origin,
}

impl Kernel {
    fn new(depth: usize) -> io::Result<Self> {
        Ok(Self { ring: ManuallyDrop::new(build(depth)?), origin: Origin::here() })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.origin.is_here() {
            // SAFETY: needs a value that is not used again; its owner is being dropped.
            unsafe { ManuallyDrop::drop(&mut self.ring) }
        }
    }
}

/// Why transfers were given up. None is under way any more.
#[derive(Debug, Error)]
pub enum RunError {
    /// One of them failed, or met the end of the file; which of the others were done is unknown.
    #[error("transfer {index} failed: {error}")]
    Transfer {
        /// Its place among those given; it knows how far it came.
        index: usize,
        /// As [`Transfer::run`] gives it.
        error: io::Error,
    },
    /// The kernel does not serve the ring. Drop it; what was not done can be done in another way.
    #[error("io_uring_enter: {0}")]
    Ring(io::Error),
}

impl Ring {
    /// A ring in which `depth` transfers are under way at most. Costs some pages of memory and a
    /// descriptor.
    ///
    /// # Errors
    /// As io_uring_setup(2): `EPERM` where `kernel.io_uring_disabled` or a seccomp filter forbids it,
    /// `ENOSYS` where the kernel has none, `EINVAL` before Linux 5.18.
    ///
    /// # Panics
    /// If `depth` is 0 or above 4096.
    pub fn new(depth: usize) -> io::Result<Self> {
        Ok(Self { ring: Kernel::new(depth)?, depth })
    }

    /// How many transfers are under way at most.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns true if this process made the ring, so that it can use it.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.ring.origin.is_here()
    }

    /// Does all transfers, as many at once as the ring is deep, in any order. Blocks until they are
    /// done; signals do not end it.
    ///
    /// # Errors
    /// The first transfer's that failed, or the ring's.
    ///
    /// # Panics
    /// If another process made the ring.
    pub fn run(
        &mut self,
        file: BorrowedFd<'_>,
        transfers: &mut [Transfer<'_>],
    ) -> Result<(), RunError> {
        let depth = self.depth;
        assert!(self.is_here(), "a ring is used by the process that made it");
        let mut flight = Flight::new(&mut self.ring).map_err(RunError::Ring)?;
        let mut fresh = 0..transfers.len();
        // Those of which the kernel has done a part.
        let mut partial: Vec<usize> = Vec::new();
        loop {
            while flight.under_way < depth {
                let Some(index) = partial.pop().or_else(|| fresh.next()) else { break };
                flight.push(file, index, &transfers[index]);
            }
            if flight.under_way == 0 {
                return Ok(());
            }
            flight.submit_and_wait().map_err(RunError::Ring)?;
            while let Some((index, outcome)) = flight.reap() {
                let transfer = &mut transfers[index];
                transfer.advance(outcome).map_err(|error| RunError::Transfer { index, error })?;
                if transfer.left_bytes() > 0 {
                    partial.push(index);
                }
            }
        }
    }
}

fn build(depth: usize) -> io::Result<IoUring> {
    assert!((1..=4096).contains(&depth), "a ring of depth {depth}");
    IoUring::builder().dontfork().setup_submit_all().build(depth as u32)
}

/// Waits until the kernel is through with something, and submits nothing.
fn await_one(ring: &IoUring) {
    const GETEVENTS: u32 = 1;
    // SAFETY: needs the argument to fit the flags; there is none.
    let waited = unsafe { ring.submitter().enter::<libc::sigset_t>(0, 1, GETEVENTS, None) };
    if let Err(error) = waited
        && error.kind() != io::ErrorKind::Interrupted
    {
        // The kernel has memory that is about to be used for something else, and does not say when it
        // gives it back: somebody has closed our descriptor, or forbidden the call meanwhile.
        eprintln!("bindery: io_uring_enter with transfers under way: {error}");
        std::process::abort();
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Ring").field("depth", &self.depth).finish_non_exhaustive()
    }
}

/// Transfers that are under way. Its end waits for theirs.
struct Flight<'r> {
    ring: &'r mut IoUring,
    /// Pushed and not reaped.
    under_way: usize,
}

impl<'r> Flight<'r> {
    /// Nothing is under way yet.
    ///
    /// What an earlier flight pushed and the kernel did not take is still in the queue, and speaks of
    /// memory that is borrowed no more: a ring with such entries never submits again.
    fn new(kernel: &'r mut Kernel) -> io::Result<Self> {
        let ring = &mut *kernel.ring;
        if ring.submission().is_empty() {
            Ok(Self { ring, under_way: 0 })
        } else {
            Err(Errno::BADFD.into())
        }
    }

    /// Asks for what is left of a transfer, which comes back from [`reap`](Self::reap) as `index`.
    fn push(&mut self, file: BorrowedFd<'_>, index: usize, transfer: &Transfer<'_>) {
        let file = types::Fd(file.as_raw_fd());
        let start = transfer.left_start().as_ptr();
        // A longer one is done in part, and gone on with.
        let bytes = transfer.left_bytes().min(1 << 30) as u32;
        let entry = if transfer.is_write() {
            opcode::Write::new(file, start, bytes).offset(transfer.offset_bytes()).build()
        } else {
            opcode::Read::new(file, start, bytes).offset(transfer.offset_bytes()).build()
        };
        // SAFETY: needs memory and descriptor to stay until the entry is reaped, or for ever out of the
        // kernel's hands. They are borrowed by `run` and by its `transfers`, `run` outlives this
        // flight, whose drop waits for all that the kernel has taken; what it has not taken is never
        // submitted (see `new`). An exclusive borrow is not touched meanwhile: `run` looks at a
        // transfer only when it has been reaped.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(index as u64)) };
        pushed.expect("no more is under way than the queue is deep");
        self.under_way += 1;
    }

    fn submit_and_wait(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// One that the kernel is through with: who, and what it returned.
    fn reap(&mut self) -> Option<(usize, Result<usize, Errno>)> {
        let entry = self.ring.completion().next()?;
        self.under_way -= 1;
        let result = entry.result();
        let outcome = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        Some((entry.user_data() as usize, outcome))
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        while self.under_way > self.ring.submission().len() {
            await_one(self.ring);
            while self.reap().is_some() {}
        }
    }
}

#[cfg(test)]
mod tests;
