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

    /// All entries, in order; none if it is no block. They lie one behind the other: a block that has
    /// the same bytes in many entries would be any length in memory.
    pub(crate) fn entries(self) -> Option<Vec<(&'a [u8], Value<'a>)>> {
        let mut free_at = COUNT_BYTES + self.count() * OFFSET_BYTES;
        let mut next = |at: usize| {
            let start = usize::from(self.u16_at(COUNT_BYTES + at * OFFSET_BYTES)?);
            let (key, value) = self.entry(at).filter(|_| start >= free_at)?;
            free_at = start + HEADER_BYTES + key.len() + value.map_or(0, <[u8]>::len);
            Some((key, value))
        };
        (0..self.count()).map(&mut next).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(entries: &[(&[u8], Value<'_>)]) -> Vec<u8> {
        let (mut builder, mut blocks) = (BlockBuilder::default(), Vec::new());
        for (key, value) in entries {
            assert!(builder.has_room_for(key, *value));
            builder.push(key, *value);
        }
        builder.finish(&mut blocks);
        blocks
    }

    #[test]
    fn what_was_pushed_is_there() {
        let entries: [(&[u8], Value<'_>); 3] =
            [(b"", Some(b"of nothing")), (b"a", None), (b"b", Some(b""))];
        assert_eq!(Block(&block(&entries)).entries().unwrap(), entries);
        let longest = [7; ENTRY_BYTES_MAX];
        assert_eq!(Block(&block(&[(b"", Some(&longest))])).entries().unwrap().len(), 1);
    }

    #[test]
    fn bytes_that_are_in_two_entries_are_no_block() {
        let mut bytes = block(&[(b"a", Some(&[1; 100])), (b"b", Some(&[2; 100]))]);
        bytes.copy_within(2..4, 4);
        assert_eq!(Block(&bytes).entries(), None);
        // An entry that begins in the offsets would be longer than any that was put.
        bytes[..6].copy_from_slice(&[1, 0, 0, 0, 0, 0]);
        assert_eq!(Block(&bytes).entries(), None);
    }

    proptest! {
        #[test]
        fn no_block_has_more_than_its_bytes(
            numbers in prop::collection::vec(prop_oneof![0..64_u16, any::<u16>()], 0..40),
        ) {
            let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u16::to_le_bytes).collect();
            bytes.resize(BLOCK_BYTES, 0);
            let Some(entries) = Block(&bytes).entries() else { return Ok(()) };
            let taken: usize = entries.iter().map(|(key, value)| entry_bytes(key, *value)).sum();
            prop_assert!(COUNT_BYTES + taken <= BLOCK_BYTES);
            entries.iter().for_each(|(key, _)| _ = Block(&bytes).find(key));
        }
    }
}
