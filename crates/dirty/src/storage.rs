//! The words of a tree: zero at first, and backed by memory where they are touched.

use std::io;
use std::ops::Deref;

use crate::primitive::AtomicU64;

/// An array of atomic words.
#[cfg(not(any(loom, miri)))]
pub(crate) struct Words {
    mapping: bindery_sys::mapping::Mapping,
    len: usize,
}

#[cfg(not(any(loom, miri)))]
impl Words {
    /// `len` words, zero, at the start of a page.
    pub(crate) fn zeroed(len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = bindery_sys::mapping::Mapping::anonymous(bytes)?;
        // A huge page for a few marks would be more than most trees need. Where the advice is not
        // known there are none.
        // SAFETY: the mapping is ours; the advice changes no content.
        let _ = unsafe {
            bindery_sys::mapping::advise(mapping.address(), bytes, libc::MADV_NOHUGEPAGE)
        };
        Ok(Self { mapping, len })
    }
}

#[cfg(not(any(loom, miri)))]
impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is this value's own, of `len` words, at a page's start and so aligned;
        // zero is a valid word; words are only ever accessed as atomics.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().cast(), self.len) }
    }
}

/// The models' words: loom's atomics are objects, and Miri maps no memory.
#[cfg(any(loom, miri))]
pub(crate) struct Words(Box<[AtomicU64]>);

#[cfg(any(loom, miri))]
impl Words {
    #[expect(clippy::unnecessary_wraps, reason = "as the other form of it")]
    pub(crate) fn zeroed(len: usize) -> io::Result<Self> {
        Ok(Self((0..len).map(|_| AtomicU64::new(0)).collect()))
    }
}

#[cfg(any(loom, miri))]
impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}
