//! The kernel's cache of a file: what is in it, and having it let go.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{Advice, fadvise};

/// What the cache has of a range of a file, in pages (cachestat(2), Linux 6.5).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// In memory.
    pub resident_pages: u64,
    /// To be written yet.
    pub dirty_pages: u64,
    /// Being written.
    pub writeback_pages: u64,
    /// Once there, and evicted.
    pub evicted_pages: u64,
    /// Evicted so recently that the machine is short of memory if they come back.
    pub recently_evicted_pages: u64,
}

/// What the cache has of a range. Costs some 10 ns a page that is there; never reads the file.
///
/// # Errors
/// `EPERM` for a file that is neither ours nor writable by us; `ENOSYS` before Linux 6.5;
/// `EOPNOTSUPP` for hugetlbfs.
pub fn cached(file: BorrowedFd<'_>, offset_bytes: u64, bytes: u64) -> io::Result<Cached> {
    let range = [offset_bytes, bytes];
    let mut found = Cached::default();
    if bytes == 0 {
        // To the kernel, no length is all of the file.
        return Ok(found);
    }
    // SAFETY: the range is the `cachestat_range` and `found` the `cachestat` that the call expects, both
    // live, and the latter writable.
    let result = unsafe {
        let (range, found) = (range.as_ptr(), &raw mut found);
        crate::syscall!(SYS_CACHESTAT, file.as_raw_fd(), range, found, 0)
    };
    if result == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// The same number on every architecture, and not yet in every libc.
const SYS_CACHESTAT: libc::c_long = 451;

/// Asks the cache to let go of a range. It keeps what is dirty, or mapped by anybody, and any huge page
/// of which the range is only a part, and **says nothing of it**: see [`cached`] afterwards.
///
/// # Errors
/// As posix_fadvise(2).
pub fn evict(file: BorrowedFd<'_>, offset_bytes: u64, bytes: u64) -> io::Result<()> {
    let Some(bytes) = NonZeroU64::new(bytes) else { return Ok(()) };
    Ok(fadvise(file, offset_bytes, Some(bytes), Advice::DontNeed)?)
}

/// Has the cache begin to read a range. Does not wait for it.
///
/// # Errors
/// As posix_fadvise(2).
pub fn read_ahead(file: BorrowedFd<'_>, offset_bytes: u64, bytes: u64) -> io::Result<()> {
    let Some(bytes) = NonZeroU64::new(bytes) else { return Ok(()) };
    Ok(fadvise(file, offset_bytes, Some(bytes), Advice::WillNeed)?)
}

/// A second description of a file, to be read past the cache (`O_DIRECT`) where its file system can do
/// that, and through it where not.
///
/// # Errors
/// As open(2), and when `/proc` is not mounted.
pub fn reopen_uncached(file: BorrowedFd<'_>) -> io::Result<File> {
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => File::open(path),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const PAGE: u64 = 4096;

    #[test]
    fn what_is_read_is_cached_until_it_is_evicted() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all_at(&vec![7; 64 * PAGE as usize], 0).unwrap();
        file.sync_all().unwrap();
        evict(file.as_fd(), 0, 64 * PAGE).unwrap();
        assert_eq!(cached(file.as_fd(), 0, 64 * PAGE).unwrap().resident_pages, 0);
        file.read_exact_at(&mut [0; 4096], 8 * PAGE).unwrap();
        let now = cached(file.as_fd(), 0, 64 * PAGE).unwrap();
        assert!(now.resident_pages >= 1 && now.dirty_pages == 0, "{now:?}");
        assert_eq!(cached(file.as_fd(), 8 * PAGE, PAGE).unwrap().resident_pages, 1);
        assert_eq!(cached(file.as_fd(), 8 * PAGE, 0).unwrap(), Cached::default());
    }

    #[test]
    fn a_file_is_read_past_the_cache() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all_at(&vec![7; 4 * PAGE as usize], 0).unwrap();
        file.sync_all().unwrap();
        evict(file.as_fd(), 0, 4 * PAGE).unwrap();
        let mut buffer = crate::direct::Buffer::zeroed(4096);
        reopen_uncached(file.as_fd()).unwrap().read_exact_at(&mut buffer, PAGE).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
        assert_eq!(cached(file.as_fd(), 0, 4 * PAGE).unwrap().resident_pages, 0);
    }
}
