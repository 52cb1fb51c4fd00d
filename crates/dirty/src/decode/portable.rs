//! Any machine: a bit at a time.

use super::{Decoder, Gathered};

pub(super) static DECODER: Decoder = Decoder { name: "portable", is_detected: || true, words, run };

/// # Safety
/// `end` is writable for all pages that were gathered.
#[inline]
pub(super) unsafe fn words(gathered: &Gathered, base: u32, mut end: *mut u32) -> usize {
    let start = end;
    for (mut word, first) in gathered.iter(base) {
        while word != 0 {
            // SAFETY: the caller's promise: there is room for each bit.
            unsafe {
                end.write(first.wrapping_add(word.trailing_zeros()));
                end = end.add(1);
            }
            word &= word - 1;
        }
    }
    // SAFETY: both are in the caller's list.
    unsafe { end.offset_from_unsigned(start) }
}

/// # Safety
/// `end` is writable for `count`.
unsafe fn run(first: u32, count: usize, end: *mut u32, _streamed: bool) {
    for at in 0..count {
        // SAFETY: the caller's promise.
        unsafe { end.add(at).write(first.wrapping_add(at as u32)) };
    }
}
