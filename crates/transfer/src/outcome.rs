//! Limits, progress, results and errors of a transfer.

use std::path::PathBuf;
use std::time::Duration;

use bindery_vmm::{DeviceState, GuestDescription, PauseTimes, VmmError};

use crate::memory::{Memory, MemoryError, SinkError};

/// Bounds of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest pause that the last one may be expected to take, from stopping to resuming.
    pub pause_max: Duration,
    /// Longest time that reading may be expected to take in a last pause that comes because rounds did not help.
    /// `None` for any.
    pub pause_limit: Option<Duration>,
    /// Most rounds before the last pause, whatever is left then.
    pub rounds_max: u32,
    /// Most memory for pages that are read in the last pause and handed on after it, in bytes. What is more is
    /// handed on in the pause.
    pub buffer_bytes_max: usize,
    /// Speed of reading memory, in bytes a second, as an earlier transfer found it ([`Outcome::bytes_per_second`]).
    pub bytes_per_second: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pause_max: Duration::from_millis(10),
            pause_limit: None,
            rounds_max: 8,
            buffer_bytes_max: 256 << 20,
            bytes_per_second: None,
        }
    }
}

/// State of a transfer that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of the round, from 0; that of the last pause included.
    pub round: u32,
    /// Pages of this round that were handed on.
    pub pages_done: u64,
    /// Pages of this round that are left.
    pub pages_left: u64,
    /// Speed at which this round's pages went through, in bytes a second.
    pub bytes_per_second: u64,
}

/// One round: a short pause, and the pages that were read after it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// Pages that were read.
    pub pages: u64,
    /// Pages that were known to be zero.
    pub zeros: u64,
    /// Times of the pause.
    pub pause: PauseTimes,
    /// Time in which the pages were read and handed on.
    pub copying: Duration,
}

/// Reason for which rounds ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The rest was expected to fit the pause.
    Fits,
    /// The rest became no smaller: the guest writes as fast as its memory is read.
    NotConverging,
    /// All rounds that were allowed were made.
    RoundsSpent,
}

/// A guest that was captured, and the epoch that ends with it.
#[must_use = "dropping it puts the pages back that were taken"]
pub struct Outcome<'m> {
    /// The guest, as its VMM described it before the first round.
    pub description: GuestDescription,
    /// State of its devices.
    pub device_state: DeviceState,
    /// Rounds before the last pause.
    pub rounds: Vec<Round>,
    /// The last pause: its pages, and the time to hand them on. [`PauseTimes::resume`] is zero if the guest was
    /// left paused.
    pub last: Round,
    /// Reason for the last pause.
    pub ending: Ending,
    /// Time in the last pause until the changed pages were known, after device state was saved.
    pub taking: Duration,
    /// Time in the last pause in which pages were read.
    pub reading: Duration,
    /// Pages that were handed on within the last pause, because they did not fit the buffer or the guest was to
    /// stay paused.
    pub handed_on_in_pause: u64,
    /// Speed of reading memory, in bytes a second; none if too little was read to say.
    pub bytes_per_second: Option<u64>,
    /// The epoch. To be committed once what was put is kept for good.
    pub epoch: Epoch<'m>,
}

impl std::fmt::Debug for Outcome<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Outcome");
        shown.field("rounds", &self.rounds).field("last", &self.last).field("ending", &self.ending);
        shown.field("taking", &self.taking).field("reading", &self.reading);
        shown.field("bytes_per_second", &self.bytes_per_second).finish_non_exhaustive()
    }
}

/// Pages that were taken. Dropping it puts them back: they are changed again for the next transfer.
#[must_use = "dropping it puts the pages back that were taken"]
pub struct Epoch<'m> {
    pub(crate) memory: &'m mut dyn Memory,
    is_over: bool,
}

impl<'m> Epoch<'m> {
    pub(crate) const fn begin(memory: &'m mut dyn Memory) -> Self {
        Self { memory, is_over: false }
    }

    /// Ends the epoch: the next one has only what changes from its last pause on.
    pub fn commit(mut self) {
        self.is_over = true;
        self.memory.commit();
    }
}

impl Drop for Epoch<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.memory.put_back();
        }
    }
}

impl std::fmt::Debug for Epoch<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Epoch").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

/// Failure of a transfer. All pages that were taken are put back.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The VMM failed, or memory did in a pause: [`VmmError::Interrupted`] says how the guest is.
    #[error(transparent)]
    Vmm(#[from] VmmError),
    /// Memory failed while the guest ran. It runs on.
    #[error("{0}; the guest runs on")]
    Memory(#[from] MemoryError),
    /// The sink failed while the guest ran. It runs on.
    #[error("{0}; the guest runs on{left}", left = left_behind(.1))]
    Sink(SinkError, Vec<PathBuf>),
    /// The last pause would take longer than [`Limits::pause_limit`].
    #[error(
        "the guest would stand still for about {} ms: {} MiB of its memory would be read in the pause, since they are \
         written faster than they are read, or are not managed (shared, or in a file); the guest runs on. Allow a longer \
         pause, or make it quieter", expected.as_millis(), pages >> 8
    )]
    TooLong {
        /// Time that reading was expected to take.
        expected: Duration,
        /// Pages that were left.
        pages: u64,
    },
    /// Somebody wanted no more of it. The guest runs on.
    #[error("cancelled; the guest runs on")]
    Cancelled,
}

fn left_behind(overlays: &[PathBuf]) -> String {
    if overlays.is_empty() {
        return String::new();
    }
    let paths: Vec<_> = overlays.iter().map(|path| path.display().to_string()).collect();
    format!("; its disks write to new overlays, which must stay: {}", paths.join(", "))
}
