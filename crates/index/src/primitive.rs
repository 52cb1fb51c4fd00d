//! The atomics that everything here is built of, and the one lock: the machine's, or loom's under
//! `--cfg loom`.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering},
};

/// Asks the cache for the line of `target`, without waiting for it.
#[inline]
pub(crate) fn prefetch<T>(target: &T) {
    let address = std::ptr::from_ref(target);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 has SSE; a prefetch has no effect on memory, at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch has no effect on memory, at any address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly));
    }
    // Elsewhere a miss is taken when it comes.
    let _ = address;
}
