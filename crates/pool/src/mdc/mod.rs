//! MDCs: metadata that changes, in a pair of mlogs of which one counts.
//!
//! Records are appended to the log that counts. When much of it is out of date, the client writes what
//! still holds into the other one ([`Mdc::compact`]): behind a record that begins a compaction (CSTART,
//! with its number), and before one that ends it (CEND). Once the latter is durable that log counts,
//! and the old one is erased. Whatever a crash interrupts, the log with the highest number of those
//! that have both counts, and it is complete.

mod error;
mod half;
mod reader;
mod writer;

pub use error::MdcError;
pub use half::Half;
pub use reader::MdcReader;
pub use writer::{Compaction, Mdc, MdcRecords};
