//! System calls on the arena, by way of the C library, whose symbols the preload library stands in
//! front of.
//!
//! The arena is memory at fixed addresses in which no object of this program lies, so that whatever is
//! done to it breaks no promise of the language.

use std::ffi::c_void;

use crate::world::{ARENA, PAGE};

/// Where a page of the arena is.
pub(crate) const fn address(page: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(ARENA + page * PAGE)
}

/// The address of page 0 with the exposed provenance that loads and stores need.
pub(crate) fn bytes(page: usize) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(ARENA + page * PAGE)
}

/// Writes what a call returned: "ok" and a number, or the name of the error.
pub(crate) fn answer(result: isize) -> String {
    if result >= 0 {
        return format!("ok {result}");
    }
    // SAFETY: errno of this thread.
    format!("errno {}", unsafe { *libc::__errno_location() })
}

/// As [`answer`] for calls that return an address: where in the arena that is, or "elsewhere".
pub(crate) fn answer_address(result: *mut c_void) -> String {
    if result == libc::MAP_FAILED {
        return answer(-1);
    }
    match (result as usize).checked_sub(ARENA) {
        Some(offset) if offset < crate::world::PAGES * PAGE => format!("page {}", offset / PAGE),
        _ => "elsewhere".into(),
    }
}

pub(crate) fn mmap(
    page: usize,
    count: usize,
    protection: i32,
    flags: i32,
    file: (i32, usize),
) -> *mut c_void {
    let (file, offset) = (file.0, (file.1 * PAGE) as i64);
    // SAFETY: the arena, or where the kernel likes; see the module.
    unsafe { libc::mmap(address(page), count * PAGE, protection, flags, file, offset) }
}

pub(crate) fn munmap(start: *mut c_void, count: usize) -> isize {
    // SAFETY: the arena, or what was mapped just now; see the module.
    unsafe { libc::munmap(start, count * PAGE) as isize }
}

pub(crate) fn madvise(page: usize, count: usize, advice: i32) -> isize {
    // SAFETY: the arena; see the module.
    unsafe { libc::madvise(address(page), count * PAGE, advice) as isize }
}

pub(crate) fn mprotect(page: usize, count: usize, protection: i32) -> isize {
    // SAFETY: the arena; see the module.
    unsafe { libc::mprotect(address(page), count * PAGE, protection) as isize }
}

pub(crate) fn mremap(
    start: *mut c_void,
    old: usize,
    new: usize,
    flags: i32,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: the arena, or what was mapped just now; see the module.
    unsafe { libc::mremap(start, old * PAGE, new * PAGE, flags, to) }
}

/// A system call made directly.
pub(crate) fn raw(number: i64, arguments: [usize; 5]) -> isize {
    let [a, b, c, d, e] = arguments;
    // SAFETY: calls that change no memory but the arena; see the module.
    unsafe { libc::syscall(number, a, b, c, d, e) as isize }
}
