//! The two ends of a transfer: memory of a guest, and the place that it goes to.

use std::io;

use bindery_dirty::JoinError;
use bindery_guest::GuestError;
use bindery_units::{HostAddress, PageIndex, PageRange};

/// Consecutive pages of one memory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPages {
    /// Index of the block.
    pub block: usize,
    /// Pages, counted from the block's first.
    pub pages: PageRange,
}

/// Pages that changed, each in one of two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Pages to read, ascending by block and page.
    pub pages: Vec<BlockPages>,
    /// Pages that are zero in this pause and need not be read.
    pub zeros: Vec<BlockPages>,
}

/// Part that a pause has in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseKind {
    /// The guest runs on and another pause follows: a change that is found later is in time.
    Round,
    /// Pages that are read in this pause are kept.
    Last,
}

/// Memory of a guest, with a memory of what was taken of it.
///
/// Calls come from one thread. All block for as long as the guest takes.
pub trait Memory {
    /// Returns the number of pages of each block.
    fn blocks(&self) -> &[u32];

    /// Returns about how many pages a last pause would have to read if it began now. The guest runs, and may
    /// be asked.
    ///
    /// # Errors
    /// [`MemoryError`]; nothing was taken.
    fn estimate(&mut self) -> Result<u64, MemoryError>;

    /// Tracks writes more exactly, where that may leave no more than `fits` pages for a last pause. Returns the
    /// number of blocks for which it was done: all of their pages count as changed once more. The guest runs.
    ///
    /// # Errors
    /// [`MemoryError`]; nothing was taken.
    fn refine(&mut self, _fits: u64) -> Result<u64, MemoryError> {
        Ok(0)
    }

    /// Prepares for a pause that begins now.
    ///
    /// # Errors
    /// [`MemoryError`]; nothing was taken.
    fn before_pause(&mut self) -> Result<(), MemoryError> {
        Ok(())
    }

    /// Takes the pages that changed since they were last taken. The guest is paused, and its device state was
    /// saved if this is the last pause. A last pause takes all of them, pages whose writes nobody tracks
    /// included; another may leave some for later.
    ///
    /// # Errors
    /// [`MemoryError`]; what was taken can be put back.
    fn take(&mut self, kind: PauseKind) -> Result<Changed, MemoryError>;

    /// Ends what [`before_pause`](Self::before_pause) began: the pause is over.
    fn after_pause(&mut self) {}

    /// Copies pages to `into`, one after the other, absent ones as zeros. The guest may run: what a page holds
    /// while it is written is anything.
    ///
    /// # Errors
    /// [`MemoryError`]; `into` is worth nothing then.
    fn read(&mut self, pages: &[BlockPages], into: &mut [u8]) -> Result<(), MemoryError>;

    /// Forgets what was taken: it is kept elsewhere now.
    fn commit(&mut self);

    /// Makes all that was taken since the last commit changed again, and ends a pause that was prepared for.
    fn put_back(&mut self);
}

/// Failure of guest memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The guest's library failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The guest cannot be tracked.
    #[error("the guest's writes cannot be tracked by one more: {0}")]
    Reader(#[from] JoinError),
    /// An answer of the guest is outstanding: its pages may be moved at any time.
    #[error("the guest has not answered an earlier question yet: is it stopped? Try again later")]
    Stalled,
    /// The process is gone.
    #[error("the guest's process has ended")]
    Ended,
    /// The kernel does not let the process be looked at.
    #[error(
        "{doing} of the guest's process: {error}; the daemon has to run as root, or as the guest's user where \
         kernel.yama.ptrace_scope allows it"
    )]
    Process {
        /// Operation that failed, in words.
        doing: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// A block is not where it was placed.
    #[error(
        "at {address} no {bytes} bytes of guest memory are mapped: the VMM has moved or removed a block"
    )]
    Unmapped {
        /// Start of the block's memory.
        address: HostAddress,
        /// Length that was looked for.
        bytes: usize,
    },
    /// A page has content and cannot be read.
    #[error(
        "page {page:?} of block {block} cannot be read ({error}): the machine's memory may have lost it; see \
         the kernel's log"
    )]
    Unreadable {
        /// Index of the block.
        block: usize,
        /// Page of the block.
        page: PageIndex,
        /// The kernel's error.
        error: io::Error,
    },
    /// Memory that implements [`Memory`] itself failed.
    #[error("{0}")]
    Callback(String),
}

/// Failure of a sink, in its own words.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Place that pages go to. What is put of a page replaces what was put of it before.
///
/// Calls come from one thread at a time, beside the one that reads memory.
pub trait Sink: Send {
    /// Puts the pages of a block from `first` on, whole ones. May block.
    ///
    /// # Errors
    /// The sink's own. The transfer ends then.
    fn put(&mut self, block: usize, first: PageIndex, bytes: &[u8]) -> Result<(), SinkError>;

    /// Puts pages of zeros.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn zeros(&mut self, block: usize, pages: PageRange) -> Result<(), SinkError>;

    /// Ends a round: all pages that it took were put. Not called behind the last pause.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn end_round(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Returns the number of pages in `runs`.
#[must_use]
pub(crate) fn count(runs: &[BlockPages]) -> u64 {
    runs.iter().map(|run| u64::from(run.pages.count)).sum()
}
