//! AVX2: 32 bytes at a time.

use std::arch::x86_64::{__m256i, _mm256_or_si256, _mm256_testz_si256, _mm256_xor_si256};

use crate::vector::Vector;

super::super::instantiate!(
    "avx2",
    __m256i,
    detected: || is_x86_feature_detected!("avx2"),
    preferred: || true,
    fetch_ahead: |_| {},
    feature: "avx2"
);

// SAFETY: every bit pattern is a vector of integers, and 32 divides the page.
unsafe impl Vector for __m256i {
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: AVX2 is enabled, by the method's contract.
        unsafe { _mm256_or_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: AVX2 is enabled, by the method's contract.
        unsafe { _mm256_xor_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: AVX2 is enabled, by the method's contract.
        unsafe { _mm256_testz_si256(self, self) == 1 }
    }
}
