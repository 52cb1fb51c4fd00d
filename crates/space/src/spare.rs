//! Spare pages: filled first, then moved into a guest's memory in one step.
//!
//! A page that leaves the store must be private anonymous memory again, and no thread may see it
//! absent or empty on the way. So its content is copied into a spare page, and the spare page's
//! mapping is moved over the guest's with `mremap`: atomic, and the page has its content from the
//! first instant. Being present, it can be registered for faults afterwards at leisure.

use std::io;

use bindery_sys::mapping::{self, Mapping};
use bindery_units::{HostAddress, PAGE_BYTES};

/// Spare pages are mapped so many at a time.
const CHUNK_PAGES: usize = 512;

/// The most pages that can be restored in one step.
pub(crate) const SPARE_PAGES_MAX: usize = 64;

/// Pages that have memory before they are wanted: whoever waits for one waits the less.
const POPULATED_PAGES: usize = 8;

/// A stock of spare pages, for one thread.
#[derive(Debug)]
pub(crate) struct Spare {
    /// Where what is left of the chunk begins. Pages are taken from there, ascending: pages that come
    /// back one after the other, as a march of writes brings them, then lie as they did in the chunk,
    /// and the kernel joins their mappings.
    start: HostAddress,
    pages: usize,
    /// How many of them, from the first, have memory.
    populated: usize,
}

impl Spare {
    pub(crate) fn new() -> io::Result<Self> {
        let mut spare = Self { start: HostAddress(0), pages: 0, populated: 0 };
        spare.refill()?;
        Ok(spare)
    }

    fn refill(&mut self) -> io::Result<()> {
        let chunk = Mapping::anonymous(CHUNK_PAGES * PAGE_BYTES)?;
        // SAFETY: the chunk is ours. A guest's memory is kept in 4 KiB pages where it is merged.
        unsafe { mapping::advise(chunk.address(), chunk.bytes(), libc::MADV_NOHUGEPAGE)? };
        self.release();
        self.start = chunk.address();
        self.pages = CHUNK_PAGES;
        self.populated = 0;
        // The pieces leave one by one; what is left is unmapped by `release`.
        std::mem::forget(chunk);
        Ok(())
    }

    /// `count` consecutive spare pages, still in stock until [`taken`](Self::taken).
    pub(crate) fn peek(&mut self, count: usize) -> io::Result<HostAddress> {
        assert!(count <= SPARE_PAGES_MAX, "a restore is bounded");
        if self.pages < count {
            self.refill()?;
        }
        Ok(self.start)
    }

    /// The pages that [`peek`](Self::peek) gave were moved elsewhere.
    pub(crate) fn taken(&mut self, count: usize) {
        self.start = self.start.plus(count * PAGE_BYTES);
        self.pages -= count;
        self.populated = self.populated.saturating_sub(count);
    }

    /// Gives the next pages memory if they have none, to be called when nobody waits.
    pub(crate) fn populate(&mut self) {
        if self.populated > 0 {
            return;
        }
        let pages = self.pages.min(POPULATED_PAGES);
        // SAFETY: the pages are ours, and what is in them is wanted by nobody.
        let populated =
            unsafe { mapping::advise(self.start, pages * PAGE_BYTES, libc::MADV_POPULATE_WRITE) };
        // If this fails, they get memory as they are filled, or that fails.
        self.populated = if populated.is_ok() { pages } else { 0 };
    }

    fn release(&mut self) {
        if self.pages > 0 {
            // The kernel may have joined the chunk with a neighbour, and then taking it out needs a
            // mapping more than there may be left: a few empty pages stay mapped for nothing.
            // SAFETY: what is left of the chunk is ours.
            let _ = unsafe { mapping::unmap(self.start, self.pages * PAGE_BYTES) };
            self.pages = 0;
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.release();
    }
}
