//! AVX-512: 64 bytes, one cache line, at a time.

use std::arch::x86_64::{
    __cpuid, __m512i, _mm512_or_si512, _mm512_test_epi64_mask, _mm512_xor_si512,
};

use crate::vector::Vector;

super::super::instantiate!(
    "avx512",
    __m512i,
    detected: || is_x86_feature_detected!("avx512f"),
    preferred: || !is_amd(),
    feature: "avx512f"
);

/// Whether AMD made this processor. On Zen 4 the form wins nothing over AVX2 from L2, and loses 5
/// to 15% to it from DRAM (`docs/decisions/0001-page-digest.md`).
fn is_amd() -> bool {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
}

// SAFETY: every bit pattern is a vector of integers, and 64 divides the page.
unsafe impl Vector for __m512i {
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: AVX-512F is enabled, by the method's contract.
        unsafe { _mm512_or_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: AVX-512F is enabled, by the method's contract.
        unsafe { _mm512_xor_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: AVX-512F is enabled, by the method's contract.
        unsafe { _mm512_test_epi64_mask(self, self) == 0 }
    }
}
