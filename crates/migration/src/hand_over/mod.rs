//! The hand-over: which side owns the guest. Pure.
//!
//! ```text
//! source                                         destination
//!   note Moving, pause, send the rest              note Receiving
//!   Prepare                              ->        load
//!                                        <- Ready  note Ready
//!   note Gave
//!   Take                                 ->        note Took, let it run
//!                                        <- Taken
//!   note Gone, end the VMM
//!   Settled                              ->        no note
//!   no note                              <- Forgotten
//! ```
//! Until Gave is noted the guest is the source's, and any failure lets it run on there at once. A destination that has
//! not noted Took cannot have run it. Between the two lie one message and one synced note: if the destination
//! falls silent in there, nobody can know, and an operator decides. Decision 0031 has the whole argument;
//! `tests/hand_over_model.rs` searches all interleavings.

mod actions;
mod destination;
mod source;

pub use actions::{
    CopyMode, DestinationAction, DestinationEvent, DestinationNote, Report, SourceAction,
    SourceEvent, SourceNote,
};
pub use destination::{Destination, DestinationPhase};
pub use source::{Source, SourcePhase};
