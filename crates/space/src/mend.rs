//! Mending: joining the mappings that restored pages left apart.
//!
//! A restored page is a mapping of its own, because the kernel joins anonymous mappings only if they
//! were populated where they lie. Where many pages broke, a run is mended: its pages are moved to
//! staging, fresh memory is mapped over the whole run, which the kernel joins with what lies beside
//! it, and the pages are moved back. Moved pages count as written at the next scan.

use std::{fs, io, thread, time::Duration};

use bindery_sys::{mapping, maps, userfault::mode};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use crate::{
    Core,
    region::Region,
    transfer::{PRESENT, PageSet, STAGING_PAGES, Staging, find_pages},
};

impl Core {
    /// Joins mappings of anonymous pages among `pages`. The caller keeps the region mapped.
    pub(crate) fn mend(&self, region: &Region, pages: PageRange, staging: &Staging) {
        let seams = seams(region, pages);
        for window in pages.pieces(STAGING_PAGES) {
            let torn = seams.iter().any(|&seam| window.contains(seam));
            let mut at = window.first;
            while torn && at < window.end() {
                let rest = PageRange::new(at, window.end().0 - at.0);
                let run = anonymous_run(region, rest);
                if !run.is_empty() {
                    self.mend_run(region, run, staging);
                }
                at = run.end().max(at.plus(1));
            }
        }
        self.budget.refresh();
    }

    fn mend_run(&self, region: &Region, run: PageRange, staging: &Staging) {
        let (start, bytes) = (region.address(run.first), run.count as usize * PAGE_BYTES);
        let hold = self.held.hold(start, start.plus_pages(run.count));
        if anonymous_run(region, run) == run {
            let wanted = PageSet::first(run.count);
            let faults = &self.guest_faults;
            // SAFETY: the run is held and anonymous; staging was left empty by its last user.
            let staged = unsafe { staging.take(faults, &self.pagemap, start, wanted) };
            if find_pages(&self.pagemap, start, run.count, PRESENT).is_empty() {
                // Without mappings to spare all stays as it is.
                // SAFETY: all pages that were there are staged, so nothing is lost.
                let _ = unsafe { self.lay_afresh(region, start, bytes) };
            }
            // SAFETY: the pages are staged and their places absent.
            unsafe { staging.give_back(faults, &self.pagemap, start, staged) };
        }
        drop(hold);
        self.wake(start, run.count);
    }

    /// Fresh, registered, absent memory in place of what is there. An error changes nothing.
    ///
    /// # Safety
    /// The caller holds the range and wants nothing of what it holds.
    ///
    /// # Errors
    /// As mmap(2): the process has too many mappings.
    pub(crate) unsafe fn lay_afresh(
        &self,
        region: &Region,
        start: HostAddress,
        bytes: usize,
    ) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { mapping::replace_with_anonymous(start, bytes)? };
        loop {
            // SAFETY: the advice keeps content; absent pages of the range are zero ones, or about to
            // be moved back by the holder.
            let registered = unsafe {
                mapping::advise(start, bytes, libc::MADV_NOHUGEPAGE)
                    .and_then(|()| region.advise_mapping(start, bytes))
                    .and_then(|()| {
                        self.guest_faults.register(start, bytes, mode::MISSING | mode::WP)
                    })
            };
            if registered.is_ok() {
                return Ok(());
            }
            // The kernel is out of memory for a moment. There is no way back: the old mapping is
            // gone, and an unregistered one cannot take pages back.
            thread::sleep(REGISTER_PAUSE);
        }
    }
}

/// Between two tries to register fresh memory.
const REGISTER_PAUSE: Duration = Duration::from_micros(100);

/// Pages among `pages` at which one anonymous mapping ends and the next begins.
fn seams(region: &Region, pages: PageRange) -> Vec<PageIndex> {
    let list = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let (low, high) =
        (region.address(pages.first), region.address(pages.first).plus_pages(pages.count));
    let anonymous = maps::lines(&list)
        .filter(|line| line.inode == 0 && line.end > low.0 && line.start < high.0);
    let mut end_of_last = 0;
    let mut seams = Vec::new();
    for line in anonymous {
        if line.start == end_of_last && line.start >= low.0 {
            seams.push(region.page(HostAddress(line.start)));
        }
        end_of_last = line.end;
    }
    seams
}

/// The anonymous pages from the first of `pages` on.
fn anonymous_run(region: &Region, pages: PageRange) -> PageRange {
    let count = pages.pages().take_while(|&page| region.entry(page).is_anonymous()).count();
    PageRange::new(pages.first, count as u32)
}
