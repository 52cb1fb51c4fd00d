//! Moves the memory of running guests, for checkpoints and for migration.
#![forbid(unsafe_code)]

mod chunk;
mod guest_memory;
mod lanes;
mod memory;
mod outcome;
mod pace;
mod pieces;
mod place;
mod process;
mod run;
mod stream;
mod tracker;

pub use guest_memory::{GuestMemory, LANES};
pub use memory::{BlockPages, Changed, Memory, MemoryError, PauseKind, Sink, SinkError};
pub use outcome::{Ending, Epoch, Limits, Outcome, Progress, Round, TransferError};
pub use place::{PlaceError, PlacedBlock, place_blocks};
pub use run::{Request, run};
pub use tracker::Tracker;
