//! `PAGEMAP_SCAN` (Linux 6.7): which pages of a range are there, and which were written.
//!
//! See Documentation/admin-guide/mm/pagemap.rst and `include/uapi/linux/fs.h`.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

use bindery_units::{HostAddress, PAGE_BYTES};

/// What a page is, `PAGE_IS_*`.
pub mod category {
    /// In a mapping that is registered for asynchronous write protection.
    pub const WP_ALLOWED: u64 = 1 << 0;
    /// Written since it was last write-protected.
    pub const WRITTEN: u64 = 1 << 1;
    /// Backed by a file's page.
    pub const FILE: u64 = 1 << 2;
    /// There.
    pub const PRESENT: u64 = 1 << 3;
    /// In swap, or a marker.
    pub const SWAPPED: u64 = 1 << 4;
    /// The kernel's zero page.
    pub const ZERO: u64 = 1 << 5;
    /// Part of a huge page that is mapped as such.
    pub const HUGE: u64 = 1 << 6;
}

/// Consecutive pages of the same categories.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Those of the categories asked for that hold.
    pub categories: u64,
}

impl Extent {
    /// How many pages.
    #[must_use]
    pub const fn pages(&self) -> usize {
        (self.end - self.start) as usize / PAGE_BYTES
    }
}

/// Which pages to report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query {
    /// Categories that must all hold (after inversion).
    pub require: u64,
    /// Categories of which one must hold (after inversion), if any are named.
    pub any_of: u64,
    /// Categories that are inverted before they are looked at.
    pub invert: u64,
    /// Categories to return.
    pub report: u64,
    /// Write-protect the pages reported, atomically with reading them; mappings without
    /// asynchronous write protection are passed over.
    pub protect: bool,
    /// Answer `EPERM` instead of passing over a mapping without asynchronous write protection.
    pub refuse_unprotectable: bool,
}

impl Query {
    /// Pages with a content, in memory, in swap or under way to another frame; not zeros that the kernel made.
    pub const CONTENT: Self = Self {
        require: category::ZERO,
        any_of: category::PRESENT | category::SWAPPED,
        invert: category::ZERO,
        report: category::PRESENT,
        protect: false,
        refuse_unprotectable: false,
    };
}

/// A process's page map.
#[derive(Debug)]
pub struct Pagemap(File);

/// Where a scan stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// How many extents were written.
    pub extents: usize,
    /// Where to go on: the end of the range if all of it was looked at.
    pub resume_at: HostAddress,
}

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const IOC_SCAN: libc::c_ulong = 0xc060_6610;
const FLAG_WP_MATCHING: u64 = 1;
const FLAG_CHECK_WPASYNC: u64 = 2;
const _: () = assert!(size_of::<ScanArg>() == 96 && size_of::<Extent>() == 24);

/// The most extents that one call to the kernel may return: its `walk_end` is stale beyond 512.
pub const EXTENTS_PER_CALL_MAX: usize = 512;

impl Pagemap {
    /// The page map of this process. Open it early: after a change of user it is refused.
    ///
    /// # Errors
    /// As open(2).
    pub fn of_self() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(Self)
    }

    /// The page map of another process. To be scanned without protecting: that would hide pages
    /// from whoever tracks writes over there.
    ///
    /// # Errors
    /// `NotFound` if there is no such process; `PermissionDenied` without the right to trace it.
    pub fn of(pid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/pagemap")).map(Self)
    }

    /// Whether the memory that this is the page map of is gone: its process has ended, or executes
    /// another program, which has a page map of its own. A scan finds no mapping then, and says no
    /// more than that. One system call.
    ///
    /// # Errors
    /// As read(2).
    pub fn is_gone(&self) -> io::Result<bool> {
        // An entry of the first page, mapped or not; without memory the file has no entries.
        self.0.read_at(&mut [0; 8], 0).map(|bytes| bytes == 0)
    }

    /// Scans a range into `extents`, from its start until its end or until `extents` (at most
    /// [`EXTENTS_PER_CALL_MAX`] of it) is full.
    ///
    /// # Errors
    /// `EPERM`, `EINVAL`, `EFAULT` as the kernel says; `ENOTTY` before Linux 6.7.
    ///
    /// # Panics
    /// If `extents` is empty.
    pub fn scan(
        &self,
        start: HostAddress,
        bytes: usize,
        query: Query,
        extents: &mut [Extent],
    ) -> io::Result<Scanned> {
        assert!(!extents.is_empty(), "a scan needs room for its answer");
        let protect = if query.protect { FLAG_WP_MATCHING } else { 0 };
        let check = if query.refuse_unprotectable { FLAG_CHECK_WPASYNC } else { 0 };
        let room = extents.len().min(EXTENTS_PER_CALL_MAX);
        let end = start.plus(bytes);
        let mut argument = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: protect | check,
            start: start.0 as u64,
            end: end.0 as u64,
            walk_end: 0,
            vec: extents.as_mut_ptr() as u64,
            vec_len: room as u64,
            max_pages: 0,
            category_inverted: query.invert,
            category_mask: query.require,
            category_anyof_mask: query.any_of,
            return_mask: query.report,
        };
        // SAFETY: the argument is the structure that the request expects, and `extents` is writable
        // for `room` elements. Protection delays writes and changes no content.
        let found = unsafe {
            crate::syscall!(libc::SYS_ioctl, self.0.as_raw_fd(), IOC_SCAN, &raw mut argument)
        };
        if found < 0 {
            return Err(io::Error::last_os_error());
        }
        let extents_found = found as usize;
        // With room to spare the walk reached the end, whatever walk_end says; otherwise that may lag
        // behind what was reported, and never runs ahead of it.
        let resume_at = match extents[..extents_found].last() {
            Some(last) if extents_found == room => argument.walk_end.max(last.end),
            _ => end.0 as u64,
        };
        let resume_at = HostAddress(resume_at as usize);
        Ok(Scanned { extents: extents_found, resume_at })
    }
}
