//! The three fault handlers: the only threads that a guest ever waits for.
//!
//! One serves absent pages of guest memory, with zeros. Another serves writes to merged pages, by
//! bringing them back. The third serves writes to huge pages that are tracked, by ending their protection.
//!
//! # What they wait for
//! None waits for who holds a page: it is left to its holder, who wakes those that wait for it. Where
//! no range can be held at all, whoever wrote is woken and tries again.
//! What they wait for is this:
//! - the locks of the regions, the stores and the held ranges. All of them are kept for microseconds, for
//!   a look or a change of a list, and never while a guest's page is touched;
//! - the kernel: its lock of the address space, memory for the pages that come back, and up to
//!   [`SCANS_MAX`](crate::transfer) scans of 100 µs each where it has no memory for an answer;
//! - a place of a guest's that the kernel has unmapped in a failed mremap(2), until the page is back there
//!   ([`put_in_place`](crate::restore)).
//!
//! None uses the heap or logs. Of guest memory only merged pages are read, which are in their page
//! table: the one that is written, and where there were memory errors those that were found readable.
//! Spare pages are mapped by the handler of writes itself, between faults unless it has none left.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use bindery_sys::{table, thread::CpuClock, userfault::Fault};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use crate::{
    Core, descriptors::Userfault, held::Tried, region::Region, restore::Cause, space_entry::Kind,
    spare::Spare, transfer::PageSet, write_streams::WriteStreams,
};

/// Pages filled with zeros for one fault: the next ones are mostly touched soon after.
const ZERO_FILL_PAGES: usize = 64;

/// Starts the three. Returns their clocks, which go on as long as the process.
pub(crate) fn start(core: &Arc<Core>) -> io::Result<[CpuClock; 3]> {
    let (absent, breaks, blocks) = (Arc::clone(core), Arc::clone(core), Arc::clone(core));
    let spare = Spare::new()?;
    let absent = table::spawn("bindery-absent", move || absent.serve_absent())?;
    let breaks = table::spawn("bindery-break", move || breaks.serve_breaks(spare))?;
    let blocks = table::spawn("bindery-blocks", move || blocks.serve_blocks())?;
    let clocks = [&absent, &breaks, &blocks].map(CpuClock::of_thread);
    let [absent, breaks, blocks] = clocks;
    Ok([absent?, breaks?, blocks?])
}

/// What ends the process if its owner does: guests would wait for a handler that is gone, for ever.
pub(crate) struct Lifeline;

impl Drop for Lifeline {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Calls `serve` with the faults of a context as they come, for ever.
fn serve(faults: &Userfault, mut serve: impl FnMut(&[Fault])) {
    let _lifeline = Lifeline;
    let mut buffer = [Fault::default(); Userfault::READ_MAX];
    loop {
        match faults.read(&mut buffer) {
            Ok(faults) => serve(faults),
            // An interrupted or failed wait is only another look. But our table is ours alone.
            Err(error) => assert_ne!(error.raw_os_error(), Some(libc::EBADF), "no descriptor"),
        }
    }
}

impl Core {
    fn serve_absent(&self) {
        serve(&self.guest_faults, |faults| {
            faults.iter().for_each(|fault| self.fill(fault.address))
        });
    }

    /// Fills an absent page, and the absent pages behind it, with zeros.
    fn fill(&self, address: HostAddress) {
        let regions = self.regions.read();
        let region = regions.at(address);
        let mut held = self.held.lock();
        if held.leave_to_holder(address) {
            return;
        }
        let Some(region) = region else {
            // Memory that is being given up: its owner's call answers for what it holds.
            self.fill_single(address);
            return;
        };
        if !region.entry(region.page(address)).is_anonymous() {
            // It was merged while the fault was on its way to us.
            self.wake(address, 1);
            return;
        }
        // No further than the block: the next may be whole, and is filled by the kernel.
        let block = region.block(region.page(address));
        let block_end = region.address(block.first).plus_pages(block.count);
        let limit = address.plus(ZERO_FILL_PAGES * PAGE_BYTES).min(block_end);
        let end = held.free_until(address, anonymous_until(region, address, limit));
        // SAFETY: the pages are anonymous and not held, so an absent one is a zero one; the table of
        // held ranges is locked, so it stays like that.
        let filled = unsafe { self.guest_faults.zero(address, end.0 - address.0, true) };
        if filled.is_err_and(|stopped| stopped.done == 0) {
            self.fill_single(address);
        }
    }

    /// One page, where a batch stops at once: the mapping ends behind it, or it is there already, or
    /// it is marked as protected, which the zero page cannot replace and a page of zeros can.
    fn fill_single(&self, address: HostAddress) {
        // SAFETY: as for the batch.
        let filled = unsafe { self.guest_faults.zero(address, PAGE_BYTES, true) };
        let errno = filled.err().map(|stopped| stopped.errno);
        if errno == Some(libc::EEXIST) {
            let zeros = HostAddress(self.zeros.as_ptr() as usize);
            // SAFETY: as for the batch; a page that is there is not replaced.
            let _ = unsafe { self.guest_faults.copy(address, zeros, PAGE_BYTES) };
        }
        if errno.is_some() {
            // Whoever waits looks again; if it is still absent we hear of it again.
            self.wake(address, 1);
        }
    }

    fn serve_blocks(&self) {
        serve(&self.block_faults, |faults| {
            faults.iter().for_each(|fault| self.let_write_block(fault.address));
        });
    }

    fn serve_breaks(&self, mut spare: Spare) {
        let mut streams = WriteStreams::new();
        serve(&self.store_faults, |faults| {
            for fault in faults {
                self.break_page(fault.address, &mut streams, &mut spare);
            }
            spare.populate();
        });
    }

    /// Brings a written page back, and with it what lies ahead of a write stream.
    fn break_page(&self, address: HostAddress, streams: &mut WriteStreams, spare: &mut Spare) {
        let regions = self.regions.read();
        let region = regions.at(address);
        let Some(region) = region else {
            // Memory that was forgotten: its owner answers for it.
            self.let_write(address);
            return;
        };
        let written = region.page(address);
        let step = streams.step(address, |start, end| has_no_merged_page(region, start, end));
        let wanted = region.pages_between(step.start, step.end);
        let run = self.merged_around(region, written, wanted);
        let run = if run.is_empty() { PageRange::new(written, 1) } else { run };
        let start = region.address(run.first);
        let hold = match self.try_hold(address, start, start.plus_pages(run.count)) {
            Tried::Held(hold) => hold,
            Tried::Others => return,
            Tried::Full => {
                // Whoever wrote looks again, until there is room.
                std::thread::yield_now();
                self.wake(address, 1);
                return;
            }
        };
        let run =
            self.merged_around(region, written, region.pages_between(hold.start(), hold.end()));
        if run.is_empty() {
            // It came back while the fault was on its way to us, or it is a CoW copy.
            self.let_write(address);
        } else {
            let back = self.break_run(region, written, run, spare);
            let start = region.address(back.first);
            streams.take(step, start, start.plus_pages(back.count));
        }
    }

    /// Brings back `run`, or the `written` page of it at least. Returns what it brought back.
    fn break_run(
        &self,
        region: &Region,
        written: PageIndex,
        run: PageRange,
        spare: &mut Spare,
    ) -> PageRange {
        let (cause, single) = (Cause::Write(written), PageRange::new(written, 1));
        let is_readable = |run| self.readable_run(region, run) == PageSet::first(run.count);
        let run = if run.count == 1 || is_readable(run) { run } else { single };
        let back = if self.restore(region, run, cause, spare) {
            run
        } else if run.count > 1 && self.restore(region, single, cause, spare) {
            single
        } else {
            let restored = self.restore_by_kernel(region, written);
            // Whoever wrote goes on, or looks again if there was no memory for the page.
            self.wake(region.address(written), 1);
            PageRange::new(written, u32::from(restored))
        };
        self.breaks.fetch_add(back.count, Ordering::Relaxed);
        back
    }

    /// Ends the protection of a page, if it has any, and wakes whoever waits to write it.
    fn let_write(&self, address: HostAddress) {
        let _ = self.store_faults.write_protect(address, PAGE_BYTES, false);
        self.wake(address, 1);
    }
}

/// The end of the pages from `start` on that are anonymous, at most `limit`.
fn anonymous_until(region: &Region, start: HostAddress, limit: HostAddress) -> HostAddress {
    let pages = region.pages_between(start, limit);
    let end = pages.pages().find(|&page| !region.entry(page).is_anonymous());
    end.map_or(limit, |page| region.address(page))
}

/// Whether all pages between two addresses are the region's, and none of them is merged.
fn has_no_merged_page(region: &Region, start: HostAddress, end: HostAddress) -> bool {
    let is_merged = |page| region.entry(page).kind() == Kind::Merged;
    let is_inside = region.start() <= start && end <= region.end();
    is_inside && !region.pages_between(start, end).pages().any(is_merged)
}
