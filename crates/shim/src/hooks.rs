//! The functions that stand in for the C library's.
//!
//! Each decides whether it is concerned and passes on the rest. Variadic ones (`ioctl`, `mremap`) are
//! written with the argument that they may have: on the targets of this library a variadic integer
//! or pointer travels where a named one does.

use std::ffi::c_void;

use libc::{c_int, c_long, c_uint, c_ulong, iovec, off64_t, size_t, ssize_t};

use crate::advice::{advise, content_after, note, offer, whole_pages};
use crate::answer::{Errno, answer, aside};
use crate::child::Content;
use crate::nodes::Binding;
use crate::remap::Request;
use crate::{child, device, fill, kept, kernel, lock, managed, process, protect, replace, watch};

/// Stands in for madvise(2).
///
/// # Safety
/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let start = address as usize;
    let ours = whole_pages(start, bytes).and_then(|bytes| {
        if let Some(content) = content_after(advice)
            && answer(|| child::before(start, bytes, content)) != 0
        {
            return Some(-1);
        }
        if advice == libc::MADV_MERGEABLE {
            // SAFETY: the caller's contract.
            return Some(answer(|| unsafe { offer(start, bytes) }));
        }
        note(start, bytes, advice);
        let managed = managed::overlapping(start, bytes)?;
        // SAFETY: the caller's contract.
        Some(answer(|| unsafe { advise(managed, start, bytes, advice) }))
    });
    // SAFETY: the caller's contract.
    ours.unwrap_or_else(|| unsafe { kernel::madvise(address, bytes, advice) })
}

/// Stands in for posix_madvise(3), which returns its error.
///
/// # Safety
/// As posix_madvise(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(
    address: *mut c_void,
    bytes: size_t,
    advice: c_int,
) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        // As the C library: POSIX's advice of that name may not discard anything.
        return 0;
    }
    let before = Errno::last();
    // The other values are those of madvise.
    // SAFETY: the caller's contract.
    let result = unsafe { madvise(address, bytes, advice) };
    let error = Errno::last();
    before.set();
    if result == 0 { 0 } else { error.0 }
}

/// Stands in for process_madvise(2).
///
/// # Safety
/// As process_madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    process: c_int,
    ranges: *const iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's contract.
    let ours = || unsafe { process::advise_self(process, ranges, count, advice) };
    // SAFETY: as above.
    let pass_on = || unsafe { kernel::process_madvise(process, ranges, count, advice, flags) };
    if flags == 0 { ours().unwrap_or_else(pass_on) } else { pass_on() }
}

/// Stands in for mbind(2), which libnuma has.
///
/// # Safety
/// As mbind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mbind(
    address: *mut c_void,
    bytes: c_ulong,
    mode: c_int,
    nodes: *const c_ulong,
    nodes_max: c_ulong,
    flags: c_uint,
) -> c_long {
    let start = address as usize;
    let wanted = Binding { mode, nodes, nodes_max, flags };
    let ours = whole_pages(start, bytes as usize).and_then(|bytes| {
        if answer(|| child::before(start, bytes, Content::Stays)) != 0 {
            return Some(-1);
        }
        let managed = managed::overlapping(start, bytes)?;
        // SAFETY: the caller's contract.
        Some(answer(|| unsafe { wanted.bind(managed, start, bytes) }))
    });
    // SAFETY: the caller's contract.
    ours.map_or_else(|| unsafe { wanted.pass_on(start, bytes as usize) }, c_long::from)
}

/// Stands in for munmap(2).
///
/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    let going = replace::before_unmap(address as usize, bytes);
    // SAFETY: the caller's contract.
    let result = unsafe { kernel::munmap(address, bytes) };
    if let Some(going) = going {
        going.after(result == 0);
    }
    result
}

/// Stands in for mmap(2).
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off64_t,
) -> *mut c_void {
    let going =
        replace::replaces(flags).then(|| replace::before_unmap(address as usize, bytes)).flatten();
    // SAFETY: the caller's contract.
    let result = unsafe { kernel::mmap(address, bytes, protection, flags, file, offset) };
    if let Some(going) = going {
        going.after(result != libc::MAP_FAILED);
    }
    result
}

/// Stands in for mmap64(3), which is mmap(2).
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off64_t,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { mmap(address, bytes, protection, flags, file, offset) }
}

/// Stands in for mremap(2).
///
/// # Safety
/// As mremap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let has_target = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    // Without these flags the argument need not be there.
    let new_address = if has_target { new_address } else { std::ptr::null_mut() };
    let request = Request {
        old: address as usize,
        old_bytes,
        new_bytes,
        flags,
        target: new_address as usize,
    };
    if request.is_refused() {
        // SAFETY: the caller's contract.
        return unsafe { kernel::mremap(address, old_bytes, new_bytes, flags, new_address) };
    }
    let going = if new_bytes <= old_bytes && !has_target {
        // It stays where it is, and its end goes.
        replace::before_shrink(address as usize, old_bytes, new_bytes)
    } else if answer(|| child::before(address as usize, old_bytes, Content::Stays)) != 0 {
        return libc::MAP_FAILED;
    } else if old_bytes > 0 && !replace::before_move(address as usize, old_bytes, new_bytes) {
        Errno(libc::ENOMEM).set();
        return libc::MAP_FAILED;
    } else if flags & libc::MREMAP_FIXED != 0 {
        replace::before_overwrite(new_address as usize, new_bytes)
    } else {
        None
    };
    // SAFETY: the caller's contract.
    let mut result = unsafe { kernel::mremap(address, old_bytes, new_bytes, flags, new_address) };
    if result == libc::MAP_FAILED {
        // SAFETY: the caller's contract.
        result = unsafe { request.piecewise() };
    }
    if result != libc::MAP_FAILED {
        kept::note_move(address as usize, old_bytes, result as usize, new_bytes);
    }
    if let Some(going) = going {
        going.after(result != libc::MAP_FAILED);
    }
    result
}

/// Stands in for mprotect(2).
///
/// # Safety
/// As mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(address: *mut c_void, bytes: size_t, protection: c_int) -> c_int {
    if answer(|| protect::before(address as usize, bytes, protection, protect::NO_KEY)) != 0 {
        return -1;
    }
    // SAFETY: the caller's contract.
    unsafe { kernel::mprotect(address, bytes, protection) }
}

/// Stands in for pkey_mprotect(2).
///
/// # Safety
/// As pkey_mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    key: c_int,
) -> c_int {
    if answer(|| protect::before(address as usize, bytes, protection, key)) != 0 {
        return -1;
    }
    // SAFETY: the caller's contract.
    unsafe { kernel::pkey_mprotect(address, bytes, protection, key) }
}

/// Stands in for mseal(2).
///
/// # Safety
/// As mseal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mseal(address: *mut c_void, bytes: size_t, flags: c_ulong) -> c_int {
    if answer(|| protect::before_seal(address as usize, bytes)) != 0 {
        return -1;
    }
    // SAFETY: the caller's contract.
    unsafe { kernel::mseal(address, bytes, flags) }
}

/// Stands in for mlock(2).
///
/// # Safety
/// As mlock(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(address: *const c_void, bytes: size_t) -> c_int {
    aside(|| lock::before_range(address as usize, bytes));
    // SAFETY: the caller's contract.
    unsafe { kernel::mlock(address, bytes) }
}

/// Stands in for mlock2(2).
///
/// # Safety
/// As mlock2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(address: *const c_void, bytes: size_t, flags: c_uint) -> c_int {
    aside(|| lock::before_range(address as usize, bytes));
    // SAFETY: the caller's contract.
    unsafe { kernel::mlock2(address, bytes, flags) }
}

/// Stands in for mlockall(2).
///
/// # Safety
/// As mlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    aside(|| lock::before_all(flags));
    // SAFETY: the caller's contract.
    let result = unsafe { kernel::mlockall(flags) };
    if result == 0 {
        lock::note_all(flags);
    }
    result
}

/// Stands in for munlockall(2).
///
/// # Safety
/// As munlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlockall() -> c_int {
    // SAFETY: the caller's contract.
    let result = unsafe { kernel::munlockall() };
    if result == 0 {
        lock::note_all(0);
    }
    result
}

/// Stands in for ioctl(2).
///
/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // Programs that keep requests in an `int` sign-extend them: the low 32 bits are what counts, as in
    // the kernel.
    let number = request as u32;
    // SAFETY: the caller's contract.
    if watch::is_concerned(number) && answer(|| unsafe { watch::before(number, argument) }) != 0 {
        return -1;
    }
    if device::is_concerned(number) {
        // SAFETY: the caller's contract.
        aside(|| unsafe { device::before_given(number, argument) });
    }
    // SAFETY: the caller's contract.
    let result = unsafe { kernel::ioctl(file, request, argument) };
    if result == -1 && watch::is_concerned(number) {
        // SAFETY: the caller's contract.
        return unsafe { fill::after_refused(file, number, argument) };
    }
    result
}
