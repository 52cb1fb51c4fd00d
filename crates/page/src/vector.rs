//! What the algorithms need of a vector register, and of the memory it is loaded from.

/// How a page is loaded.
///
/// Memory that someone else may write to at any moment (a guest's) must be read volatile: the
/// compiler may then neither load a byte twice and believe that both loads agree, nor replace a
/// load that it has seen the result of. Memory behind a reference needs none of that, but has no
/// alignment to promise.
pub(crate) trait Access {
    /// Whether others may write to the memory while it is read. Such memory is aligned.
    const SHARED: bool;
}

/// A guest's memory: volatile loads, aligned to the vector.
pub(crate) enum Shared {}

/// Memory behind a reference: plain loads, at any alignment.
pub(crate) enum Owned {}

impl Access for Shared {
    const SHARED: bool = true;
}

impl Access for Owned {
    const SHARED: bool = false;
}

/// A vector register of one instruction set.
///
/// # Safety
/// An implementor is plain old data: every bit pattern of `size_of::<Self>()` bytes is a value.
/// Its size divides the page. All methods must be called, and inlined, where its instruction set
/// is enabled; that is why they are `unsafe` and `#[inline(always)]`.
pub(crate) unsafe trait Vector: Copy {
    /// Bytes in the vector.
    const BYTES: usize = size_of::<Self>();

    /// Loads a vector.
    ///
    /// # Safety
    /// The instruction set is enabled. `from` is readable for `BYTES` bytes and, for shared
    /// memory, aligned to them; owned memory is not written meanwhile.
    #[inline(always)]
    unsafe fn load<A: Access>(from: *const u8) -> Self {
        if A::SHARED {
            // SAFETY: readable and aligned, by this function's contract; every bit pattern is a
            // value. A volatile load of a vector is one load instruction.
            unsafe { from.cast::<Self>().read_volatile() }
        } else {
            // SAFETY: readable and not written, by this function's contract; every bit pattern is
            // a value.
            unsafe { from.cast::<Self>().read_unaligned() }
        }
    }

    /// The bits set in either.
    ///
    /// # Safety
    /// The instruction set is enabled.
    unsafe fn or(self, other: Self) -> Self;

    /// The bits set in one of the two.
    ///
    /// # Safety
    /// The instruction set is enabled.
    unsafe fn xor(self, other: Self) -> Self;

    /// Whether no bit is set.
    ///
    /// # Safety
    /// The instruction set is enabled.
    unsafe fn is_zero(self) -> bool;
}
