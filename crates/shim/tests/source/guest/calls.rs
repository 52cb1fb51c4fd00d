//! Calls about memory of which pages are missing.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

use bindery_units::PAGE_BYTES;

use super::Memory;
use crate::content::{PAGES, is_zero, word};

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const GUARD_INSTALL: i32 = 102;
const GUARD_REMOVE: i32 = 103;

/// Pages that a call is about: this one and nine behind it.
const TEN: usize = 10 * PAGE_BYTES;

pub(super) fn play(memory: Memory) -> Box<dyn Fn()> {
    let at = |page: u32| memory.page(page) as *mut c_void;
    // SAFETY: all memory is the test's, and what it does with it is what the test is about.
    unsafe {
        assert_eq!(libc::munmap(at(100), TEN), 0);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        for page in [100, 200] {
            // Into the hole, and over pages that are missing.
            assert_eq!(libc::mmap(at(page), TEN, READ_WRITE, flags, -1, 0), at(page));
        }
        assert_eq!(libc::mprotect(at(300), TEN, libc::PROT_READ), 0);
        ten(300).for_each(|page| memory.check(page));
        assert_eq!(libc::mprotect(at(300), TEN, READ_WRITE), 0);
        assert_eq!(libc::mprotect(at(400), TEN, libc::PROT_NONE), 0);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(libc::mprotect(at(400), TEN, READ_WRITE), 0);
        assert_eq!(libc::mlock(at(500), TEN), 0);

        // Some of it is here already, and all of it afterwards.
        memory.check(603);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let moved = libc::mremap(at(600), TEN, TEN, flags, null_mut::<c_void>());
        assert_ne!(moved, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        for page in ten(600) {
            let there = moved as usize + (page as usize - 600) * PAGE_BYTES;
            assert_eq!((there as *const u64).add(7).read_volatile(), word(page, 7), "page {page}");
            memory.check_zero(page);
        }
        watch(at(700));
        fork(memory);
        discard(memory);

        let mut copy = [0u64; 4];
        let local = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: size_of_val(&copy) };
        let remote = libc::iovec { iov_base: at(1200), ..local };
        let pid = std::process::id().cast_signed();
        assert_eq!(libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0), 32);
        assert!(copy.iter().enumerate().all(|(at, found)| *found == word(1200, at)));
    }
    Box::new(move || check(memory))
}

fn ten(page: u32) -> std::ops::Range<u32> {
    page..page + 10
}

/// Watches ten pages by a userfaultfd of its own.
unsafe fn watch(start: *mut c_void) {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    // SAFETY: the structures are those of the requests.
    unsafe {
        let faults = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
        if faults < 0 {
            return;
        }
        let mut api = [0xaau64, 0, 0];
        assert_eq!(libc::ioctl(faults, API, api.as_mut_ptr()), 0);
        let mut register = [start as u64, TEN as u64, 1, 0];
        let registered = libc::ioctl(faults, REGISTER, register.as_mut_ptr());
        assert_eq!(registered, 0, "{}", std::io::Error::last_os_error());
        libc::close(faults);
    }
}

/// Lets a child read a page, and returns its end.
unsafe fn child_reads(memory: Memory, page: u32) -> i32 {
    // SAFETY: the child reads, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(memory.read(page, 7) != word(page, 7)));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    }
}

unsafe fn fork(memory: Memory) {
    // SAFETY: as for the caller.
    unsafe {
        for page in [795, 820] {
            assert!(!is_zero(page));
            let status = child_reads(memory, page);
            let has_none = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV;
            assert!(has_none, "a child has no memory of which pages are missing: {status:x}");
        }
        let start = memory.page(800) as *mut c_void;
        assert_eq!(libc::madvise(start, TEN, libc::MADV_DOFORK), 0);
        assert_eq!(child_reads(memory, 801), 0);
    }
}

unsafe fn discard(memory: Memory) {
    let at = |page: u32| memory.page(page) as *mut c_void;
    // SAFETY: as for the caller.
    unsafe {
        assert_eq!(libc::madvise(at(900), TEN, libc::MADV_DONTNEED), 0);
        assert_eq!(libc::madvise(at(1000), TEN, libc::MADV_FREE), 0);
        assert_eq!(libc::madvise(at(1300), TEN, libc::MADV_REMOVE), -1, "it is for files");
        // Before Linux 6.13 there are no guards.
        if libc::madvise(at(1100), TEN, GUARD_INSTALL) == 0 {
            assert_eq!(libc::madvise(at(1100), TEN, GUARD_REMOVE), 0);
        } else {
            assert_eq!(libc::madvise(at(1100), TEN, libc::MADV_DONTNEED), 0);
        }
        let zeros =
            libc::mmap(null_mut(), 1, READ_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(zeros, libc::MAP_FAILED);
    }
}

fn check(memory: Memory) {
    for page in 0..PAGES {
        match page / 10 * 10 {
            100 | 200 | 600 | 900 | 1100 => memory.check_zero(page),
            1000 => {
                let found = memory.read(page, 7);
                assert!(found == 0 || found == word(page, 7), "page {page}");
            }
            _ => memory.check(page),
        }
    }
}
