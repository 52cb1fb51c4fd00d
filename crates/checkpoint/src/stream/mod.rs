//! Checkpoints as one stream, for another host.
//!
//! A stream carries one checkpoint and nothing else of its domain: the description, then its pages,
//! compressed, then an end that says how many there were. It needs nothing of the pool that it came from.

mod chunk;
mod export;
mod import;
mod seen_pages;

pub use chunk::{ChunkHead, ChunkKind, StreamHead};
pub use export::{ExportOptions, Exported};
pub use import::ImportOptions;

pub(crate) use chunk::CHUNK_PAGES;
pub(crate) use export::StreamWriter;
pub(crate) use import::StreamReader;
