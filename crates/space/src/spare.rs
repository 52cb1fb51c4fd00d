//! Spare pages: filled first, then moved into a guest's memory in one step.
//!
//! A page that leaves the store must be private anonymous memory again, and no thread may see it
//! absent or empty on the way. So its content is copied into a spare page, and that is moved over the
//! guest's with `mremap`: atomic, and the page has its content from the first instant. Being present,
//! it can be registered for faults afterwards at leisure. Where it was, an empty page is left, which
//! is not used again before the whole chunk is unmapped.

use std::io;

use bindery_sys::{
    mapping::{self, Mapping},
    maps::Advised,
    numa,
};
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
    chunk: HostAddress,
    /// Pages taken, from the first on: pages that come back one after the other, as a stream of writes
    /// brings them, then lie as they did in the chunk, and the kernel joins their mappings.
    taken: usize,
    /// How many of the next pages have memory.
    populated: usize,
    /// Whether pages that were taken stay mapped, and empty. Not where memory is not overcommitted:
    /// each would be charged for, and some kernels never give that back (until the fix "correctly
    /// account old mapping after MREMAP_DONTUNMAP" of mm/mremap.c).
    stays_mapped: bool,
    /// What was advised for the pages that are left. Not known after advice that failed, maybe
    /// half-way.
    advised: Option<Advised>,
}

impl Spare {
    pub(crate) fn new() -> io::Result<Self> {
        let mut spare = Self {
            chunk: HostAddress(0),
            taken: CHUNK_PAGES,
            populated: 0,
            stays_mapped: true,
            advised: None,
        };
        spare.refill()?;
        Ok(spare)
    }

    fn refill(&mut self) -> io::Result<()> {
        let chunk = Mapping::anonymous(CHUNK_PAGES * PAGE_BYTES)?;
        // SAFETY: the chunk is ours. A guest's memory is kept in 4 KiB pages where it is merged.
        unsafe { mapping::advise(chunk.address(), chunk.bytes(), libc::MADV_NOHUGEPAGE)? };
        self.release();
        self.chunk = chunk.address();
        self.taken = 0;
        self.populated = 0;
        self.advised = Some(Advised::default());
        self.stays_mapped = mapping::is_overcommitted();
        // Unmapped by `release`.
        std::mem::forget(chunk);
        Ok(())
    }

    /// `count` consecutive spare pages, still in stock until [`take`](Self::take).
    pub(crate) fn peek(&mut self, count: usize) -> io::Result<HostAddress> {
        assert!(count <= SPARE_PAGES_MAX, "a restore is bounded");
        if self.taken + count > CHUNK_PAGES {
            self.refill()?;
        }
        Ok(self.next())
    }

    /// Gives up what is left of the chunk, which has a hole now: whatever may be mapped there is not
    /// ours to unmap.
    pub(crate) const fn abandon(&mut self) {
        self.chunk = HostAddress(0);
        self.taken = CHUNK_PAGES;
        self.populated = 0;
    }

    /// Whether pages are moved out of their mapping, and not with it.
    pub(crate) const fn stays_mapped(&self) -> bool {
        self.stays_mapped
    }

    const fn next(&self) -> HostAddress {
        self.chunk.plus(self.taken * PAGE_BYTES)
    }

    /// The pages that [`peek`](Self::peek) gave were moved elsewhere.
    pub(crate) const fn take(&mut self, count: usize) {
        // More than there are if the chunk was abandoned meanwhile.
        let taken = self.taken + count;
        self.taken = if taken < CHUNK_PAGES { taken } else { CHUNK_PAGES };
        self.populated = self.populated.saturating_sub(count);
    }

    /// Pages that were taken are wanted no more. They go with the chunk, or at once where it is cut.
    pub(crate) fn discard(&self, start: HostAddress, count: usize) {
        if !self.stays_mapped {
            // If this fails, for want of a mapping, they stay for nothing.
            // SAFETY: the pages are ours, and nobody else was given them.
            let _ = unsafe { mapping::unmap(start, count * PAGE_BYTES) };
        }
    }

    /// Advises the pages from `first` on, which is one of the chunk, as the memory is advised that they
    /// are for. All that are left at once: advice for a single page cuts it out of the chunk, and then
    /// moving it takes a third longer.
    pub(crate) fn advise(&mut self, advised: Advised, first: HostAddress) -> io::Result<()> {
        if self.advised != Some(advised) {
            let before = self.advised.take();
            let bytes = self.chunk.plus(CHUNK_PAGES * PAGE_BYTES).0 - first.0;
            for advice in advised.changes(before) {
                // SAFETY: the pages are ours, and the advice keeps what they hold.
                unsafe { mapping::advise(first, bytes, advice)? };
            }
            if before.is_none_or(|before| before.nodes != advised.nodes) {
                self.bind(advised.nodes, first, bytes);
            }
            self.advised = Some(advised);
        }
        Ok(())
    }

    /// Binds the pages from `first` on to other nodes. Those that have memory and were not taken give it up.
    fn bind(&mut self, nodes: numa::Policy, first: HostAddress, bytes: usize) {
        // Where that cannot be done, pages of another node are better than none.
        // SAFETY: the pages are ours.
        let _ = unsafe { nodes.set(first, bytes) };
        let populated = self.populated * PAGE_BYTES;
        // SAFETY: the pages are ours, and what is in them is wanted by nobody.
        let emptied = unsafe { mapping::advise(self.next(), populated, libc::MADV_DONTNEED) };
        if emptied.is_ok() {
            self.populated = 0;
        }
    }

    /// Gives the next pages memory if they have none, to be called when nobody waits.
    pub(crate) fn populate(&mut self) {
        if self.populated > 0 {
            return;
        }
        if self.taken == CHUNK_PAGES && self.refill().is_err() {
            // Tried again when a page is wanted.
            return;
        }
        self.populate_next(POPULATED_PAGES.min(CHUNK_PAGES - self.taken));
    }

    /// Gives the next `count` pages, which were [peeked](Self::peek) at, what memory they lack. In one
    /// call: filling them takes 1.7 times as long with a fault for each.
    pub(crate) fn populate_next(&mut self, count: usize) {
        if count <= self.populated {
            return;
        }
        let lacking = self.next().plus(self.populated * PAGE_BYTES);
        let bytes = (count - self.populated) * PAGE_BYTES;
        // SAFETY: the pages are ours, and what is in them is wanted by nobody.
        let populated = unsafe { mapping::advise(lacking, bytes, libc::MADV_POPULATE_WRITE) };
        if populated.is_ok() {
            self.populated = count;
        }
        // If it fails, they get memory as they are filled, or that fails.
    }

    fn release(&mut self) {
        if self.chunk != HostAddress(0) {
            // The kernel may have joined the chunk with a neighbour, and then taking it out needs a
            // mapping more than there may be left: it stays mapped for nothing, and mostly empty.
            let end = self.chunk.plus(CHUNK_PAGES * PAGE_BYTES);
            let start = if self.stays_mapped { self.chunk } else { self.next() };
            // SAFETY: what is left of the chunk is ours.
            let _ = unsafe { mapping::unmap(start, end.0 - start.0) };
            self.chunk = HostAddress(0);
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.release();
    }
}
