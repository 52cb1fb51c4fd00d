//! Writes that go on while their caller prepares the next.
//!
//! The kernel reads memory that this module owns, or has a share of, until it says that it is through with it: there is
//! nothing that a caller could touch, free, or forget too early.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{opcode, types};
use rustix::io::Errno;

use super::{Kernel, await_one};
use crate::direct::{Source, Transfer};

/// A ring, and the memory that is being written. Any thread may use it, one at a time; a forked child
/// may not, its memory has no ring. Dropping it there does nothing.
pub struct Queue {
    kernel: Kernel,
    /// What the kernel has, by the number that it was given with it.
    slots: Box<[Option<Slot>]>,
    under_way: usize,
    /// The kernel has refused an entry, which is still in the ring and speaks of memory that is not
    /// there any more: nothing is submitted again.
    is_refused: bool,
}

struct Slot {
    offset_bytes: u64,
    source: Source,
}

/// A write that is under way no more.
#[derive(Debug)]
pub struct Written {
    /// Where it went.
    pub offset_bytes: u64,
    /// What was written.
    pub source: Source,
    /// As [`Transfer::run`] gives it.
    pub outcome: io::Result<()>,
}

impl Queue {
    /// A queue in which `depth` writes are under way at most. Costs some pages of memory and a
    /// descriptor.
    ///
    /// # Errors
    /// As [`Ring::new`](super::Ring::new).
    ///
    /// # Panics
    /// If `depth` is 0 or above 4096.
    pub fn new(depth: usize) -> io::Result<Self> {
        let kernel = Kernel::new(depth)?;
        let slots = (0..depth).map(|_| None).collect();
        Ok(Self { kernel, slots, under_way: 0, is_refused: false })
    }

    /// How many writes are under way at most.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    /// How many are.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether the kernel has refused to serve the ring: all is written before `begin` returns from then on.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Begins to write all of a source. Where the kernel does not serve the ring, it is written before
    /// this returns, and that is what is given back.
    ///
    /// # Panics
    /// If as many are under way as there can be, or another process made the queue.
    pub fn begin(
        &mut self,
        file: BorrowedFd<'_>,
        offset_bytes: u64,
        source: Source,
    ) -> Option<Written> {
        assert!(self.kernel.origin.is_here(), "a queue is used by the process that made it");
        let free = self.slots.iter().position(Option::is_none);
        let free = free.expect("no more is under way than the queue is deep");
        let slot = Slot { offset_bytes, source };
        if self.is_refused || slot.source.len() > u32::MAX as usize {
            return Some(slot.finish(file, 0));
        }
        let (start, bytes) = (slot.source.as_ptr(), slot.source.len() as u32);
        let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), start, bytes);
        let entry = entry.offset(offset_bytes).build().user_data(free as u64);
        // SAFETY: needs a descriptor that lives until the entry is submitted, which is here, and memory
        // that nobody changes or frees until it is reaped: it is the source's, which goes into a slot
        // that is emptied by `reap` alone, and lives longer than the ring takes entries (see `drop`);
        // who shares it has an `Arc`, which nobody can write through while the slot has another. An
        // entry that is not submitted here never is (`is_refused`).
        unsafe { self.kernel.ring.submission().push(&entry) }.expect("as many slots as entries");
        loop {
            match self.kernel.ring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => break,
            }
        }
        if !self.kernel.ring.submission().is_empty() {
            self.is_refused = true;
            return Some(slot.finish(file, 0));
        }
        self.slots[free] = Some(slot);
        self.under_way += 1;
        None
    }

    /// Waits for one write, and finishes what the kernel has left of it. None if none is under way.
    ///
    /// # Panics
    /// If another process made the queue.
    pub fn wait(&mut self, file: BorrowedFd<'_>) -> Option<Written> {
        assert!(self.kernel.origin.is_here(), "a queue is used by the process that made it");
        loop {
            if let Some((slot, outcome)) = self.reap() {
                return Some(match outcome {
                    Ok(bytes) => slot.finish(file, bytes),
                    // Given up with the thread that had begun it, or for now: done here instead.
                    Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) => slot.finish(file, 0),
                    Err(error) => slot.into_written(Err(error.into())),
                });
            }
            if self.under_way == 0 {
                return None;
            }
            await_one(&self.kernel.ring);
        }
    }

    /// One that the kernel is through with, and what it returned.
    fn reap(&mut self) -> Option<(Slot, Result<usize, Errno>)> {
        let entry = self.kernel.ring.completion().next()?;
        let slot = self.slots[entry.user_data() as usize].take();
        self.under_way -= 1;
        let result = entry.result();
        let outcome = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        Some((slot.expect("a slot is emptied once"), outcome))
    }
}

impl Slot {
    /// Writes what is left after so many bytes.
    fn finish(self, file: BorrowedFd<'_>, done_bytes: usize) -> Written {
        let mut transfer = Transfer::write(self.offset_bytes, &self.source);
        let outcome = match done_bytes {
            0 => transfer.run(file),
            _ => transfer.advance(Ok(done_bytes)).and_then(|()| transfer.run(file)),
        };
        self.into_written(outcome)
    }

    fn into_written(self, outcome: io::Result<()>) -> Written {
        let Self { offset_bytes, source } = self;
        Written { offset_bytes, source, outcome }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        while self.under_way > 0 && self.kernel.origin.is_here() {
            if self.reap().is_none() {
                await_one(&self.kernel.ring);
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (depth, under_way) = (self.depth(), self.under_way);
        write!(formatter, "Queue({under_way} writes of at most {depth})")
    }
}

#[cfg(test)]
mod tests;
