//! One block of a table: entries in the order of their keys, found by bisection.
//!
//! ```text
//! count u16 | offset u16 × count | entries: key_bytes u16, value_bytes u16, key, value
//! ```
//! Integers are little-endian, offsets count from the block's first byte. A value of
//! [`DELETED`] bytes is a tombstone.

use std::cmp::Ordering;

/// A page: what one fault brings in.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The length that stands for "there is no such key any more".
const DELETED: u16 = u16::MAX;

const COUNT_BYTES: usize = 2;
const OFFSET_BYTES: usize = 2;
const HEADER_BYTES: usize = 4;

/// The longest key and value together: an entry has to fit a block.
pub const ENTRY_BYTES_MAX: usize = BLOCK_BYTES - COUNT_BYTES - OFFSET_BYTES - HEADER_BYTES;

/// What an entry takes of a block.
pub(crate) fn entry_bytes(key: &[u8], value: Value<'_>) -> usize {
    OFFSET_BYTES + HEADER_BYTES + key.len() + value.map_or(0, <[u8]>::len)
}

/// The most blocks for entries that take so much together: what does not fit a block any more begins
/// the next, so that of any two the contents do not fit one.
pub(crate) const fn blocks_max(entries_bytes: usize) -> usize {
    2 * entries_bytes.div_ceil(BLOCK_BYTES - COUNT_BYTES) + 1
}

/// An entry, or the mark that it was deleted.
pub(crate) type Value<'a> = Option<&'a [u8]>;

/// Fills blocks.
#[derive(Default)]
pub(crate) struct BlockBuilder {
    offsets: Vec<u16>,
    entries: Vec<u8>,
}

impl BlockBuilder {
    pub(crate) fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Whether another entry fits.
    pub(crate) fn has_room_for(&self, key: &[u8], value: Value<'_>) -> bool {
        let entry_bytes = HEADER_BYTES + key.len() + value.map_or(0, <[u8]>::len);
        COUNT_BYTES + (self.offsets.len() + 1) * OFFSET_BYTES + self.entries.len() + entry_bytes
            <= BLOCK_BYTES
    }

    /// Adds an entry whose key is above all before it.
    pub(crate) fn push(&mut self, key: &[u8], value: Value<'_>) {
        debug_assert!(self.has_room_for(key, value), "the caller asks first");
        self.offsets.push(self.entries.len() as u16);
        let value_bytes = value.map_or(DELETED, |value| value.len() as u16);
        self.entries.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.entries.extend_from_slice(&value_bytes.to_le_bytes());
        self.entries.extend_from_slice(key);
        self.entries.extend_from_slice(value.unwrap_or_default());
    }

    /// Appends the block to `blocks`, and begins the next.
    pub(crate) fn finish(&mut self, blocks: &mut Vec<u8>) {
        let end = blocks.len() + BLOCK_BYTES;
        let entries_at = COUNT_BYTES + self.offsets.len() * OFFSET_BYTES;
        blocks.extend_from_slice(&(self.offsets.len() as u16).to_le_bytes());
        for offset in self.offsets.drain(..) {
            blocks.extend_from_slice(&(offset + entries_at as u16).to_le_bytes());
        }
        blocks.append(&mut self.entries);
        blocks.resize(end, 0);
    }
}

/// A block as it is stored. The pool vouches for its bytes; still nothing here panics on any.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a>(pub(crate) &'a [u8]);

impl<'a> Block<'a> {
    fn u16_at(self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.0.get(at..at + 2)?.try_into().ok()?))
    }

    fn count(self) -> usize {
        self.u16_at(0).unwrap_or(0).into()
    }

    fn entry(self, at: usize) -> Option<(&'a [u8], Value<'a>)> {
        let start = usize::from(self.u16_at(COUNT_BYTES + at * OFFSET_BYTES)?);
        let key_bytes = usize::from(self.u16_at(start)?);
        let value_bytes = self.u16_at(start + 2)?;
        let rest = self.0.get(start + HEADER_BYTES..)?;
        let (key, rest) = rest.split_at_checked(key_bytes)?;
        match value_bytes {
            DELETED => Some((key, None)),
            bytes => Some((key, Some(rest.get(..bytes.into())?))),
        }
    }

    /// What the block says of a key, if it says anything.
    pub(crate) fn find(self, key: &[u8]) -> Option<Value<'a>> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            let (found, value) = self.entry(middle)?;
            match found.cmp(key) {
                Ordering::Equal => return Some(value),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// All entries, in order.
    pub(crate) fn entries(self) -> impl Iterator<Item = (&'a [u8], Value<'a>)> {
        (0..self.count()).map_while(move |at| self.entry(at))
    }
}
