//! The atomics that everything here is built of: the machine's, or loom's under `--cfg loom`.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Asks the cache for the line of `target`, to write to it, without waiting for it.
#[inline(always)]
pub(crate) fn prefetch<T>(target: &T) {
    let address = std::ptr::from_ref(target);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 has SSE; a prefetch has no effect on memory, at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    // Elsewhere a miss is taken when it comes.
    let _ = address;
}

/// Asks the cache for the line at an address, which need not be anybody's, for writing alone.
#[inline(always)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn prefetch_to_write<T>(address: *mut T) {
    // SAFETY: a prefetch has no effect on memory, at any address; processors that lack the instruction take it
    // for one that does nothing (AMD64 Architecture Programmer's Manual, volume 3; Intel's since Nehalem).
    unsafe {
        std::arch::asm!("prefetchw [{address}]", address = in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
}
