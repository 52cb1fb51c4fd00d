//! `PR_SET_MEMORY_MERGE` (Linux 6.4): all of a process's anonymous memory is offered to KSM, and
//! that of its children, across fork and exec (prctl(2)).

use std::io;

/// Offers all memory of this process from now on, or takes the offer back, which unmerges it.
///
/// # Errors
/// `InvalidInput` (`EINVAL`) on a kernel without KSM or before Linux 6.4; `PermissionDenied` (`EPERM`)
/// where a filter of system calls (seccomp(2)) forbids it: the kernel itself asks for no right
/// (kernel/sys.c, Linux 6.4 to 6.18).
pub fn set_merge_any(is_offered: bool) -> io::Result<()> {
    let value = libc::c_ulong::from(is_offered);
    // SAFETY: the call takes numbers alone; it changes no content of memory.
    let result = unsafe { libc::prctl(libc::PR_SET_MEMORY_MERGE, value, 0_u64, 0_u64, 0_u64) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether all memory of this process is offered.
///
/// # Errors
/// `InvalidInput` (`EINVAL`) on a kernel without KSM or before Linux 6.4.
pub fn merges_any() -> io::Result<bool> {
    // SAFETY: the call takes numbers alone.
    let result = unsafe { libc::prctl(libc::PR_GET_MEMORY_MERGE, 0_u64, 0_u64, 0_u64, 0_u64) };
    if result >= 0 { Ok(result == 1) } else { Err(io::Error::last_os_error()) }
}
