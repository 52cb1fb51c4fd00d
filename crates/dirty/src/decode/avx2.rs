//! AVX2: the indices of a byte by a table.

use std::arch::x86_64::{
    _mm_cvtsi64_si128, _mm256_add_epi32, _mm256_cvtepu8_epi32, _mm256_set1_epi32,
    _mm256_setr_epi32, _mm256_storeu_si256,
};

use super::{AHEAD, Words, few_or_many};
use crate::primitive::prefetch_to_write;

pub(super) fn is_detected() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("popcnt")
}

/// Indices that one vector holds.
const LANES: usize = 8;

/// Where the bits of a byte are: eight numbers of a byte each, the lowest bit's first.
static PLACES: [u64; 256] = {
    let mut places = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut count) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                places[byte] |= (bit as u64) << (8 * count);
                count += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    places
};

/// # Safety
/// The features are there; and as `Decoder::words` says.
#[target_feature(enable = "avx2,bmi1,popcnt")]
pub(super) unsafe fn words(words: impl Words, enough: usize, end: *mut u32) -> (usize, usize) {
    // SAFETY: the room is the caller's promise.
    unsafe { few_or_many(words, enough, end, |word, first, end| one(word, first, end)) }
}

/// Writes what the bits of a word are called.
///
/// # Safety
/// The features are there; `end` is writable for 64.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
unsafe fn one(word: u64, first: u32, mut end: *mut u32) {
    for (at, byte) in word.to_le_bytes().into_iter().enumerate() {
        let places = _mm_cvtsi64_si128(PLACES[usize::from(byte)].cast_signed());
        let first = _mm256_set1_epi32(first.wrapping_add(at as u32 * 8).cast_signed());
        let indices = _mm256_add_epi32(_mm256_cvtepu8_epi32(places), first);
        // SAFETY: a byte's first number has behind it as many as there are bits left, and so room for
        // a vector within the caller's 64.
        unsafe {
            _mm256_storeu_si256(end.cast(), indices);
            end = end.add(byte.count_ones() as usize);
        }
    }
}

/// # Safety
/// AVX2 is there; `end` is writable for `count`.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn run(first: u32, count: usize, end: *mut u32) {
    let is_aligned = |at: usize| end.wrapping_add(at).addr().is_multiple_of(32);
    let head = (0..LANES).find(|at| is_aligned(*at)).unwrap_or(0).min(count);
    let vectors = (count - head) / LANES;
    let number = |at: usize| first.wrapping_add(at as u32);
    let step = _mm256_set1_epi32(LANES as i32);
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mut numbers = _mm256_add_epi32(lanes, _mm256_set1_epi32(number(head).cast_signed()));
    // SAFETY: everything is within the caller's `count`; vectors begin at an aligned address, which
    // a list of 4-byte entries reaches within 8 of them.
    unsafe {
        (0..head).for_each(|at| end.add(at).write(number(at)));
        for vector in 0..vectors {
            let to = end.add(head + vector * LANES);
            prefetch_to_write(to.wrapping_add(AHEAD));
            _mm256_storeu_si256(to.cast(), numbers);
            numbers = _mm256_add_epi32(numbers, step);
        }
        let tail = head + vectors * LANES;
        (tail..count).for_each(|at| end.add(at).write(number(at)));
    }
}
