//! From words of the bitmap to page indices, for each instruction set.
//!
//! What was gathered below one word of the first summary is turned into indices together. Where all
//! of it is set, nothing is looked at any more: consecutive numbers are written, and once the list is
//! longer than a cache they are streamed past it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::sync::OnceLock;

use crate::geometry::WORD_BITS;

/// Indices that a decoder may write behind the last one.
pub(crate) const SLACK: usize = WORD_BITS as usize;

/// Entries of a list from which on it is in no cache that its reader will find it in: 4 MiB.
const STREAMED_FROM: usize = 1 << 20;

/// The words that one walk found below one word of the first summary.
pub(crate) struct Gathered {
    words: [u64; WORD_BITS as usize],
    /// Where each word lies among its siblings.
    places: [u8; WORD_BITS as usize],
    len: usize,
    /// The bits that all of them have.
    all: u64,
}

impl Default for Gathered {
    fn default() -> Self {
        Self { words: [0; WORD_BITS as usize], places: [0; WORD_BITS as usize], len: 0, all: !0 }
    }
}

impl Gathered {
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        (self.len, self.all) = (0, !0);
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, place: u32, word: u64) {
        self.words[self.len] = word;
        self.places[self.len] = place as u8;
        self.len += 1;
        self.all &= word;
    }

    /// The words, each with the index of its first page.
    #[inline(always)]
    fn iter(&self, base: u32) -> impl Iterator<Item = (u64, u32)> {
        self.words[..self.len].iter().zip(&self.places[..self.len]).map(move |(word, place)| {
            (*word, base.wrapping_add(u32::from(*place) * WORD_BITS as u32))
        })
    }

    /// The index of each page.
    pub(crate) fn pages(&self, base: u32) -> impl Iterator<Item = u32> {
        self.iter(base).flat_map(|(mut word, first)| {
            std::iter::from_fn(move || {
                let bit = word.checked_ilog2().map(|_| word.trailing_zeros())?;
                word &= word - 1;
                Some(first.wrapping_add(bit))
            })
        })
    }

    /// Whether every page is dirty.
    fn is_full(&self) -> bool {
        self.len == WORD_BITS as usize && self.all == !0
    }
}

/// The decoders of one instruction set.
///
/// Invariant: one that [`active`](Self::active) or [`available`](Self::available) gives was detected
/// on this machine.
pub(crate) struct Decoder {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests say which decoder failed"))]
    name: &'static str,
    is_detected: fn() -> bool,
    /// Writes the indices of the pages and says how many.
    words: unsafe fn(&Gathered, u32, *mut u32) -> usize,
    /// Writes consecutive numbers: the first, how many, and whether past the caches.
    run: unsafe fn(u32, usize, *mut u32, bool),
}

/// The widest first.
static DECODERS: &[&Decoder] = &[
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    &avx512::DECODER,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    &avx2::DECODER,
    &portable::DECODER,
];

impl Decoder {
    /// The widest that this machine has.
    #[inline]
    pub(crate) fn active() -> &'static Self {
        static ACTIVE: OnceLock<&'static Decoder> = OnceLock::new();
        ACTIVE.get_or_init(|| Self::available().next().expect("the portable one always runs"))
    }

    /// All that this machine has, the widest first.
    fn available() -> impl Iterator<Item = &'static Self> {
        DECODERS.iter().copied().filter(|decoder| (decoder.is_detected)())
    }

    /// Writes the indices of what was gathered, of which the first word's would be `base`, and says
    /// how many there are. The list had `len` before.
    ///
    /// # Safety
    /// `end` is writable for as many and [`SLACK`] more.
    #[inline]
    pub(crate) unsafe fn decode(
        &self,
        gathered: &Gathered,
        base: u32,
        end: *mut u32,
        len: usize,
    ) -> usize {
        // SAFETY: the decoder was detected; the room is the caller's promise.
        unsafe {
            if gathered.is_full() {
                let pages = (WORD_BITS * WORD_BITS) as usize;
                (self.run)(base, pages, end, len >= STREAMED_FROM);
                return pages;
            }
            if gathered.len <= 2 {
                return portable::words(gathered, base, end);
            }
            (self.words)(gathered, base, end)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    use super::*;

    fn check(gathered: &Gathered, base: u32) {
        let expected: Vec<u32> = gathered.pages(base).collect();
        for decoder in Decoder::available() {
            for len in [0, STREAMED_FROM] {
                // At every alignment that a list may have.
                for shift in 0..3 {
                    let mut list = vec![7_u32; 4096 + SLACK + shift];
                    // SAFETY: a node has at most 4096 pages.
                    let count =
                        unsafe { decoder.decode(gathered, base, list[shift..].as_mut_ptr(), len) };
                    assert_eq!(list[shift..][..count], expected, "{}", decoder.name);
                    assert!(list[..shift].iter().all(|page| *page == 7));
                }
            }
        }
    }

    #[test]
    fn decoders_agree_at_every_density() {
        let mut random = SmallRng::seed_from_u64(1);
        for density in [0.0, 0.01, 0.05, 0.2, 0.5, 0.9, 1.0] {
            for words in [1, 2, 3, 17, 63, 64] {
                let mut gathered = Gathered::default();
                for place in 0..words {
                    let word =
                        (0..64).map(|bit| u64::from(random.random_bool(density)) << bit).sum();
                    gathered.push(place, word);
                }
                check(&gathered, 4096 * 3);
                check(&gathered, 1_u32.wrapping_neg());
            }
        }
    }
}
