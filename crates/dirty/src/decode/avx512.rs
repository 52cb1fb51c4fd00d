//! AVX-512 with VBMI2 (Ice Lake and Zen 4 on): the indices of a word by one compression.

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_castsi512_si128, _mm512_cvtepu8_epi32,
    _mm512_extracti32x4_epi32, _mm512_maskz_compress_epi8, _mm512_set_epi32, _mm512_set1_epi32,
    _mm512_store_si512, _mm512_storeu_si512,
};

use super::{AHEAD, Words, few_or_many};
use crate::primitive::prefetch_to_write;

pub(super) fn is_detected() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("popcnt")
}

/// Indices that one vector holds.
const LANES: usize = 16;

/// 0 to 63, a byte each.
const BYTES: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = at as u8;
        at += 1;
    }
    bytes
};

/// # Safety
/// The features are there; and as `Decoder::words` says.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi1,popcnt")]
pub(super) unsafe fn words(words: impl Words, enough: usize, end: *mut u32) -> (usize, usize) {
    // SAFETY: the room is the caller's promise.
    unsafe { few_or_many(words, enough, end, |word, first, end| one(word, first, end)) }
}

/// Writes what the bits of a word are called.
///
/// # Safety
/// The features are there; `end` is writable for 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
unsafe fn one(word: u64, first: u32, end: *mut u32) {
    // SAFETY: 64 bytes are read of 64; what is written lies within the caller's 64.
    unsafe {
        let bytes = std::ptr::read_unaligned(BYTES.as_ptr().cast::<__m512i>());
        let bits = _mm512_maskz_compress_epi8(word, bytes);
        let (first, count) = (_mm512_set1_epi32(first.cast_signed()), word.count_ones() as usize);
        macro_rules! part {
            ($part:literal, $of:expr) => {
                let indices = _mm512_add_epi32(_mm512_cvtepu8_epi32($of), first);
                _mm512_storeu_si512(end.add($part * LANES).cast(), indices);
            };
        }
        part!(0, _mm512_castsi512_si128(bits));
        if count > LANES {
            part!(1, _mm512_extracti32x4_epi32::<1>(bits));
            if count > 2 * LANES {
                part!(2, _mm512_extracti32x4_epi32::<2>(bits));
                part!(3, _mm512_extracti32x4_epi32::<3>(bits));
            }
        }
    }
}

/// # Safety
/// AVX-512F is there; `end` is writable for `count`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn run(first: u32, count: usize, end: *mut u32) {
    let is_aligned = |at: usize| end.wrapping_add(at).addr().is_multiple_of(64);
    let head = (0..LANES).find(|at| is_aligned(*at)).unwrap_or(0).min(count);
    let vectors = (count - head) / LANES;
    let number = |at: usize| first.wrapping_add(at as u32);
    let step = _mm512_set1_epi32(LANES as i32);
    let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let mut numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(number(head).cast_signed()));
    // SAFETY: everything is within the caller's `count`; vectors begin at an aligned address, which
    // a list of 4-byte entries reaches within 16 of them.
    unsafe {
        (0..head).for_each(|at| end.add(at).write(number(at)));
        for vector in 0..vectors {
            let to = end.add(head + vector * LANES);
            prefetch_to_write(to.wrapping_add(AHEAD));
            _mm512_store_si512(to.cast(), numbers);
            numbers = _mm512_add_epi32(numbers, step);
        }
        let tail = head + vectors * LANES;
        (tail..count).for_each(|at| end.add(at).write(number(at)));
    }
}
