//! AVX-512: 64 bytes, one cache line, at a time.

use std::arch::x86_64::{
    __cpuid, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_or_si512, _mm512_test_epi64_mask,
    _mm512_xor_si512,
};

use crate::vector::Vector;

super::super::instantiate!(
    "avx512",
    __m512i,
    detected: || is_x86_feature_detected!("avx512f"),
    preferred: || !is_amd(),
    fetch_ahead: fetch_ahead,
    feature: "avx512f"
);

/// Lines fetched ahead: about as many as a core of Intel's has under way at a time. On an Ice Lake a
/// page costs 0.49 µs with 16 or 24, 0.57 with 8, 0.65 with all 64, 0.68 with none; AMD's lose by
/// any (`docs/decisions/0001-page-digest.md`).
const LINES_AHEAD: usize = 16;

fn fetch_ahead(page: *const u8) {
    for line in 0..LINES_AHEAD {
        let line = page.wrapping_add(line * size_of::<__m512i>());
        // SAFETY: fetching ahead needs SSE, which every x86-64 has; it neither reads nor faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
}

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
