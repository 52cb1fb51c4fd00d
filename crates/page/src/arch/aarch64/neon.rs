//! NEON: 16 bytes at a time.

use std::arch::aarch64::{uint32x4_t, veorq_u32, vmaxvq_u32, vorrq_u32};
use std::arch::is_aarch64_feature_detected;

use crate::vector::Vector;

super::super::instantiate!(
    "neon",
    uint32x4_t,
    detected: || is_aarch64_feature_detected!("neon"),
    preferred: || true,
    fetch_ahead: |_| {},
    feature: "neon"
);

// SAFETY: every bit pattern is a vector of integers, and 16 divides the page.
unsafe impl Vector for uint32x4_t {
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: NEON is enabled, by the method's contract.
        unsafe { vorrq_u32(self, other) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: NEON is enabled, by the method's contract.
        unsafe { veorq_u32(self, other) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: NEON is enabled, by the method's contract.
        unsafe { vmaxvq_u32(self) == 0 }
    }
}
