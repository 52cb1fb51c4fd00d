//! Checkpoints as one stream, for another host.
//!
//! A stream carries one checkpoint and nothing else of its domain: the description, then its pages,
//! compressed, then an end that says how many there were. It needs nothing of the pool that it came from.

mod chunk;
mod export;
mod import;
mod seen_pages;
mod writer;

pub use chunk::{ChunkHead, ChunkKind, StreamHead};
pub use export::ExportOptions;
pub use import::ImportOptions;
pub use writer::{Exported, StreamWriter};

pub(crate) use chunk::CHUNK_PAGES;
pub(crate) use import::StreamReader;
