//! A VMM that watches its memory itself: post-copy migration, background snapshots.
//!
//! The kernel lets one userfaultfd at a time watch a range, and takes memory for watched whoever
//! watches it. So before a userfaultfd of the VMM's is to do something with managed memory, that is
//! given back, and the kernel finds what it would find without us, but for where one mapping ends and
//! the next begins: see [`fill`](crate::fill).

use std::ffi::c_void;

use crate::answer::Errno;
use crate::child::Content;
use crate::{child, managed};

/// Requests of ioctl_userfaultfd(2) that change memory, or who watches it.
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u32 = 0x8010_aa01;
pub(crate) const UFFDIO_COPY: u32 = 0xc028_aa03;
pub(crate) const UFFDIO_ZEROPAGE: u32 = 0xc020_aa04;
pub(crate) const UFFDIO_MOVE: u32 = 0xc028_aa05;
const UFFDIO_WRITEPROTECT: u32 = 0xc018_aa06;
pub(crate) const UFFDIO_CONTINUE: u32 = 0xc020_aa07;
pub(crate) const UFFDIO_POISON: u32 = 0xc020_aa08;

const WHAT: &str = "watch memory itself (userfaultfd: post-copy or background snapshot)";

/// The beginning of each structure but those of `UFFDIO_COPY` and `UFFDIO_MOVE`.
#[repr(C)]
struct Range {
    start: u64,
    bytes: u64,
}

/// The beginning of these two.
#[repr(C)]
struct Transfer {
    target: u64,
    source: u64,
    bytes: u64,
}

/// True if a request is about watching memory.
pub(crate) const fn is_concerned(request: u32) -> bool {
    matches!(
        request,
        UFFDIO_REGISTER
            | UFFDIO_UNREGISTER
            | UFFDIO_COPY
            | UFFDIO_ZEROPAGE
            | UFFDIO_MOVE
            | UFFDIO_WRITEPROTECT
            | UFFDIO_CONTINUE
            | UFFDIO_POISON
    )
}

/// Before a userfaultfd of the VMM's does what a request that [is concerned](is_concerned) says.
///
/// # Errors
/// `ENOMEM`, in a child of fork, if there is no memory for what it is about.
///
/// # Safety
/// `argument` is what the VMM gives to that request.
pub(crate) unsafe fn before(request: u32, argument: *const c_void) -> Result<(), Errno> {
    if (managed::get().is_none() && !managed::is_copy()) || argument.is_null() {
        return Ok(());
    }
    if !matches!(request, UFFDIO_COPY | UFFDIO_MOVE) {
        // SAFETY: the caller's contract; a VMM that gives a bad pointer here gets what it gets from
        // the C library's own functions.
        let range = unsafe { argument.cast::<Range>().read_unaligned() };
        return give_back(range.start, range.bytes);
    }
    // SAFETY: as above.
    let transfer = unsafe { argument.cast::<Transfer>().read_unaligned() };
    give_back(transfer.target, transfer.bytes)?;
    if request == UFFDIO_MOVE { give_back(transfer.source, transfer.bytes) } else { Ok(()) }
}

fn give_back(start: u64, bytes: u64) -> Result<(), Errno> {
    let (start, bytes) = (start as usize, bytes as usize);
    child::before(start, bytes, Content::Stays)?;
    if let Some(managed) = managed::overlapping(start, bytes) {
        // If it cannot be let go, the kernel refuses the request: two may not watch the same memory.
        managed.let_go(start, bytes, WHAT);
        managed.step_aside(start, bytes, WHAT);
    }
    Ok(())
}
