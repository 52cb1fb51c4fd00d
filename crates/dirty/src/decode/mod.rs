//! From words to lists of what their bits are called, for each instruction set: page indices for the
//! bitmap, words of the level below for a summary.
//!
//! Where the bits are is not known beforehand, so that a branch on each of them is mispredicted all the
//! time: decoders write more numbers than there are bits, and go on behind those that count. Where
//! all pages are dirty, nothing is looked at any more: consecutive numbers are written, as fast as the
//! caches take them.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx512;
mod portable;

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use crate::geometry::WORD_BITS;

/// Most numbers of a list of words.
pub(crate) const LIST: usize = 192;

/// How many numbers ahead of what is written its cache line is asked for: 16 KiB. No processor fetches lines
/// that are only written as far ahead by itself, and streaming past the caches is slower than this (1.1 ms
/// against 0.85 for 40 MB on a Zen 5) and much slower where the list would fit into them (20 µs against 2).
#[cfg(all(target_arch = "x86_64", not(miri)))]
const AHEAD: usize = 4096;

/// Words that are to be listed, in order. Given by value, so that what they consist of stays in
/// registers while a list is written.
pub(crate) trait Words: Copy {
    /// How many there are.
    fn len(&self) -> usize;

    /// What the lowest bit of a word is called.
    fn first(&self, at: usize) -> u32;

    /// The bits of a word. Asked for once a word, in order.
    fn bits(&self, at: usize) -> u64;
}

/// Bits that are looked for whether they are there or not, one after the other: in sparse words, a
/// vector's store takes longer, and whoever reads a list that vectors wrote waits for it to be written.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const FEW: usize = 4;

/// Bits beyond so few a word from which on words are not sparse any more.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const TOO_MANY: usize = 32;

/// Writes what the bits of words are called, as [`Decoder::words`] does: by `many` where a word has more
/// than a few, and every word once words prove dense. Inlined into functions that have instructions
/// which `many` and the counting of bits need.
///
/// # Safety
/// As for [`Decoder::words`]; `many` writes within the 64 numbers from where a word's first one goes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn few_or_many(
    words: impl Words,
    enough: usize,
    end: *mut u32,
    many: impl Fn(u64, u32, *mut u32),
) -> (usize, usize) {
    let (mut gone_through, mut len) = (0, 0);
    // SAFETY: what is written lies within the 64 numbers from where a word's first one goes.
    unsafe {
        while gone_through < words.len() && len < enough {
            let (word, first) = (words.bits(gone_through), words.first(gone_through));
            gone_through += 1;
            let (end, count) = (end.add(len), word.count_ones() as usize);
            len += count;
            if count <= FEW {
                let mut rest = word;
                for at in 0..FEW {
                    end.add(at).write(first.wrapping_add(rest.trailing_zeros()));
                    rest &= rest.wrapping_sub(1);
                }
                continue;
            }
            many(word, first, end);
            if len > FEW * gone_through + TOO_MANY {
                // Whether a word has few bits would be guessed wrong from here on.
                break;
            }
        }
        while gone_through < words.len() && len < enough {
            let (word, first) = (words.bits(gone_through), words.first(gone_through));
            gone_through += 1;
            many(word, first, end.add(len));
            len += word.count_ones() as usize;
        }
    }
    (gone_through, len)
}

/// The decoders of one instruction set.
///
/// Invariant: one that [`active`](Self::active) or [`available`](Self::available) gives was detected
/// on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoder {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2,
    Portable,
}

impl Decoder {
    /// The widest first.
    const ALL: &[Self] = &[
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Avx512,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Avx2,
        Self::Portable,
    ];

    /// The widest that this machine has.
    #[inline]
    pub(crate) fn active() -> Self {
        static ACTIVE: OnceLock<Decoder> = OnceLock::new();
        *ACTIVE.get_or_init(|| Self::available().next().expect("the portable one always runs"))
    }

    /// All that this machine has, the widest first.
    fn available() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|decoder| match decoder {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx512 => avx512::is_detected(),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Avx2 => avx2::is_detected(),
            Self::Portable => true,
        })
    }

    /// Lists what the bits are called until that are `enough`, which leave room for a word. Gives how
    /// many words it went through, and the list.
    #[inline]
    pub(crate) fn list(
        self,
        words: impl Words,
        enough: usize,
        list: &mut [MaybeUninit<u32>; LIST],
    ) -> (usize, &[u32]) {
        assert!(enough <= LIST - WORD_BITS as usize, "{enough} and a word are too many for a list");
        // SAFETY: where it begins a word, there are fewer than `enough`, and so is room for 64. It
        // wrote as many as it says.
        unsafe {
            let (words, count) = self.words(words, enough, list.as_mut_ptr().cast());
            (words, list[..count].assume_init_ref())
        }
    }

    /// Writes the indices of pages and says how many there are.
    ///
    /// # Safety
    /// `end` is writable for all pages of all words, whether they are dirty or not.
    #[inline]
    pub(crate) unsafe fn list_pages(self, words: impl Words, end: *mut u32) -> usize {
        // SAFETY: the room is the caller's promise.
        unsafe { self.words(words, usize::MAX, end).1 }
    }

    /// Writes what the bits are called, word by word, until that are so many or more. Says how many
    /// words were gone through, and how many numbers were written.
    ///
    /// # Safety
    /// Wherever a word begins there is room for 64 numbers: behind the last number it writes what it
    /// likes within that.
    #[inline]
    unsafe fn words(self, words: impl Words, enough: usize, end: *mut u32) -> (usize, usize) {
        // SAFETY: this decoder was detected; the room is the caller's promise.
        unsafe {
            match self {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Self::Avx512 => avx512::words(words, enough, end),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Self::Avx2 => avx2::words(words, enough, end),
                Self::Portable => portable::words(words, enough, end),
            }
        }
    }

    /// Writes `count` consecutive numbers.
    ///
    /// # Safety
    /// `end` is writable for `count`.
    pub(crate) unsafe fn run(self, first: u32, count: usize, end: *mut u32) {
        // SAFETY: this decoder was detected; the room is the caller's promise.
        unsafe {
            match self {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Self::Avx512 => avx512::run(first, count, end),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Self::Avx2 => avx2::run(first, count, end),
                Self::Portable => portable::run(first, count, end),
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    use super::*;

    #[derive(Clone, Copy)]
    struct Some<'w> {
        bits: &'w [u64],
        firsts: &'w [u32],
    }

    impl Words for Some<'_> {
        fn len(&self) -> usize {
            self.bits.len()
        }

        fn first(&self, at: usize) -> u32 {
            self.firsts[at]
        }

        fn bits(&self, at: usize) -> u64 {
            self.bits[at]
        }
    }

    fn expected(words: Some<'_>) -> Vec<u32> {
        let bits_of = |(bits, first): (&u64, &u32)| {
            let (bits, first) = (*bits, *first);
            let is_set = move |bit: &u32| bits >> bit & 1 == 1;
            (0..64).filter(is_set).map(move |bit| first.wrapping_add(bit))
        };
        words.bits.iter().zip(words.firsts).flat_map(bits_of).collect()
    }

    /// Nothing beyond the room of a list of pages is touched.
    fn check_pages(words: Some<'_>, decoder: Decoder) {
        let end = words.bits.len() * 64;
        let mut list = vec![7_u32; end + 16];
        // SAFETY: there is room for each word.
        let count = unsafe { decoder.list_pages(words, list.as_mut_ptr()) };
        assert_eq!(list[..count], expected(words), "{decoder:?}");
        assert!(list[end..].iter().all(|page| *page == 7));
    }

    /// Lists of words, piece by piece.
    fn check_words(words: Some<'_>, decoder: Decoder) {
        for enough in [1, 16, LIST - 64] {
            let (mut done, mut found) = (0, Vec::new());
            while done < words.bits.len() {
                let rest = Some { bits: &words.bits[done..], firsts: &words.firsts[done..] };
                let mut list = [const { MaybeUninit::uninit() }; LIST];
                let (gone_through, list) = decoder.list(rest, enough, &mut list);
                let is_enough = list.len() >= enough || gone_through == rest.bits.len();
                assert!(is_enough, "{decoder:?}");
                found.extend_from_slice(list);
                done += gone_through;
            }
            assert_eq!(found, expected(words), "{decoder:?}");
        }
    }

    #[test]
    fn decoders_agree_at_every_density() {
        let mut random = SmallRng::seed_from_u64(1);
        for density in [0.0, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9, 1.0] {
            for count in [1, 2, 3, 17, 63, 64, LIST] {
                let mut word =
                    || (0..64).map(|bit| u64::from(random.random_bool(density)) << bit).sum();
                let bits: Vec<u64> = (0..count).map(|_| word()).collect();
                let firsts: Vec<u32> =
                    (0..count as u32).map(|at| (at * 64 + at / 6 * 640).wrapping_sub(65)).collect();
                for decoder in Decoder::available() {
                    check_pages(Some { bits: &bits, firsts: &firsts }, decoder);
                    check_words(Some { bits: &bits, firsts: &firsts }, decoder);
                }
            }
        }
    }

    /// Words that went through vectors, of those given.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn by_many(bits: &[u64]) -> Vec<usize> {
        let firsts: Vec<u32> = (0..bits.len() as u32).map(|at| at * 64).collect();
        let mut list = vec![0_u32; bits.len() * 64];
        let by_many = std::cell::RefCell::new(Vec::new());
        let many = |_: u64, first: u32, _: *mut u32| by_many.borrow_mut().push(first as usize / 64);
        // SAFETY: there is room for each word, and `many` writes nothing.
        unsafe {
            few_or_many(Some { bits, firsts: &firsts }, usize::MAX, list.as_mut_ptr(), many);
        }
        by_many.into_inner()
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn vectors_are_for_words_that_are_not_sparse() {
        assert_eq!(by_many(&[0b1111; 100]), Vec::<usize>::new());
        // One that is full by itself, and the sparse ones around it.
        assert_eq!(by_many(&[1, 1, 0x1_ffff, 1, 1]), [2]);
        // Dense, with sparse words among them: from the second dense one on all are alike.
        let dense: Vec<u64> = (0..20).map(|at| if at % 3 == 0 { !0 } else { 1 }).collect();
        assert_eq!(by_many(&dense), [0].into_iter().chain(1..20).collect::<Vec<_>>());
        assert_eq!(by_many(&[0b11111; 2]), [0, 1]);
    }

    #[test]
    fn runs_are_written_at_any_alignment() {
        for decoder in Decoder::available() {
            for (shift, count) in (0..17).flat_map(|shift| [1, 64, 4096].map(|n| (shift, n))) {
                let first = 100_u32.wrapping_neg();
                let mut list = vec![7_u32; shift + count + 16];
                // SAFETY: there is room for so many.
                unsafe { decoder.run(first, count, list[shift..].as_mut_ptr()) };
                let expected = (0..count as u32).map(|at| first.wrapping_add(at));
                assert!(list[shift..][..count].iter().copied().eq(expected), "{decoder:?}");
                let (before, after) = (&list[..shift], &list[shift + count..]);
                assert!(before.iter().chain(after).all(|page| *page == 7), "{decoder:?}");
            }
        }
    }
}
