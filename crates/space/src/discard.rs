//! What the VMM itself does to its memory: throw pages away, unmap them.
//!
//! On a mapping of the store `MADV_DONTNEED` would show the store's page again instead of zeros, so
//! such pages become fresh anonymous memory first. The content to come is zero, so a thread that
//! touches a page before it is registered again finds what it should.

use std::{
    io,
    sync::{Arc, PoisonError},
    thread,
    time::Duration,
};

use bindery_sys::{mapping, table, userfault::mode};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use crate::{
    Core,
    region::Region,
    space_entry::{Kind, SpaceEntry},
};

impl Core {
    /// Throws away the pages between two addresses: managed ones are zero afterwards. What is not
    /// managed, or not any more when its turn comes, is the kernel's, which is given the advice.
    pub(crate) fn discard(
        &self,
        start: HostAddress,
        end: HostAddress,
        advice: i32,
    ) -> io::Result<()> {
        if !start.is_page_aligned() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let managed = self.regions.overlapping(start, end);
        let mut at = start;
        for region in managed {
            let pages = region.pages_between(start, end);
            let from = region.address(pages.first);
            advise_between(at, from, advice)?;
            at = from.plus_pages(pages.count);
            let hold = self.hold(from, at);
            if self.regions.has(&region) {
                self.discard_held(&region, pages, advice)?;
            } else {
                // It was cut or given back while its pages were waited for.
                drop(hold);
                self.discard(from, at, advice)?;
            }
        }
        advise_between(at, end, advice)
    }

    fn discard_held(&self, region: &Arc<Region>, pages: PageRange, advice: i32) -> io::Result<()> {
        // Managed memory is anonymous, whatever it was: what removes it there is DONTNEED. What is FREE
        // may be taken at any time, so at once: nobody could be told when the kernel does.
        let advice = match advice {
            libc::MADV_REMOVE | libc::MADV_FREE => libc::MADV_DONTNEED,
            other => other,
        };
        self.discard_runs(region, pages, advice)?;
        if !region.watched {
            self.regions.cut(region, pages);
        }
        Ok(())
    }

    fn discard_runs(&self, region: &Region, pages: PageRange, advice: i32) -> io::Result<()> {
        let mut at = pages.first;
        while at < pages.end() {
            let rest = PageRange::new(at, pages.end().0 - at.0);
            let anonymous = region.entry(at).is_anonymous();
            if !anonymous && !table::is_inside() {
                // Only what needs a descriptor is worth another thread, and then all that is left.
                return table::run(|| self.discard_runs(region, rest, advice));
            }
            let same = |&page: &PageIndex| region.entry(page).is_anonymous() == anonymous;
            let run = PageRange::new(at, rest.pages().take_while(same).count() as u32);
            let done = if anonymous {
                let (address, bytes) = (region.address(at), run.count as usize * PAGE_BYTES);
                // SAFETY: the VMM asked for it, and the range is held.
                unsafe { mapping::advise(address, bytes, advice) }
            } else {
                self.discard_mapped(region, run)
            };
            // No scan finds zeros: whoever has seen something else there is to hear of it. A part may
            // be done where not all could be.
            region.add_pending(run);
            done?;
            at = run.end();
        }
        Ok(())
    }

    /// Throws away pages that lie in mappings of a store.
    fn discard_mapped(&self, region: &Region, run: PageRange) -> io::Result<()> {
        let (address, bytes) = (region.address(run.first), run.count as usize * PAGE_BYTES);
        // SAFETY: the VMM throws the pages away, and the range is held.
        while unsafe { mapping::replace_with_anonymous(address, bytes) }.is_err() {
            if mapping::is_mapped(address, bytes) {
                return self.discard_in_place(region, run);
            }
            // The kernel has unmapped the range, and it is the guest's.
            thread::sleep(Duration::from_millis(1));
        }
        self.budget.made(2);
        let watched = self.watch_again(region, address, bytes);
        for page in run.pages() {
            let before = region.change_entry(page, |entry| match (entry.kind(), watched) {
                (Kind::CowCopy, true) => SpaceEntry::PRIVATE,
                (Kind::CowCopy, false) => SpaceEntry::COW_COPY,
                (_, true) => entry.with_kind(Kind::Discarded),
                (_, false) => entry.with_kind(Kind::CowCopyLost),
            });
            self.leave_store(before);
        }
        Ok(())
    }

    /// Has memory that is all zeros, and new in its place, watched like the rest of its region.
    /// Whether it could be; pages that nobody watches are as good as CoW copies.
    fn watch_again(&self, region: &Region, address: HostAddress, bytes: usize) -> bool {
        // SAFETY: absent pages of the range are zero ones, which is what the handler makes them.
        // The advice keeps content; without it a child of fork gets a copy.
        unsafe {
            let _ = region.advise_anonymous(address, bytes);
            !region.watched
                || self.guest_faults.register(address, bytes, mode::MISSING | mode::WP).is_ok()
        }
    }

    /// The same without a mapping to spare: the pages become CoW copies full of zeros.
    fn discard_in_place(&self, region: &Region, run: PageRange) -> io::Result<()> {
        for page in run.pages() {
            let address = region.address(page);
            if region.entry(page).kind() == Kind::Merged && !self.restore_by_kernel(region, page) {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            // A mapping that is not registered is not protected.
            let _ = self.store_faults.write_protect(address, PAGE_BYTES, false);
            // SAFETY: the page is mapped, writable and held, and its owner wants it to be zero.
            unsafe { std::ptr::write_bytes(address.0 as *mut u8, 0, PAGE_BYTES) };
        }
        Ok(())
    }

    /// Forgets the managed pages between two addresses, whose memory is about to be unmapped or
    /// replaced by its owner. Waits for work on them; returns what was forgotten.
    pub(crate) fn forget(&self, start: HostAddress, end: HostAddress) -> Vec<PageRange> {
        let mut forgotten = Vec::new();
        if !start.is_page_aligned() {
            return forgotten;
        }
        while let Some(region) = self.regions.overlapping(start, end).first() {
            let pages = region.pages_between(start, end);
            let address = region.address(pages.first);
            let _nobody_looks = region.mapped.write().unwrap_or_else(PoisonError::into_inner);
            let _hold = self.hold(address, address.plus_pages(pages.count));
            if !self.regions.has(region) {
                continue;
            }
            for page in pages.pages() {
                let entry = region.entry(page);
                if matches!(entry.kind(), Kind::Merged | Kind::Unprotected) {
                    region.set_entry(page, SpaceEntry::PRIVATE);
                    self.leave_store(entry);
                }
            }
            self.regions.cut(region, pages);
            forgotten.push(pages);
        }
        forgotten
    }
}

/// Has the kernel throw away what is between two addresses, if anything is.
fn advise_between(start: HostAddress, end: HostAddress, advice: i32) -> io::Result<()> {
    if start >= end {
        return Ok(());
    }
    // SAFETY: the VMM asked for it, and nobody else uses this memory.
    unsafe { mapping::advise(start, end.0 - start.0, advice) }
}
