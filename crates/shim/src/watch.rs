//! A VMM that watches its memory itself: post-copy migration, background snapshots.
//!
//! The kernel lets one userfaultfd at a time watch a range, and `UFFDIO_REGISTER` is how a VMM asks
//! for it: we step aside first.

use std::ffi::c_void;

use crate::managed;

/// `UFFDIO_REGISTER`, see ioctl_userfaultfd(2).
pub(crate) const UFFDIO_REGISTER: u32 = 0xc020_aa00;

/// The beginning of `struct uffdio_register`.
#[repr(C)]
struct Range {
    start: u64,
    bytes: u64,
}

/// Before a range is registered with a userfaultfd of the VMM's.
///
/// # Safety
/// `argument` is what the VMM gives to `UFFDIO_REGISTER`.
pub(crate) unsafe fn before_register(argument: *const c_void) {
    if managed::get().is_none() || argument.is_null() {
        return;
    }
    // SAFETY: the caller's contract; a VMM that gives a bad pointer here gets what it gets from the
    // C library's own functions.
    let range = unsafe { argument.cast::<Range>().read_unaligned() };
    let (start, bytes) = (range.start as usize, range.bytes as usize);
    if let Some(managed) = managed::overlapping(start, bytes) {
        let what = "watch memory itself (userfaultfd: post-copy or background snapshot)";
        managed.step_aside(start, bytes, what);
    }
}
