//! Whether a process is a copy of the one that it was when a mark was set.
//!
//! A child of fork(2) has all memory of its parent and none of its threads and kernel objects, and so
//! has a child of clone(2), `_Fork` or a system call made directly, of which no fork handler hears. The
//! kernel tells them all: it leaves memory that is advised `MADV_WIPEONFORK` out of every copy of an
//! address space. A child that shares the memory (vfork, `CLONE_VM`) is no copy and sees the mark.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use bindery_units::PAGE_BYTES;

use crate::mapping::{self, Mapping};

/// A mark in memory that no copy of the process has. Lives as long as the process.
#[derive(Clone, Copy, Debug)]
pub struct Mark(&'static AtomicU32);

impl Mark {
    /// Sets a mark. It takes a page.
    ///
    /// # Errors
    /// When memory or mappings run out.
    pub fn set() -> io::Result<Self> {
        let page = Mapping::anonymous(PAGE_BYTES)?;
        // SAFETY: the page is ours and empty; the advice is about copies of it.
        unsafe { mapping::advise(page.address(), page.bytes(), libc::MADV_WIPEONFORK)? };
        // SAFETY: the page is zeroed, aligned, and stays mapped, as its owner is forgotten below.
        let mark = unsafe { &*page.as_ptr().cast::<AtomicU32>() };
        std::mem::forget(page);
        // Relaxed, here and below: a copy finds zeros whoever wrote what when, and nothing is
        // published with the mark.
        mark.store(1, Ordering::Relaxed);
        Ok(Self(mark))
    }

    /// Returns true in the process that set the mark, and false in copies of it. One load.
    #[must_use]
    pub fn is_here(self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn look(mark: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the test's own mark, or a copy of it.
        let mark = unsafe { *mark.cast::<Mark>() };
        mark.is_here().into()
    }

    /// Returns true if a child made by clone(2) sees the mark.
    fn child_sees(flags: libc::c_int, mut mark: Mark) -> bool {
        let mut stack = vec![0u128; 4096];
        let top = stack.as_mut_ptr_range().end.cast();
        let argument = (&raw mut mark).cast();
        // SAFETY: the stack is the child's alone, and outlives it, as it is waited for.
        let child = unsafe { libc::clone(look, top, flags | libc::SIGCHLD, argument) };
        let mut status = 0;
        // SAFETY: our own child; the status is writable.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(ended == child && libc::WIFEXITED(status));
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn a_copy_knows_that_it_is_one() {
        let mark = Mark::set().unwrap();
        assert!(mark.is_here());
        assert!(!child_sees(0, mark), "a child that no fork handler hears of");
        assert!(mark.is_here());
    }

    #[test]
    fn who_shares_the_memory_sees_the_mark() {
        let mark = Mark::set().unwrap();
        assert!(child_sees(libc::CLONE_VM | libc::CLONE_VFORK, mark));
    }
}
