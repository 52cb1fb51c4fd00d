//! Any machine: 64-bit words.

use crate::vector::Vector;

super::instantiate!(
    "portable",
    u64,
    detected: || true,
    preferred: || true,
    fetch_ahead: |_| {}
);

// SAFETY: every bit pattern is an integer, and eight divides the page. No instruction set beyond
// the target's own is used, so the methods ask for nothing.
unsafe impl Vector for u64 {
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        self | other
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        self == 0
    }
}
