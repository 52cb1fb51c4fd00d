//! Pages of one row that wait for others of it.

use super::lane::{Page, put_delta};
use crate::format::ChunkAt;

/// Pages and deltas of one row, gathered in the order of the pages.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) at: ChunkAt,
    pub(crate) page_bits: u64,
    pub(crate) pages: Vec<u8>,
    pub(crate) delta_bits: u64,
    pub(crate) deltas: Vec<u8>,
}

impl Default for Staged {
    fn default() -> Self {
        let at = ChunkAt { block: 0, row: 0 };
        Self { at, page_bits: 0, pages: Vec::new(), delta_bits: 0, deltas: Vec::new() }
    }
}

impl Staged {
    /// Returns true if it cannot take any of these pages: it has one of them, or one behind them.
    pub(crate) const fn has(&self, bits: u64) -> bool {
        let taken = self.page_bits | self.delta_bits;
        taken != 0 && bits.trailing_zeros() < 64 - taken.leading_zeros()
    }

    /// Adds the delta of a page. Returns its length, 0 if nothing changed; `None` if it would be too long.
    pub(crate) fn stage_delta(&mut self, bit: u32, before: &Page, now: &Page) -> Option<usize> {
        let length = put_delta(before, now, &mut self.deltas)?;
        self.delta_bits |= if length > 0 { 1 << bit } else { 0 };
        Some(length)
    }

    /// Adds a page.
    pub(crate) fn stage_page(&mut self, bit: u32, page: &Page) {
        self.pages.extend_from_slice(page);
        self.page_bits |= 1 << bit;
    }

    /// Returns its buffers, empty.
    pub(crate) fn emptied(mut self) -> Self {
        self.pages.clear();
        self.deltas.clear();
        Self { page_bits: 0, delta_bits: 0, ..self }
    }
}
