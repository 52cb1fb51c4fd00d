//! The sending side of the stream.

mod compressor;
mod encoder;
mod lane;
mod outlet;
mod row_set;
mod staged;
mod tally;
mod versions;

pub use encoder::{Answers, EncodeOptions, Encoder};
pub use outlet::Outlet;
pub use tally::SendTally;
