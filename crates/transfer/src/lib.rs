//! Moves the memory of running guests, for checkpoints and for migration.
#![forbid(unsafe_code)]

mod chunk;
mod memory;
mod outcome;
mod pace;
mod place;
mod run;
mod stream;

pub use memory::{BlockPages, Changed, Memory, MemoryError, PauseKind, Sink, SinkError};
pub use outcome::{Ending, Epoch, Limits, Outcome, Progress, Round, TransferError};
pub use place::{PlaceError, PlacedBlock, place_blocks};
pub use run::{Request, run};
