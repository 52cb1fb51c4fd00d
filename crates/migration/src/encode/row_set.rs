//! Pages of memory blocks, a word for each row of 64.

use crate::format::{ChunkAt, Geometry};

/// Set of pages: one bit each.
#[derive(Clone, Debug)]
pub(crate) struct RowSet(Vec<Vec<u64>>);

impl RowSet {
    /// Makes an empty set.
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let rows = |pages: &u32| vec![0; pages.div_ceil(crate::format::CHUNK_PAGES) as usize];
        Self(geometry.blocks().iter().map(rows).collect())
    }

    /// Returns the word of a row.
    ///
    /// # Panics
    /// If the row is in no block.
    pub(crate) fn word(&mut self, at: ChunkAt) -> &mut u64 {
        &mut self.0[usize::from(at.block)][at.row as usize]
    }
}
