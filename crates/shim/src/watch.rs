//! A VMM that watches its memory itself: post-copy migration, background snapshots.
//!
//! The kernel lets one userfaultfd at a time watch a range, and takes memory for watched whoever
//! watches it. So before a userfaultfd of the VMM's is to do something with managed memory, that is
//! given back, and the kernel finds what it would find without us. What was managed may lie in several
//! mappings, though, between which the kernel moves no pages: those are moved part by part.

use std::ffi::c_void;

use bindery_sys::maps;
use bindery_units::HostAddress;
use libc::c_int;

use crate::answer::Errno;
use crate::child::Content;
use crate::{child, kernel, managed};

/// Requests of ioctl_userfaultfd(2) that change memory, or who watches it.
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u32 = 0x8010_aa01;
const UFFDIO_COPY: u32 = 0xc028_aa03;
const UFFDIO_ZEROPAGE: u32 = 0xc020_aa04;
const UFFDIO_MOVE: u32 = 0xc028_aa05;
const UFFDIO_WRITEPROTECT: u32 = 0xc018_aa06;
const UFFDIO_CONTINUE: u32 = 0xc020_aa07;
const UFFDIO_POISON: u32 = 0xc020_aa08;

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

/// `struct uffdio_move`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Move {
    target: u64,
    source: u64,
    bytes: u64,
    mode: u64,
    /// What was moved, in bytes, or why nothing was.
    moved: i64,
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
        managed.step_aside(start, bytes, WHAT);
    }
    Ok(())
}

/// After the kernel refused a request, with the reason in `errno`: moves pages if the only reason is that
/// they lie in several mappings, as memory does that was managed. Answers as ioctl(2).
///
/// # Safety
/// `argument` is what the VMM gives to that request on `file`.
pub(crate) unsafe fn after_refused(file: c_int, request: u32, argument: *mut c_void) -> c_int {
    let may_be_ours = managed::get().is_some() || managed::is_copy();
    if request != UFFDIO_MOVE || Errno::last() != Errno(libc::EINVAL) || !may_be_ours {
        return -1;
    }
    let argument = argument.cast::<Move>();
    // SAFETY: the caller's contract: the structure of the request, which the kernel has read.
    let asked = unsafe { argument.read_unaligned() };
    let before = Errno::last();
    let Some(lengths) = lengths_within_mappings(&asked) else {
        before.set();
        return -1;
    };
    let (mut done, mut errno) = (0, before);
    for bytes in lengths {
        let (target, source) = (asked.target + done, asked.source + done);
        let mut part = Move { target, source, bytes, moved: 0, ..asked };
        // SAFETY: the caller's contract: a part of what the VMM asks for.
        let result = unsafe { kernel::ioctl(file, UFFDIO_MOVE.into(), (&raw mut part).cast()) };
        errno = Errno::last();
        done += u64::try_from(part.moved).unwrap_or(0);
        if result != 0 {
            break;
        }
    }
    let errno = if done > 0 { Errno(libc::EAGAIN) } else { errno };
    let moved = if done > 0 { done.cast_signed() } else { -i64::from(errno.0) };
    // SAFETY: as above; the kernel has written there.
    unsafe { argument.write_unaligned(Move { moved, ..asked }) };
    if done == asked.bytes {
        return 0;
    }
    errno.set();
    -1
}

/// The lengths of the parts that lie in one mapping each, at both ends; nothing if all of it does, or if
/// there are holes.
fn lengths_within_mappings(asked: &Move) -> Option<Vec<u64>> {
    let ends = |start: u64| {
        let (start, end) = (HostAddress(start as usize), start.checked_add(asked.bytes)?);
        let areas = maps::between(start, HostAddress(end as usize)).ok()?;
        let mut at = start;
        areas.iter().try_for_each(|area| {
            let follows = area.start == at;
            at = area.end;
            follows.then_some(())
        })?;
        let offset = |area: &maps::Area| (area.end.0 - start.0) as u64;
        (at.0 as u64 == end).then(|| areas.iter().map(offset).collect::<Vec<u64>>())
    };
    let mut ends = [ends(asked.target)?, ends(asked.source)?].concat();
    ends.sort_unstable();
    ends.dedup();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    (ends.len() > 1).then(|| starts.zip(&ends).map(|(start, end)| end - start).collect())
}
