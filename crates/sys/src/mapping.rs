//! Mappings of this process: owned ones, and the few operations on memory that somebody else owns.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    sync::{
        OnceLock,
        atomic::{Ordering, compiler_fence},
    },
};

use bindery_units::{HostAddress, PAGE_BYTES};

use crate::pidfd::PeerProcess;
use crate::process::Origin;

/// A mapping that is unmapped when it is dropped.
#[derive(Debug)]
pub struct Mapping {
    address: HostAddress,
    bytes: usize,
    /// The only process that has it, if its children have not.
    kept: OnceLock<Origin>,
}

// Raw calls: symbols such as `mmap` may be interposed by a preload library in the same process,
// which must never see these.
fn raw_mmap(
    address: usize,
    bytes: usize,
    protection: i32,
    flags: i32,
    file: i32,
    offset: u64,
) -> io::Result<HostAddress> {
    // SAFETY: whether the mapping may replace another is for the (unsafe) callers that pass
    // MAP_FIXED to say; otherwise the kernel picks unused addresses.
    let result =
        unsafe { crate::syscall!(libc::SYS_mmap, address, bytes, protection, flags, file, offset) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(HostAddress(result as usize)) }
}

/// What one entry of the second level of page tables maps, in bytes, with pages of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// How addresses are kept from others.
const RESERVE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

impl Mapping {
    const fn of(address: HostAddress, bytes: usize) -> Self {
        Self { address, bytes, kept: OnceLock::new() }
    }

    /// Private anonymous memory, zero, readable and writable, not reserved against swap.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let address = raw_mmap(0, bytes, READ_WRITE, flags, -1, 0)?;
        Ok(Self::of(address, bytes))
    }

    /// A file mapped shared and readable; writable too if `writable`.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn shared(file: BorrowedFd<'_>, bytes: usize, writable: bool) -> io::Result<Self> {
        Self::shared_at(file, 0, bytes, writable)
    }

    /// Maps a file shared and without any access (`PROT_NONE`): touching the mapping is `SIGSEGV` until
    /// [`reveal`](Self::reveal). The kernel fills none of it either, as it fills mappings that can be read
    /// where all are locked as they are made (mlockall(2), `MCL_FUTURE`).
    ///
    /// # Errors
    /// As mmap(2).
    pub fn hidden(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let address = raw_mmap(0, bytes, libc::PROT_NONE, flags, file.as_raw_fd(), 0)?;
        Ok(Self::of(address, bytes))
    }

    /// Makes a [hidden](Self::hidden) mapping readable, and any mapping no more than that: writing to it is
    /// `SIGSEGV` from then on. Fills nothing.
    ///
    /// # Errors
    /// As mprotect(2).
    pub fn reveal(&self) -> io::Result<()> {
        let (start, read) = (self.address.0, libc::PROT_READ);
        // SAFETY: the mapping is this value's own, and the call changes none of its content.
        let result = unsafe { crate::syscall!(libc::SYS_mprotect, start, self.bytes, read) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Keeps the kernel from joining the mapping's pages to huge ones (`MADV_NOHUGEPAGE`). Does nothing in a
    /// kernel without huge pages.
    pub fn keep_small(&self) {
        // SAFETY: this advice changes no content. A kernel without huge pages does not know it.
        let _ = unsafe { advise(self.address, self.bytes, libc::MADV_NOHUGEPAGE) };
    }

    /// Maps a file shared from `offset_bytes` on, which is a multiple of the page size: readable, and
    /// writable too if `writable`.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn shared_at(
        file: BorrowedFd<'_>,
        offset_bytes: u64,
        bytes: usize,
        writable: bool,
    ) -> io::Result<Self> {
        let protection = if writable { READ_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let address = raw_mmap(0, bytes, protection, flags, file.as_raw_fd(), offset_bytes)?;
        Ok(Self::of(address, bytes))
    }

    /// A file mapped shared and read-only from its beginning, which is put at a multiple of
    /// [`HUGE_PAGE_BYTES`]: only then can huge pages of the file be mapped as such.
    ///
    /// # Errors
    /// As mmap(2).
    ///
    /// # Panics
    /// If `bytes` is not a multiple of the page size.
    pub fn shared_aligned(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        Self::aligned(bytes, libc::PROT_READ, flags, file.as_raw_fd())
    }

    /// As [`anonymous`](Self::anonymous), at a multiple of [`HUGE_PAGE_BYTES`].
    ///
    /// # Errors
    /// As mmap(2).
    ///
    /// # Panics
    /// If `bytes` is not a multiple of the page size.
    pub fn anonymous_aligned(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::aligned(bytes, READ_WRITE, flags, -1)
    }

    /// As [`anonymous`](Self::anonymous), of huge pages where the kernel gives them
    /// (/sys/kernel/mm/transparent_hugepage/enabled), each filled at the first touch of any of it.
    ///
    /// # Errors
    /// As mmap(2).
    ///
    /// # Panics
    /// If `bytes` is not a multiple of the page size.
    pub fn huge(bytes: usize) -> io::Result<Self> {
        let mapping = Self::anonymous_aligned(bytes)?;
        // SAFETY: this advice changes no content. A kernel without huge pages does not know it.
        let _ = unsafe { advise(mapping.address, bytes, libc::MADV_HUGEPAGE) };
        Ok(mapping)
    }

    /// Addresses that nothing is mapped at, from a multiple of [`HUGE_PAGE_BYTES`] on: to be filled with
    /// [`replace_with_view`], and emptied with [`reserve_again`].
    ///
    /// # Errors
    /// As mmap(2).
    ///
    /// # Panics
    /// If `bytes` is not a multiple of the page size.
    pub fn reserved(bytes: usize) -> io::Result<Self> {
        Self::aligned(bytes, libc::PROT_NONE, RESERVE, -1)
    }

    /// Maps at a multiple of [`HUGE_PAGE_BYTES`].
    fn aligned(bytes: usize, protection: i32, flags: i32, file: i32) -> io::Result<Self> {
        assert!(bytes.is_multiple_of(PAGE_BYTES), "{bytes} bytes are not whole pages");
        let room = raw_mmap(0, bytes + HUGE_PAGE_BYTES, libc::PROT_NONE, RESERVE, -1, 0)?;
        // What of the room is not taken is unmapped again, in any case.
        let room = Self::of(room, bytes + HUGE_PAGE_BYTES);
        let start = room.address.0.next_multiple_of(HUGE_PAGE_BYTES);
        let address = raw_mmap(start, bytes, protection, flags | libc::MAP_FIXED, file, 0)?;
        let (before, end) = (start - room.address.0, start + bytes);
        let after = room.address.0 + room.bytes - end;
        std::mem::forget(room);
        // SAFETY: both are parts of the room, which is ours, and of which nobody else knows. Nothing at
        // all is EINVAL and does no harm.
        let (_, _) =
            unsafe { (unmap(HostAddress(start - before), before), unmap(HostAddress(end), after)) };
        Ok(Self::of(address, bytes))
    }

    /// Tells the kernel that a mapping of a file is read here and there, so that a fault reads no more
    /// than it must.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn advise_random(&self) -> io::Result<()> {
        // SAFETY: this advice changes no content.
        unsafe { advise(self.address, self.bytes, libc::MADV_RANDOM) }
    }

    /// Keeps the mapping from children that this process forks.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: this advice changes no content.
        unsafe { advise(self.address, self.bytes, libc::MADV_DONTFORK)? };
        self.kept.get_or_init(Origin::here);
        Ok(())
    }

    /// Keeps the mapping out of core dumps.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn keep_from_dumps(&self) -> io::Result<()> {
        // SAFETY: this advice changes no content.
        unsafe { advise(self.address, self.bytes, libc::MADV_DONTDUMP) }
    }

    /// Takes the pages of a shared file mapping out of the page tables, and gives back the tables
    /// where the kernel does that (`CONFIG_PT_RECLAIM`, since Linux 6.14). Reads find them again, for
    /// a fault.
    ///
    /// # Safety
    /// The mapping must be [`shared`](Self::shared): private memory loses its content.
    pub unsafe fn forget_tables(&self) {
        // SAFETY: the file keeps what a shared mapping of it shows.
        let _ = unsafe { advise(self.address, self.bytes, libc::MADV_DONTNEED) };
    }

    /// Where it begins.
    #[must_use]
    pub const fn address(&self) -> HostAddress {
        self.address
    }

    /// How long it is, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A pointer to its first byte.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.address.0 as *mut u8
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.kept.get().is_some_and(|origin| !origin.is_here()) {
            // A child has nothing there, or something of its own.
            return;
        }
        // SAFETY: the mapping is this value's own, and nothing borrowed from it outlives it.
        let Err(error) = (unsafe { unmap(self.address, self.bytes) }) else { return };
        // The kernel joins neighbours, and to take one out of their midst needs a mapping more than
        // there may be left. It stays mapped for nothing, and empty.
        assert!(error.raw_os_error() == Some(libc::ENOMEM), "an owned mapping can be unmapped");
        // SAFETY: as above. Locked memory stays full, and nobody can do anything about it.
        let _ = unsafe { advise(self.address, self.bytes, libc::MADV_DONTNEED) };
    }
}

/// Puts a private, writable mapping of a file's pages in place of what is at `start`.
///
/// # Safety
/// The range must be the caller's to replace.
///
/// # Errors
/// As mmap(2). `ENOMEM` if the process has too many mappings, and then nothing has changed; or if
/// the kernel has no memory, and then the range may be unmapped (`vms_abort_munmap_vmas` in the
/// kernel's mm/vma.c).
pub unsafe fn replace_with_file(
    start: HostAddress,
    bytes: usize,
    file: BorrowedFd<'_>,
    offset_bytes: u64,
) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
    raw_mmap(start.0, bytes, READ_WRITE, flags, file.as_raw_fd(), offset_bytes).map(drop)
}

/// Puts a shared, read-only mapping of a file from its beginning in place of what is at `start`.
///
/// # Safety
/// The range must be the caller's to replace.
///
/// # Errors
/// As [`replace_with_file`].
pub unsafe fn replace_with_view(
    start: HostAddress,
    bytes: usize,
    file: BorrowedFd<'_>,
) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    raw_mmap(start.0, bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0).map(drop)
}

/// Keeps a range from children that this process forks, and out of core dumps.
///
/// # Safety
/// The range must be the caller's.
///
/// # Errors
/// As madvise(2).
pub unsafe fn keep_to_itself(start: HostAddress, bytes: usize) -> io::Result<()> {
    // SAFETY: this advice changes no content; the range is the caller's.
    unsafe {
        advise(start, bytes, libc::MADV_DONTFORK)?;
        advise(start, bytes, libc::MADV_DONTDUMP)
    }
}

/// Empties a range of [reserved](Mapping::reserved) addresses.
///
/// # Safety
/// The range must be the caller's, and nobody may read it any more.
///
/// # Errors
/// As [`replace_with_file`]: what was mapped there then is, or nothing is.
pub unsafe fn reserve_again(start: HostAddress, bytes: usize) -> io::Result<()> {
    raw_mmap(start.0, bytes, libc::PROT_NONE, RESERVE | libc::MAP_FIXED, -1, 0).map(drop)
}

/// Reserves a range that a call which failed has left unmapped.
///
/// # Errors
/// As mmap(2); `EEXIST` if somebody has mapped something there meanwhile.
pub fn reserve_hole(start: HostAddress, bytes: usize) -> io::Result<()> {
    let flags = RESERVE | libc::MAP_FIXED_NOREPLACE;
    raw_mmap(start.0, bytes, libc::PROT_NONE, flags, -1, 0).map(drop)
}

/// Puts fresh, absent, anonymous memory in place of what is at `start`.
///
/// # Safety
/// The range must be the caller's to replace.
///
/// # Errors
/// As mmap(2). `ENOMEM` if the process has too many mappings, and then nothing has changed; or if
/// the kernel has no memory, and then the range may be unmapped (`vms_abort_munmap_vmas` in the
/// kernel's mm/vma.c).
pub unsafe fn replace_with_anonymous(start: HostAddress, bytes: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    raw_mmap(start.0, bytes, READ_WRITE, flags, -1, 0).map(drop)
}

/// Maps fresh, absent, anonymous memory at `start`, where nothing is mapped.
///
/// # Errors
/// As mmap(2); `EEXIST` if something is mapped there.
pub fn fill_gap(start: HostAddress, bytes: usize) -> io::Result<()> {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = kind | libc::MAP_FIXED_NOREPLACE;
    raw_mmap(start.0, bytes, READ_WRITE, flags, -1, 0).map(drop)
}

/// Returns true if every page of a range is mapped, populated or not. One system call, which looks at
/// each mapping of the range.
#[must_use]
pub fn is_mapped(start: HostAddress, bytes: usize) -> bool {
    // SAFETY: msync(2) with this flag alone starts nothing and writes nothing: it looks for holes.
    unsafe { crate::syscall!(libc::SYS_msync, start.0, bytes, libc::MS_ASYNC) == 0 }
}

/// Whether the kernel gives out memory that it may not have (`vm.overcommit_memory` is not 2), as far
/// as it says. Allocates nothing.
#[must_use]
pub fn is_overcommitted() -> bool {
    let mut policy = [0];
    let file = File::open("/proc/sys/vm/overcommit_memory");
    file.and_then(|mut file| file.read_exact(&mut policy)).is_ok() && policy != *b"2"
}

/// Moves the mapping of `source` over what is at `destination`, pages and all, atomically.
///
/// # Safety
/// Both ranges must be the caller's; the source is unmapped afterwards.
///
/// # Errors
/// As mremap(2). `ENOMEM` if the process has too many mappings, and then nothing has changed; or if
/// the kernel has no memory, and then the destination may be unmapped: the kernel unmaps it first
/// (`mremap_to` in mm/mremap.c). The source is as it was.
pub unsafe fn remap_over(
    source: HostAddress,
    destination: HostAddress,
    bytes: usize,
) -> io::Result<()> {
    // SAFETY: the caller's contract.
    unsafe { raw_mremap(source, destination, bytes, 0) }
}

/// Moves the pages of `source` over what is at `destination`, atomically. `source` stays mapped, and
/// is empty: a third of the time of [`remap_over`] is spent on cutting it out.
///
/// # Safety
/// Both ranges must be the caller's, and `source` private anonymous memory.
///
/// # Errors
/// As for [`remap_over`], and `ENOMEM` after the destination was unmapped if the process is beyond a
/// limit (`RLIMIT_AS`, `RLIMIT_DATA`), or memory is not overcommitted and there is none left.
pub unsafe fn move_over(
    source: HostAddress,
    destination: HostAddress,
    bytes: usize,
) -> io::Result<()> {
    // SAFETY: the caller's contract.
    unsafe { raw_mremap(source, destination, bytes, libc::MREMAP_DONTUNMAP) }
}

unsafe fn raw_mremap(
    source: HostAddress,
    destination: HostAddress,
    bytes: usize,
    flags: i32,
) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | flags;
    // SAFETY: the caller's contract.
    let result =
        unsafe { crate::syscall!(libc::SYS_mremap, source.0, bytes, bytes, flags, destination.0) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Unmaps a range that is not a [`Mapping`].
///
/// # Safety
/// The range must be the caller's.
///
/// # Errors
/// As munmap(2).
pub unsafe fn unmap(start: HostAddress, bytes: usize) -> io::Result<()> {
    // SAFETY: the caller's contract.
    let result = unsafe { crate::syscall!(libc::SYS_munmap, start.0, bytes) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the kernel advice on a range, `MADV_*`.
///
/// # Safety
/// Advice such as `MADV_DONTNEED` discards content: the range must be the caller's.
///
/// # Errors
/// As madvise(2).
pub unsafe fn advise(start: HostAddress, bytes: usize, advice: i32) -> io::Result<()> {
    // SAFETY: the caller's contract.
    let result = unsafe { crate::syscall!(libc::SYS_madvise, start.0, bytes, advice) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The most ranges that [`advise_all`] gives the kernel at once (`UIO_MAXIOV`).
const RANGES_PER_CALL_MAX: usize = 1024;

/// Gives the kernel the same advice on many ranges, `MADV_*`. The processors on which the process runs are
/// interrupted once for a thousand ranges that leave the page tables, and not once for each
/// (process_madvise(2) with `MADV_DONTNEED`, Linux 6.16): on two processors, 0.9 µs a page instead of 17.
///
/// # Safety
/// As for [`advise`], for each range.
///
/// # Errors
/// As madvise(2); ranges before the one that failed were advised.
pub unsafe fn advise_all(ranges: &[(HostAddress, usize)], advice: i32) -> io::Result<()> {
    for ranges in ranges.chunks(RANGES_PER_CALL_MAX) {
        // SAFETY: the caller's contract.
        let advised = if ranges.len() > 1 { unsafe { advise_at_once(ranges, advice) } } else { 0 };
        for &(start, bytes) in &ranges[advised..] {
            // SAFETY: the caller's contract.
            unsafe { advise(start, bytes, advice)? };
        }
    }
    Ok(())
}

/// Advises as many ranges as the kernel takes at once, and returns how many those were: none before
/// Linux 6.13, where a process may not advise itself so.
///
/// # Safety
/// As for [`advise_all`].
unsafe fn advise_at_once(ranges: &[(HostAddress, usize)], advice: i32) -> usize {
    // Without a descriptor they are advised one by one.
    let own = PeerProcess::of_pid(std::process::id().cast_signed()).ok();
    let Some(own) = own.as_ref().and_then(PeerProcess::descriptor) else { return 0 };
    let vector = ranges.iter().map(|&(start, bytes)| libc::iovec {
        iov_base: start.0 as *mut libc::c_void,
        iov_len: bytes,
    });
    let vector: Vec<libc::iovec> = vector.collect();
    let call = libc::SYS_process_madvise;
    // SAFETY: the vector is readable for its length; else the caller's contract.
    let advised =
        unsafe { crate::syscall!(call, own.as_raw_fd(), vector.as_ptr(), vector.len(), advice, 0) };
    let Ok(advised) = usize::try_from(advised) else { return 0 };
    // A range that was advised in part is advised again.
    let mut left = advised;
    let is_done = |(_, bytes): &&(HostAddress, usize)| {
        let is_done = *bytes <= left;
        left = left.saturating_sub(*bytes);
        is_done
    };
    ranges.iter().take_while(is_done).count()
}

/// What the kernel maps around a page of a file that is read: `fault_around_bytes` as it is by
/// default (mm/memory.c). If it is set lower, what is not mapped is mapped when it is read.
const FAULT_AROUND_PAGES: usize = 16;

/// Has a file's pages mapped, by reading a byte in each block that the kernel maps at once: a third
/// of the time of `MADV_POPULATE_READ`, which walks to every page.
///
/// # Safety
/// The range must be readable, and the file must reach to its end.
pub unsafe fn read_around(start: HostAddress, bytes: usize) {
    let (first, end) = (start.0 / PAGE_BYTES, (start.0 + bytes) / PAGE_BYTES);
    let blocks = (first + 1..end).filter(|page| page.is_multiple_of(FAULT_AROUND_PAGES));
    for page in std::iter::once(first).chain(blocks) {
        // SAFETY: the caller's contract. Volatile: for the fault alone.
        unsafe { ((page * PAGE_BYTES) as *const u8).read_volatile() };
    }
}

/// Copies a page between memory that others may write meanwhile: see [`copy_changing`].
///
/// # Safety
/// `source` must be readable and `destination` writable for 4096 bytes each; they may not overlap.
pub unsafe fn copy_page(source: *const u8, destination: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { copy_changing(source, destination, PAGE_BYTES) };
}

/// Copies memory that others may write meanwhile: the kernel, other processes, a guest. A byte that
/// changes is either the old or the new one, and the copy does not change any more.
///
/// # Safety
/// `source` must be readable and `destination` writable for `bytes`; they may not overlap.
pub unsafe fn copy_changing(source: *const u8, destination: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract. No reference is made and no value of a type is read, so nothing is
    // claimed of the bytes but that they can be loaded; whatever they are, they are bytes.
    unsafe { ptr::copy_nonoverlapping(source, destination, bytes) };
    // The compiler takes memory that it sees nobody write for unchanged, and may load the source again
    // where the copy is used. It may not from here on: for all that it knows the source was written.
    compiler_fence(Ordering::SeqCst);
}
