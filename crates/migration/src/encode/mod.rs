//! The sending side of the stream.

mod compressor;
mod encoder;
mod lane;
mod outlet;
mod outstanding;
mod row_set;
mod staged;
mod tally;
mod versions;

pub use encoder::{Answers, EncodeOptions, Encoder};
pub use outlet::Outlet;
pub use outstanding::{Outstanding, send_damaged, send_post_copy};
pub use tally::SendTally;
