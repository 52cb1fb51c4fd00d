//! Sizes of a guest's memory blocks, by which pages of frames are bounded.

use bindery_units::PAGE_BYTES;

use super::error::FormatError;

/// Number of pages that a chunk can have.
pub const CHUNK_PAGES: u32 = 64;

/// Pages of one aligned row of [`CHUNK_PAGES`] pages of a memory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkAt {
    /// Index of the memory block.
    pub block: u16,
    /// Number of the row: its first page is 64 times this.
    pub row: u32,
}

impl ChunkAt {
    /// Returns the first page of the row.
    #[must_use]
    pub const fn first(self) -> u32 {
        self.row * CHUNK_PAGES
    }

    /// Returns the stream that carries all pages of this row, of so many streams.
    #[must_use]
    pub const fn stream(self, streams: usize) -> usize {
        (self.row as usize).wrapping_add(self.block as usize) % streams
    }
}

/// Number of pages of each memory block, in the order of the offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Geometry(Vec<u32>);

impl Geometry {
    /// Makes one of the numbers of pages.
    #[must_use]
    pub const fn new(pages: Vec<u32>) -> Self {
        Self(pages)
    }

    /// Returns the number of pages of each block.
    #[must_use]
    pub fn blocks(&self) -> &[u32] {
        &self.0
    }

    /// Returns the length of all blocks, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|pages| u64::from(*pages) * PAGE_BYTES as u64).sum()
    }

    /// Returns the pages of a block.
    pub(crate) fn pages_of(&self, block: u16) -> Result<u32, FormatError> {
        let pages = self.0.get(usize::from(block)).copied();
        pages.ok_or(FormatError::impossible("frame", "its memory block does not exist"))
    }

    /// Refuses a chunk with pages that the block does not have.
    pub(crate) fn check(&self, at: ChunkAt, pages: u64) -> Result<(), FormatError> {
        let has = self.pages_of(at.block)?;
        let end =
            u64::from(at.row) * u64::from(CHUNK_PAGES) + u64::from(64 - pages.leading_zeros());
        if end > u64::from(has) {
            return Err(FormatError::impossible("chunk", "its pages go beyond the memory block"));
        }
        Ok(())
    }
}
