//! Any machine: a bit at a time.

use super::Words;

/// # Safety
/// As `Decoder::words` says.
pub(super) unsafe fn words(words: impl Words, enough: usize, end: *mut u32) -> (usize, usize) {
    let (mut gone_through, mut count) = (0, 0);
    while gone_through < words.len() {
        if count >= enough {
            break;
        }
        let (mut word, first) = (words.bits(gone_through), words.first(gone_through));
        gone_through += 1;
        while word != 0 {
            // SAFETY: the caller's promise: there is room for each bit.
            unsafe { end.add(count).write(first.wrapping_add(word.trailing_zeros())) };
            count += 1;
            word &= word - 1;
        }
    }
    (gone_through, count)
}

/// # Safety
/// `end` is writable for `count`.
pub(super) unsafe fn run(first: u32, count: usize, end: *mut u32) {
    for at in 0..count {
        // SAFETY: the caller's promise.
        unsafe { end.add(at).write(first.wrapping_add(at as u32)) };
    }
}
