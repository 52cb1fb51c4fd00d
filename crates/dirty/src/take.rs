//! Ways to read the bits of a word on the way down.

use crate::primitive::{AtomicU64, Ordering};

/// What a walk does to the bits that it reads.
pub(crate) trait Take {
    /// Whether bits are cleared; what is left over is then put back.
    const CLEARS: bool;

    /// Whether others may mark meanwhile.
    const SHARES: bool;

    /// Those of `bits` that are set.
    fn take(word: &AtomicU64, bits: u64) -> u64;
}

/// Clears while others mark.
pub(crate) struct Swap;

impl Take for Swap {
    const CLEARS: bool = true;
    const SHARES: bool = true;

    #[inline(always)]
    fn take(word: &AtomicU64, bits: u64) -> u64 {
        // The models take SeqCst for AcqRel; between fences it is as strong as it is elsewhere.
        #[cfg(loom)]
        crate::primitive::fence(Ordering::SeqCst);
        // SeqCst: partner of every access of a marker (`mark`): of two levels, this one clears the
        // upper first, a marker sets the lower first. Also acquires what was written to the page.
        if bits == !0 {
            word.swap(0, Ordering::SeqCst)
        } else {
            word.fetch_and(!bits, Ordering::SeqCst) & bits
        }
    }
}

/// Clears while nobody else is there.
pub(crate) struct Store;

impl Take for Store {
    const CLEARS: bool = true;
    const SHARES: bool = false;

    #[inline(always)]
    fn take(word: &AtomicU64, bits: u64) -> u64 {
        // Relaxed: whoever has the tree alone is ordered after all that was marked.
        let old = word.load(Ordering::Relaxed);
        word.store(old & !bits, Ordering::Relaxed);
        old & bits
    }
}

/// Leaves everything as it is.
pub(crate) struct Look;

impl Take for Look {
    const CLEARS: bool = false;
    const SHARES: bool = true;

    #[inline(always)]
    fn take(word: &AtomicU64, bits: u64) -> u64 {
        // Acquire: pairs with the Release of a mark.
        word.load(Ordering::Acquire) & bits
    }
}
