//! Packs: immutable objects that hold pages.
//!
//! A pack is a head, groups of pages, a table of the groups, the digests of the pages, and a last block
//! that says where those are. Pages of a pack are numbered in the order in which they were put. A group is
//! one page as it is, aligned to a page so that it can be mapped; or up to 16 pages that are
//! compressed together.

mod group;
mod reader;
mod tail;
mod writer;

pub use group::PageEncoding;

pub(crate) use group::{GROUP_PAGES, GroupCompressor, decompress};
pub(crate) use reader::PackReader;
pub(crate) use writer::PackWriter;

#[cfg(test)]
mod tests;
