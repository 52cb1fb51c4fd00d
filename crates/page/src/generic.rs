//! The algorithms, once, over any vector.
//!
//! A page is taken in blocks of [`UNROLL`] vectors. Within a block there is no branch, so that its
//! loads overlap; after each block there is one, so that a page that differs early is left early.

use bindery_units::PAGE_BYTES;

use crate::vector::{Access, Shared, Vector};

/// Vectors in a block.
const UNROLL: usize = 8;

/// Whether every byte of the page is zero.
///
/// # Safety
/// `V`'s instruction set is enabled. `page` is readable for a page; shared memory is aligned to
/// `V`, owned memory is not written meanwhile.
#[inline(always)]
pub(crate) unsafe fn is_zero<V: Vector, A: Access>(page: *const u8) -> bool {
    // SAFETY: `no_bit` calls the closure with vectors that lie within the page, so that `load` may
    // read them; the instruction set is enabled by this function's contract.
    unsafe { no_bit::<V>(|at| V::load::<A>(page.add(at))) }
}

/// Whether the two pages hold the same bytes.
///
/// # Safety
/// As for [`is_zero`], for both pages.
#[inline(always)]
pub(crate) unsafe fn equal<V: Vector, A: Access>(a: *const u8, b: *const u8) -> bool {
    // SAFETY: as in `is_zero`, for both pages.
    unsafe { no_bit::<V>(|at| V::load::<A>(a.add(at)).xor(V::load::<A>(b.add(at)))) }
}

/// Copies a page that others may write to, loading each byte once, and says whether the copy is
/// zero.
///
/// It does not stop early: what has been read must not be read again, and the cost of storing a
/// zero page too is hidden behind the loads.
///
/// # Safety
/// As for [`is_zero`] with shared memory; `to` is writable for a page, aligned to `V`, and apart
/// from `page`.
#[inline(always)]
pub(crate) unsafe fn copy<V: Vector>(page: *const u8, to: *mut u8) -> bool {
    // SAFETY: the offsets stay within the page, so both ends of each move are in bounds and
    // aligned, and the first vector exists; the instruction set is enabled by the contract.
    unsafe {
        let move_one = |at: usize| {
            let vector = V::load::<Shared>(page.add(at));
            to.add(at).cast::<V>().write(vector);
            vector
        };
        let mut union = move_one(0);
        for at in (V::BYTES..PAGE_BYTES).step_by(V::BYTES) {
            union = union.or(move_one(at));
        }
        union.is_zero()
    }
}

/// Whether `vector_at` has no bit set at any offset of a page. Asks for each offset at most once,
/// in ascending order.
///
/// # Safety
/// `V`'s instruction set is enabled.
#[inline(always)]
unsafe fn no_bit<V: Vector>(vector_at: impl Fn(usize) -> V) -> bool {
    const { assert!(PAGE_BYTES.is_multiple_of(UNROLL * V::BYTES), "blocks tile the page") };
    (0..PAGE_BYTES).step_by(UNROLL * V::BYTES).all(|block| {
        let mut union = vector_at(block);
        for vector in 1..UNROLL {
            // SAFETY: the instruction set is enabled by this function's contract.
            union = unsafe { union.or(vector_at(block + vector * V::BYTES)) };
        }
        // SAFETY: as above.
        unsafe { union.is_zero() }
    })
}
