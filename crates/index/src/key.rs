//! What the tree knows of its keys.
//!
//! A key is a string of bits: a *head* of 64 that is stored in the leaf, then a *tail* that is
//! stored nowhere and asked for when heads are equal. Bit 0 is the head's most significant bit, so
//! that the order of keys is the order of big-endian words.
//!
//! The merge engine uses [`Heads`]: 64 bits of a keyed digest and no tail, because it compares
//! pages byte for byte under protection anyway. A tree over the content itself implements [`Keys`]
//! with any function of the content as the head (the first word, in PageONE's case) and the 4096
//! bytes as the tail.

/// Bits of the head.
pub const HEAD_BITS: u32 = u64::BITS;

/// Most bits that a tail may have: 4 KiB fit, 8 KiB do not.
pub const TAIL_BITS_MAX: u32 = u16::MAX as u32 - HEAD_BITS;

/// Gives the tree the bits of the keys that it searches for and of those that it holds.
///
/// The bits of a stored key must not change while it is in the index, nor until every guard that
/// was pinned when it was deleted has been dropped. An implementation that breaks this gets wrong
/// answers (a key not found, or found twice), never undefined behaviour.
pub trait Keys: Send + Sync {
    /// A key to search for.
    type Key: ?Sized;

    /// The first 64 bits of `key`. Called once an operation.
    fn head(&self, key: &Self::Key) -> u64;

    /// Word `index` of the tail of `key`, big-endian: its first bit is the most significant one.
    fn tail_word(&self, key: &Self::Key, index: u32) -> u64;

    /// Word `index` of the tail of the stored key whose value is `value`.
    fn stored_tail_word(&self, value: u64, index: u32) -> u64;

    /// The first bit, counted from the start of the tail, at which `key` differs from the stored
    /// key whose value is `value`; `None` if the tails are equal. Only asked when heads are equal.
    fn tail_difference(&self, key: &Self::Key, value: u64) -> Option<u32>;
}

/// Keys of 64 bits that have no tail.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heads;

impl Keys for Heads {
    type Key = u64;

    fn head(&self, key: &u64) -> u64 {
        *key
    }

    fn tail_word(&self, _key: &u64, index: u32) -> u64 {
        unreachable!("no two heads differ in a tail, but word {index} of one was asked for")
    }

    fn stored_tail_word(&self, _value: u64, index: u32) -> u64 {
        unreachable!("no two heads differ in a tail, but word {index} of one was asked for")
    }

    fn tail_difference(&self, _key: &u64, _value: u64) -> Option<u32> {
        None
    }
}

/// The bits of one key, searched for or stored: what a descent asks.
pub(crate) trait Bits {
    fn head(&self) -> u64;
    fn tail_word(&self, index: u32) -> u64;

    #[inline]
    fn bit(&self, position: u32) -> bool {
        let word = match position.checked_sub(HEAD_BITS) {
            None => self.head(),
            Some(tail_position) => self.tail_word(tail_position / u64::BITS),
        };
        word << (position % u64::BITS) >> (u64::BITS - 1) != 0
    }
}

/// A key that is searched for, with its head computed once.
pub(crate) struct Searched<'a, K: Keys> {
    pub(crate) keys: &'a K,
    pub(crate) key: &'a K::Key,
    pub(crate) head: u64,
}

impl<K: Keys> Bits for Searched<'_, K> {
    #[inline]
    fn head(&self) -> u64 {
        self.head
    }

    fn tail_word(&self, index: u32) -> u64 {
        self.keys.tail_word(self.key, index)
    }
}

/// A key that is, or was, in the tree.
pub(crate) struct Stored<'a, K: Keys> {
    pub(crate) keys: &'a K,
    pub(crate) head: u64,
    pub(crate) value: u64,
}

impl<K: Keys> Bits for Stored<'_, K> {
    #[inline]
    fn head(&self) -> u64 {
        self.head
    }

    fn tail_word(&self, index: u32) -> u64 {
        self.keys.stored_tail_word(self.value, index)
    }
}

/// The first bit at which two strings of bytes of equal length differ; `None` if they are equal.
///
/// For [`Keys::tail_difference`]. Compares blocks, and looks for the bit in the first that differs.
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<u32> {
    // Blocks this long are compared by the platform's memcmp at full vector width.
    const BLOCK: usize = 256;
    assert_eq!(one.len(), other.len(), "only strings of equal length are compared");
    let block = one.chunks(BLOCK).zip(other.chunks(BLOCK)).position(|(a, b)| a != b)?;
    let start = block * BLOCK;
    let tails = one[start..].iter().zip(&other[start..]);
    let (offset, differing) =
        tails.map(|(a, b)| a ^ b).enumerate().find(|(_, differing)| *differing != 0)?;
    Some((start + offset) as u32 * u8::BITS + differing.leading_zeros())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found_at_every_bit() {
        const BYTES: usize = if cfg!(miri) { 270 } else { 600 };
        let zero = [0_u8; BYTES];
        assert_eq!(first_difference(&zero, &zero), None);
        for bit in (0..BYTES as u32 * 8).step_by(if cfg!(miri) { 37 } else { 1 }) {
            let mut other = zero;
            other[bit as usize / 8] = 0x80 >> (bit % 8);
            // What follows the first difference does not count.
            other[bit as usize / 8 + 1..].fill(0xff);
            assert_eq!(first_difference(&zero, &other), Some(bit));
        }
    }

    #[test]
    fn bits_are_numbered_from_the_most_significant() {
        let bits = Stored { keys: &Heads, head: 1 << 63 | 1, value: 0 };
        let set: Vec<u32> = (0..HEAD_BITS).filter(|position| bits.bit(*position)).collect();
        assert_eq!(set, [0, 63]);
    }
}
