//! The index of a table, an object of its own: small, and pinned where its table is only warm.
//!
//! ```text
//! blocks u32 | filter_bytes u32 | filter | fence offset u32 × (blocks + 1) | first keys of the blocks
//! ```

use std::cmp::Ordering;

use bindery_sys::mapped::View;

use crate::filter;

const HEADER_BYTES: usize = 8;

/// Longer fences are compared on the heap.
const KEY_BYTES_ON_STACK: usize = 64;

/// Collects what the index of a table needs while the table is written.
#[derive(Default)]
pub(crate) struct IndexBuilder {
    fences: Vec<u8>,
    fence_offsets: Vec<u32>,
    keys: Vec<u8>,
    key_ends: Vec<usize>,
}

impl IndexBuilder {
    /// A block begins with this key.
    pub(crate) fn begin_block(&mut self, first_key: &[u8]) {
        self.fence_offsets.push(self.fences.len() as u32);
        self.fences.extend_from_slice(first_key);
    }

    /// The table has this key.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.keys.extend_from_slice(key);
        self.key_ends.push(self.keys.len());
    }

    /// The index's bytes.
    pub(crate) fn finish(self) -> Vec<u8> {
        let starts = std::iter::once(&0).chain(&self.key_ends);
        let keys: Vec<&[u8]> =
            starts.zip(&self.key_ends).map(|(&start, &end)| &self.keys[start..end]).collect();
        let filter = filter::build(keys.into_iter());
        let mut index = Vec::new();
        index.extend_from_slice(&(self.fence_offsets.len() as u32).to_le_bytes());
        index.extend_from_slice(&(filter.len() as u32).to_le_bytes());
        index.extend_from_slice(&filter);
        for offset in self.fence_offsets.iter().chain([&(self.fences.len() as u32)]) {
            index.extend_from_slice(&offset.to_le_bytes());
        }
        index.extend_from_slice(&self.fences);
        index
    }
}

/// An index as it is stored, looked at where it is mapped: a search touches a dozen of its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Index<'a> {
    filter: View<'a>,
    offsets: View<'a>,
    fences: View<'a>,
    blocks: usize,
}

fn number(view: View<'_>, at: usize) -> usize {
    let mut bytes = [0; 4];
    view.part(at * 4, 4).copy_to(&mut bytes);
    u32::from_le_bytes(bytes) as usize
}

/// A view in two; none if it is shorter than that.
fn split(view: View<'_>, at: usize) -> Option<(View<'_>, View<'_>)> {
    let rest = view.len().checked_sub(at)?;
    Some((view.part(0, at), view.part(at, rest)))
}

impl<'a> Index<'a> {
    /// Takes an index apart; none if it is none.
    pub(crate) fn parse(index: View<'a>) -> Option<Self> {
        let (header, rest) = split(index, HEADER_BYTES)?;
        let (blocks, filter_bytes) = (number(header, 0), number(header, 1));
        let (filter, rest) = split(rest, filter_bytes)?;
        let (offsets, fences) = split(rest, (blocks + 1).checked_mul(4)?)?;
        Some(Self { filter, offsets, fences, blocks })
    }

    /// The block that has `key`, if the table may have it.
    pub(crate) fn block_of(self, key: &[u8]) -> Option<usize> {
        if !filter::may_have(self.filter.len(), |at| self.filter.byte(at), key) {
            return None;
        }
        let (mut low, mut high) = (0, self.blocks);
        while low < high {
            let middle = low.midpoint(high);
            match self.compare_fence(middle, key)? {
                Ordering::Greater => high = middle,
                _ => low = middle + 1,
            }
        }
        low.checked_sub(1)
    }

    /// How the first key of a block compares with `key`; none if the index is not whole.
    fn compare_fence(self, block: usize, key: &[u8]) -> Option<Ordering> {
        let (start, end) = (number(self.offsets, block), number(self.offsets, block + 1));
        let bytes = end.checked_sub(start)?;
        if end > self.fences.len() {
            return None;
        }
        let fence = self.fences.part(start, bytes);
        let mut on_stack = [0; KEY_BYTES_ON_STACK];
        Some(match on_stack.get_mut(..bytes) {
            Some(copy) => {
                fence.copy_to(copy);
                (*copy).cmp(key)
            }
            None => fence.to_vec().as_slice().cmp(key),
        })
    }
}
