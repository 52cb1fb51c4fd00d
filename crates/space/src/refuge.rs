//! Where the content of merged pages goes whose place a failed mmap(2) has left unmapped.
//!
//! The memory is had beforehand: the kernel puts what is mapped anywhere into the first hole that it fits,
//! and that would be this one.

use std::{io, mem::ManuallyDrop, thread, time::Duration};

use bindery_sys::mapping::{self, Mapping};
use bindery_units::{HostAddress, PAGE_BYTES};

use crate::transfer::PageSet;

/// Memory for pages whose place is lost, one for each page of a window.
#[derive(Debug)]
pub(crate) struct Refuge {
    memory: ManuallyDrop<Mapping>,
    pages: u32,
    /// Those that were moved away: whatever is mapped there is not ours.
    moved: PageSet,
}

impl Refuge {
    pub(crate) fn new(pages: u32) -> io::Result<Self> {
        let memory = ManuallyDrop::new(Mapping::anonymous(pages as usize * PAGE_BYTES)?);
        Ok(Self { memory, pages, moved: PageSet::default() })
    }

    /// Puts a copy of `source` where nothing is mapped, in one step.
    ///
    /// # Safety
    /// `source` is a readable page that does not change, and the place is the caller's.
    pub(crate) unsafe fn move_copy(&mut self, page: u32, source: *const u8, to: HostAddress) {
        let copy = self.memory.address().plus_pages(page);
        // SAFETY: the caller's contract; the copy is ours.
        unsafe { mapping::copy_page(source, copy.0 as *mut u8) };
        // The page's content is nowhere else in the guest, so there is nothing to do but to try again.
        // SAFETY: the caller's contract.
        while unsafe { mapping::remap_over(copy, to, PAGE_BYTES) }.is_err() {
            thread::sleep(Duration::from_millis(1));
        }
        self.moved.insert(page);
    }
}

impl Drop for Refuge {
    fn drop(&mut self) {
        if self.moved.is_empty() {
            // SAFETY: dropped once, here.
            return unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
        for (first, count) in PageSet::first(self.pages).without(self.moved).spans() {
            let start = self.memory.address().plus_pages(first);
            // If it fails, for want of a mapping, they stay for nothing.
            // SAFETY: these pages are still ours.
            let _ = unsafe { mapping::unmap(start, count as usize * PAGE_BYTES) };
        }
    }
}
