//! Other processes, looked at from outside: which of their pages exist, and what these hold.
//!
//! Everything here only reads. Two facts shape the use:
//! - `process_vm_readv` faults in what is absent: a read of a hole populates a zero page in the
//!   other process, and blocks where a userfaultfd serves the hole. So callers ask [`PageTable`]
//!   first and read present pages alone.
//! - Both need the right to trace the process (same user, or `CAP_SYS_PTRACE`; see ptrace(2),
//!   "Ptrace access mode checking"), and only `CAP_SYS_ADMIN` sees frame numbers.
//!
//! A process may end or change its mappings at any time: short answers are ordinary.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bindery_units::{HostAddress, PAGE_SHIFT};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

mod origin;

pub use self::origin::Origin;

/// The most spans that one [`read_memory`] takes: the kernel's `UIO_MAXIOV`.
pub const SPANS_MAX: usize = 1024;

/// The user that this process acts as.
#[must_use]
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns true for a process that is gone, or has ended and was not waited for by its parent yet; false if the
/// kernel cannot say.
#[must_use]
pub fn has_ended(pid: u32) -> bool {
    match std::fs::read(format!("/proc/{pid}/stat")) {
        // The state is behind the name, which may have any letters.
        Ok(stat) => {
            let behind = stat.iter().rposition(|byte| *byte == b')');
            let state = behind.and_then(|at| stat.get(at + 2));
            matches!(state, Some(b'Z' | b'X'))
        }
        Err(error) => {
            let is_gone = error.raw_os_error() == Some(Errno::SRCH.raw_os_error());
            is_gone || error.kind() == io::ErrorKind::NotFound
        }
    }
}

/// Whether this process ignores `signal`, as nohup(1) has its children ignore `SIGHUP`: `SigIgn` of
/// proc_pid_status(5).
///
/// # Errors
/// The kernel's if `/proc` cannot be read; `InvalidData` if it does not tell.
pub fn ignores_signal(signal: i32) -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit =
        u32::try_from(signal).ok().and_then(|signal| 1_u64.checked_shl(signal.checked_sub(1)?));
    let is_set = mask.zip(bit).map(|(mask, bit)| mask & bit != 0);
    is_set.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Lets this process open as many files as it may, and make them (memfds too) as large: raises the soft
/// limits to the hard ones.
///
/// # Errors
/// The kernel's; a limit is then as it was.
pub fn raise_file_limits() -> io::Result<()> {
    for resource in [Resource::Nofile, Resource::Fsize] {
        let mut limit = getrlimit(resource);
        limit.current = limit.maximum;
        setrlimit(resource, limit)?;
    }
    Ok(())
}

/// Makes room for `count` descriptors at once, or for as many as the process may have. A table that grows while
/// threads share it waits for all CPUs each time. Takes eight bytes a descriptor.
///
/// # Errors
/// As open(2) of `/dev/null` and fcntl(2).
pub fn reserve_descriptors(count: u32) -> io::Result<()> {
    let most = open_files_max().map_or(count, |most| most.min(u64::from(count)) as u32);
    // The kernel makes room for all numbers below the one that it is asked for.
    let last = i32::try_from(most).unwrap_or(i32::MAX).saturating_sub(1);
    let copy = rustix::io::fcntl_dupfd_cloexec(File::open("/dev/null")?, last)?;
    drop(copy);
    Ok(())
}

/// Number of files that this process may have open, by its soft limit. `None` if there is no limit.
#[must_use]
pub fn open_files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns true if the error says that this process, or the machine, has no descriptor left.
#[must_use]
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether the program at `path` has file capabilities (capabilities(7)): the kernel then has the
/// dynamic linker distrust its environment, as for a setuid program.
///
/// # Errors
/// As getxattr(2). That the file or its file system has none is `Ok(false)`.
pub fn has_file_capabilities(path: &Path) -> io::Result<bool> {
    let none = [Errno::NODATA, Errno::NOTSUP];
    match rustix::fs::getxattr(path, c"security.capability", &mut [0; 64]) {
        Ok(bytes) => Ok(bytes > 0),
        Err(error) if none.contains(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Consecutive bytes in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySpan {
    /// Where they begin.
    pub address: HostAddress,
    /// How many.
    pub bytes: usize,
}

/// Copies the spans of process `pid`, one after the other, to the start of `into`. Returns how
/// many bytes were copied: fewer than asked for if one of the spans is not mapped (any more), in
/// which case all before the offending page were copied.
///
/// About 0.85 µs a page in batches of 64 to 256 pages.
///
/// # Errors
/// `NotFound`-like `ESRCH` when the process has ended; `PermissionDenied` without the right to
/// trace it; `EFAULT` when not even the first page could be read.
///
/// # Panics
/// With more than [`SPANS_MAX`] spans, or if `into` is too short for them.
pub fn read_memory(pid: i32, spans: &[MemorySpan], into: &mut [u8]) -> io::Result<usize> {
    assert!(spans.len() <= SPANS_MAX, "one call takes at most {SPANS_MAX} spans");
    let bytes: usize = spans.iter().map(|span| span.bytes).sum();
    assert!(bytes <= into.len(), "{bytes} bytes do not fit into {}", into.len());
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: bytes };
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SPANS_MAX];
    for (iovec, span) in remote.iter_mut().zip(spans) {
        *iovec = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(span.address.0),
            iov_len: span.bytes,
        };
    }
    let count = spans.len() as libc::c_ulong;
    // SAFETY: needs `local` to describe memory that this call may write: it is `into`, borrowed
    // mutably, and no longer than it. The remote addresses are used in the other process only (or,
    // if `pid` is this one, read by the kernel, which answers EFAULT to what is not mapped).
    let copied =
        unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count, 0) };
    if copied < 0 { Err(io::Error::last_os_error()) } else { Ok(copied as usize) }
}

/// What `/proc/PID/pagemap` says of one page (Documentation/admin-guide/mm/pagemap.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageEntry(u64);

impl PageEntry {
    /// Whether the page is in memory: reading it faults nothing in.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    /// Whether the page is in swap. An absent page that is protected all the same, by what the kernel calls a
    /// marker, is not.
    #[must_use]
    pub const fn is_swapped(self) -> bool {
        // The last of 32 types of swap entries is that of markers (include/linux/swapops.h).
        const MARKER: u64 = 31;
        self.0 >> 62 & 1 == 1 && self.0 & 31 != MARKER
    }

    /// Whether the page belongs to a file or to shared memory, as opposed to being anonymous.
    #[must_use]
    pub const fn is_file(self) -> bool {
        self.0 >> 61 & 1 == 1
    }

    /// The number of the frame that holds the page; `None` where the kernel does not tell it
    /// (without `CAP_SYS_ADMIN`) or the page is not present.
    #[must_use]
    pub const fn frame(self) -> Option<u64> {
        let frame = self.0 & ((1 << 55) - 1);
        if self.is_present() && frame != 0 { Some(frame) } else { None }
    }
}

/// The page table of a process, as `/proc/PID/pagemap` shows it.
#[derive(Debug)]
pub struct PageTable {
    file: File,
}

impl PageTable {
    /// Opens the page table of process `pid`.
    ///
    /// # Errors
    /// `NotFound` when there is no such process; `PermissionDenied` without the right to trace it.
    pub fn open(pid: i32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/pagemap"))? })
    }

    /// Reads the entries of consecutive pages from the page that holds `first`; returns how many
    /// were filled: fewer than asked for at the end of the address space, none once the process has
    /// ended. 20 to 50 ns a page.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(&self, first: HostAddress, entries: &mut [PageEntry]) -> io::Result<usize> {
        let mut buffer = [0; 4096];
        let mut filled = 0;
        while filled < entries.len() {
            let bytes = buffer.len().min((entries.len() - filled) * 8);
            let at = ((first.0 >> PAGE_SHIFT) as u64 + filled as u64) * 8;
            let read = self.file.read_at(&mut buffer[..bytes], at)?;
            let (words, _) = buffer[..read].as_chunks();
            for (entry, word) in entries[filled..].iter_mut().zip(words) {
                *entry = PageEntry(u64::from_ne_bytes(*word));
            }
            filled += words.len();
            if read < bytes {
                break;
            }
        }
        Ok(filled)
    }
}

/// What the kernel knows of one frame of memory (`include/uapi/linux/kernel-page-flags.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFlags(u64);

impl FrameFlags {
    /// KSM shares the frame between pages (`KPF_KSM`).
    #[must_use]
    pub const fn is_ksm(self) -> bool {
        self.0 >> 21 & 1 == 1
    }

    /// It is the kernel's zero page, small or huge (`KPF_ZERO_PAGE`).
    #[must_use]
    pub const fn is_zero_page(self) -> bool {
        self.0 >> 24 & 1 == 1
    }
}

/// The flags of all frames: `/proc/kpageflags`, for root alone.
#[derive(Debug)]
pub struct FrameTable {
    file: File,
}

impl FrameTable {
    /// Opens the table.
    ///
    /// # Errors
    /// `PermissionDenied` for all but root, `NotFound` where the kernel was built without it.
    pub fn open() -> io::Result<Self> {
        Ok(Self { file: File::open("/proc/kpageflags")? })
    }

    /// The flags of frame `frame`. One system call.
    ///
    /// # Errors
    /// The kernel's; `UnexpectedEof` for a frame that does not exist.
    pub fn flags(&self, frame: u64) -> io::Result<FrameFlags> {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, frame * 8)?;
        Ok(FrameFlags(u64::from_ne_bytes(word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_units::PAGE_BYTES;

    fn own_pid() -> i32 {
        std::process::id().cast_signed()
    }

    #[test]
    fn a_process_that_was_not_waited_for_has_ended() {
        assert!(!has_ended(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let begun = std::time::Instant::now();
        while !has_ended(child.id()) && begun.elapsed().as_secs() < 30 {
            std::thread::yield_now();
        }
        assert!(has_ended(child.id()));
        child.wait().unwrap();
        assert!(has_ended(child.id()));
    }

    /// Returns how many descriptors the process's table has room for.
    fn table_size() -> u32 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
        line.unwrap().trim().parse().unwrap()
    }

    #[test]
    fn a_table_of_descriptors_has_room_for_what_was_reserved() {
        let most = open_files_max().map_or(u32::MAX, |most| most as u32);
        reserve_descriptors(600).unwrap();
        assert!(table_size() >= most.min(600));
        reserve_descriptors(5000).unwrap();
        reserve_descriptors(1).unwrap();
        assert!(table_size() >= most.min(600));
    }

    #[test]
    fn memory_is_read_in_order_of_the_spans() {
        let bytes: Vec<u8> = (0..=255).collect();
        let span = |at: usize, bytes: usize, of: &[u8]| MemorySpan {
            address: HostAddress(of.as_ptr().addr() + at),
            bytes,
        };
        let mut into = [0; 7];
        let spans = [span(200, 3, &bytes), span(5, 2, &bytes)];
        assert_eq!(read_memory(own_pid(), &spans, &mut into).unwrap(), 5);
        assert_eq!(into, [200, 201, 202, 5, 6, 0, 0]);
    }

    #[test]
    fn unmapped_memory_is_an_error() {
        let span = MemorySpan { address: HostAddress(PAGE_BYTES), bytes: 8 };
        let error = read_memory(own_pid(), &[span], &mut [0; 8]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn the_pagemap_tells_touched_pages_from_untouched_ones() {
        // Larger than malloc's threshold: fresh, zeroed pages of its own, none touched yet.
        let mut memory = vec![0_u8; 64 * PAGE_BYTES];
        let first = memory.as_ptr().addr().next_multiple_of(PAGE_BYTES);
        let offset = first - memory.as_ptr().addr();
        memory[offset + 3 * PAGE_BYTES] = 1;
        let mut entries = [PageEntry::default(); 40];
        let pagemap = PageTable::open(own_pid()).unwrap();
        assert_eq!(pagemap.read(HostAddress(first), &mut entries).unwrap(), 40);
        assert!(entries[3].is_present() && !entries[3].is_file() && !entries[3].is_swapped());
        if entries[20].is_present() {
            bindery_testkit::skipped!("transparent huge pages populated the whole allocation");
            return;
        }
        assert_eq!(entries[20].frame(), None);
    }
}
