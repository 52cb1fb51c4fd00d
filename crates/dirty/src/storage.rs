//! Arrays of atomics: zero at first, and backed by memory where they are touched.

use std::io;
#[cfg(not(any(loom, miri)))]
use std::marker::PhantomData;
use std::ops::Deref;

use crate::primitive::{AtomicU8, AtomicU64};

/// The words of a tree.
pub(crate) type Words = Zeroed<AtomicU64>;

/// Atomics of which an array can be made.
///
/// # Safety
/// Bytes that are zero are a valid one, at any address of its alignment, which is below a page's.
pub(crate) unsafe trait Atomic {
    /// One that is zero.
    #[cfg(any(loom, miri))]
    fn zero() -> Self;
}

// SAFETY: an integer in memory (std). Loom's are never made of bytes.
unsafe impl Atomic for AtomicU64 {
    #[cfg(any(loom, miri))]
    fn zero() -> Self {
        Self::new(0)
    }
}

// SAFETY: as above.
unsafe impl Atomic for AtomicU8 {
    #[cfg(any(loom, miri))]
    fn zero() -> Self {
        Self::new(0)
    }
}

/// An array of atomics.
#[cfg(not(any(loom, miri)))]
pub(crate) struct Zeroed<T> {
    mapping: bindery_sys::mapping::Mapping,
    len: usize,
    of: PhantomData<T>,
}

#[cfg(not(any(loom, miri)))]
impl<T: Atomic> Zeroed<T> {
    /// `len` of them, zero, at the start of a page.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = bindery_sys::mapping::Mapping::anonymous(bytes)?;
        // A huge page for a few marks would be more than most trees need. Where the advice is not
        // known there are none.
        // SAFETY: the mapping is ours; the advice changes no content.
        let _ = unsafe {
            bindery_sys::mapping::advise(mapping.address(), bytes, libc::MADV_NOHUGEPAGE)
        };
        Ok(Self { mapping, len, of: PhantomData })
    }
}

#[cfg(not(any(loom, miri)))]
impl<T: Atomic> Deref for Zeroed<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is this value's own, of `len` atomics, at a page's start and so aligned;
        // zero bytes are valid ones; they are only ever accessed as atomics.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().cast(), self.len) }
    }
}

/// The models' arrays: loom's atomics are objects, and Miri maps no memory.
#[cfg(any(loom, miri))]
pub(crate) struct Zeroed<T>(Box<[T]>);

#[cfg(any(loom, miri))]
impl<T: Atomic> Zeroed<T> {
    #[expect(clippy::unnecessary_wraps, reason = "as the other form of it")]
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        Ok(Self((0..len).map(|_| T::zero()).collect()))
    }
}

#[cfg(any(loom, miri))]
impl<T> Deref for Zeroed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}
