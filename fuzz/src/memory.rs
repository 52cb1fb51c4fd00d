//! How much memory a decoder takes.

use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What any decoder may take for an error's words and its own books, in bytes.
const LITTLE_BYTES: usize = 64 << 10;

/// Does what `decode` does.
///
/// # Panics
/// If that took much more memory at once than `given_bytes`, which it was given.
pub fn bounded<T>(given_bytes: usize, decode: impl FnOnce() -> T) -> T {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let decoded = decode();
    let taken = MEMORY.peak_usage().saturating_sub(before);
    assert!(taken <= 8 * given_bytes + LITTLE_BYTES, "{taken} bytes of memory for {given_bytes}");
    decoded
}
