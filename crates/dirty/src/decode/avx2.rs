//! AVX2: the indices of a byte by a table.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi64_si128, _mm_sfence, _mm256_add_epi32, _mm256_cvtepu8_epi32,
    _mm256_set1_epi32, _mm256_setr_epi32, _mm256_storeu_si256, _mm256_stream_si256,
};

use super::{Decoder, Gathered};

pub(super) static DECODER: Decoder = Decoder {
    name: "avx2",
    is_detected: || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt"),
    words,
    run,
};

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

/// Words with fewer bits are gone through one by one: eight tables take as long as so many bits.
const FEW: u32 = 8;

/// # Safety
/// AVX2 is there; `end` is writable for all pages that were gathered, and 8 more.
#[target_feature(enable = "avx2,popcnt")]
unsafe fn words(gathered: &Gathered, base: u32, mut end: *mut u32) -> usize {
    let start = end;
    for (mut word, first) in gathered.iter(base) {
        // SAFETY: a vector begins where an index goes, or within the 8 after the last one.
        unsafe {
            if word.count_ones() < FEW {
                while word != 0 {
                    end.write(first.wrapping_add(word.trailing_zeros()));
                    end = end.add(1);
                    word &= word - 1;
                }
                continue;
            }
            for (at, byte) in word.to_le_bytes().into_iter().enumerate() {
                let places = _mm_cvtsi64_si128(PLACES[usize::from(byte)].cast_signed());
                let first = first.wrapping_add(at as u32 * 8).cast_signed();
                let indices =
                    _mm256_add_epi32(_mm256_cvtepu8_epi32(places), _mm256_set1_epi32(first));
                _mm256_storeu_si256(end.cast(), indices);
                end = end.add(byte.count_ones() as usize);
            }
        }
    }
    // SAFETY: both are in the caller's list.
    unsafe { end.offset_from_unsigned(start) }
}

/// # Safety
/// AVX2 is there; `end` is writable for `count`.
#[target_feature(enable = "avx2")]
unsafe fn run(first: u32, count: usize, end: *mut u32, streamed: bool) {
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
            let to: *mut __m256i = end.add(head + vector * LANES).cast();
            if streamed {
                _mm256_stream_si256(to, numbers);
            } else {
                _mm256_storeu_si256(to, numbers);
            }
            numbers = _mm256_add_epi32(numbers, step);
        }
        let tail = head + vectors * LANES;
        (tail..count).for_each(|at| end.add(at).write(number(at)));
    }
    if streamed {
        // What is streamed is ordered by nothing else; the list's owner may give it to a thread.
        _mm_sfence();
    }
}
