//! Advice that a process gives to itself by process_madvise(2).

use std::fs;

use libc::{c_int, iovec, ssize_t};

use crate::answer::{Errno, checked};
use crate::{hooks, kernel, managed};

/// `PIDFD_SELF_THREAD` and `PIDFD_SELF_THREAD_GROUP` (Linux 6.14).
const SELF: [c_int; 2] = [-10_000, -10_001];

/// Advises managed memory of this process as madvise(2) would, range by range. `None` for what is the
/// kernel's: other processes, and memory that is not managed.
///
/// # Safety
/// As process_madvise(2).
pub(crate) unsafe fn advise_self(
    process: c_int,
    ranges: *const iovec,
    count: usize,
    advice: c_int,
) -> Option<ssize_t> {
    let is_copy = managed::is_copy();
    if !is_copy {
        managed::get()?;
    }
    if ranges.is_null() || count > libc::UIO_MAXIOV as usize {
        return None;
    }
    // SAFETY: the caller's contract: so many ranges.
    let ranges = unsafe { std::slice::from_raw_parts(ranges, count) };
    let is_managed =
        |range: &iovec| managed::overlapping(range.iov_base as usize, range.iov_len).is_some();
    if !(is_copy || ranges.iter().any(is_managed)) || !is_self(process) {
        return None;
    }
    // The kernel says whether a process may give this advice to itself at all.
    // SAFETY: it is given for nothing.
    let allowed = unsafe { kernel::process_madvise(process, ranges.as_ptr(), 0, advice, 0) };
    if checked(allowed as c_int).is_err() {
        return Some(-1);
    }
    let mut done = 0;
    for range in ranges {
        // SAFETY: the caller's contract.
        if unsafe { hooks::madvise(range.iov_base, range.iov_len, advice) } != 0 {
            return Some(if done == 0 { -1 } else { done });
        }
        done += range.iov_len.cast_signed();
    }
    Some(done)
}

/// True if a pidfd is of this process.
fn is_self(process: c_int) -> bool {
    let before = Errno::last();
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{process}")).unwrap_or_default();
    let pid = about.lines().find_map(|line| line.strip_prefix("Pid:"));
    before.set();
    SELF.contains(&process) || pid.is_some_and(|pid| pid.trim().parse() == Ok(std::process::id()))
}
