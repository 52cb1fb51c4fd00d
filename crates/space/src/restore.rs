//! Bringing merged pages back: after a write (a break), or on request (an unmerge).
//!
//! The content comes from the store, whose slots never change while they are mapped, and gets into
//! place in one step ([`spare`](crate::spare)). No event of the kernel has to be read on the way,
//! because the spare page is not registered until it is in place and present.
//!
//! If there is no mapping left to be had, a written page is left to the kernel's copy-on-write
//! inside the store's mapping. That needs nothing but the page. Such a page is a *CoW copy* from then
//! on: a pin cannot be told there, so it is never moved or copied again until its guest discards it.

use std::{io, thread, time::Duration};

use bindery_sys::{mapping, userfault::mode};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use crate::{
    Core,
    copies::find_copies,
    region::Region,
    space_entry::Kind,
    spare::{SPARE_PAGES_MAX, Spare},
};

/// Why pages are brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Somebody waits to write one of them.
    Write(PageIndex),
    /// It was asked for.
    Request,
}

impl Cause {
    const fn kind(self) -> Kind {
        match self {
            Self::Write(_) => Kind::Broken,
            Self::Request => Kind::Unmerged,
        }
    }
}

impl Core {
    /// Makes merged pages of one run private again, and wakes those that wait to write them if that
    /// is the `cause`. All of `pages` are merged with consecutive slots, which but for the written one's
    /// were found [readable](Self::readable_run), and the caller holds them. Whether it was done; if
    /// not, nothing has changed.
    pub(crate) fn restore(
        &self,
        region: &Region,
        pages: PageRange,
        cause: Cause,
        spare: &mut Spare,
    ) -> bool {
        let entry = region.entry(pages.first);
        assert!(entry.kind() == Kind::Merged, "only merged pages are restored");
        let store = self.store_of(entry);
        let Ok(filled) = spare.peek(pages.count as usize) else { return false };
        // Before they have memory, which is to be of the region's nodes.
        if spare.advise(region.advised_run(pages.first, pages).0, filled).is_err() {
            return false;
        }
        spare.populate_next(pages.count as usize);
        let address = region.address(pages.first);
        for (offset, page) in (0..).zip(pages.pages()) {
            // Where a page was just written its slot is mapped for sure; our own view of the store
            // would mostly fault.
            let source = if cause == Cause::Write(page) {
                region.address(page).0 as *const u8
            } else {
                store.page(entry.slot().plus(offset))
            };
            let target = filled.plus_pages(offset).0 as *mut u8;
            // SAFETY: a slot is 4096 readable bytes that do not change while pages are merged with
            // it, and these are: the caller holds them. The spare pages are ours.
            unsafe { mapping::copy_page(source, target) };
        }
        let bytes = pages.count as usize * PAGE_BYTES;
        // SAFETY: the caller holds the guest's pages; the spare ones are ours and have the content.
        if unsafe { put_in_place(region, spare, filled, (address, bytes)) }.is_err() {
            return false;
        }
        if matches!(cause, Cause::Write(_)) {
            // The pages are what the writer needs; the rest is for us.
            let woken = self.store_faults.wake(address, bytes);
            assert!(woken.is_ok(), "waking a range of whole pages cannot fail");
        }
        spare.take(pages.count as usize);
        self.budget.made(2);
        // SAFETY: the pages are present; who finds them absent later is served by the handler.
        let registered =
            unsafe { self.guest_faults.register(address, bytes, mode::MISSING | mode::WP) };
        let kind = match registered {
            Ok(()) => cause.kind(),
            // Private memory that cannot be watched: as good as a CoW copy.
            Err(_) => Kind::CowCopyLost,
        };
        store.remove_mapped(entry.slot(), pages.count);
        for (offset, page) in (0..).zip(pages.pages()) {
            region.set_entry(page, entry.plus(offset).with_kind(kind));
        }
        true
    }

    /// Leaves a written page to the kernel's copy-on-write. The caller holds it. Whether that could
    /// be done; if not, there was no memory for it and nothing has changed.
    pub(crate) fn restore_by_kernel(&self, region: &Region, page: PageIndex) -> bool {
        let entry = region.entry(page);
        let address = region.address(page);
        if self.store_faults.write_protect(address, PAGE_BYTES, false).is_err() {
            // Populating would wait for whoever serves the fault, which may be this thread.
            return false;
        }
        let look = || {
            let copies = find_copies(&self.pagemap, address, 1);
            (copies.copied.contains(0), copies.unknown.contains(0))
        };
        // The slot may be freed once the daemon hears of it, so the copy must be made now and not
        // when the writer gets round to it.
        // SAFETY: making a private copy of a page changes no content.
        let _ = unsafe { mapping::advise(address, PAGE_BYTES, libc::MADV_POPULATE_WRITE) };
        let kind = if let (true, _) = look() {
            Kind::CowCopyLost
        } else {
            let protected = self.store_faults.write_protect(address, PAGE_BYTES, true);
            match (look(), protected) {
                ((false, false), Ok(())) => return false,
                // Nobody will tell us when it is written, or whether it was: the slot stays its own.
                ((false, _), _) => Kind::Unprotected,
                // The writer was quicker. If this fails, the handler does it.
                ((true, _), _) => {
                    let _ = self.store_faults.write_protect(address, PAGE_BYTES, false);
                    Kind::CowCopyLost
                }
            }
        };
        region.set_entry(page, entry.with_kind(kind));
        if kind == Kind::CowCopyLost {
            self.leave_store(entry);
        }
        true
    }

    /// The longest run within `pages`, from its first page on, that is merged with consecutive
    /// slots of one store, and is advised alike; at most what can be restored in one step.
    pub(crate) fn merged_run(&self, region: &Region, pages: PageRange) -> PageRange {
        let limit = pages.count.min(SPARE_PAGES_MAX as u32);
        self.merged_around(region, pages.first, PageRange::new(pages.first, limit))
    }

    /// The longest run within `pages` that has `page`, which is one of them, is merged with consecutive
    /// slots of one store, and is advised alike. Empty if that page is not merged.
    pub(crate) fn merged_around(
        &self,
        region: &Region,
        page: PageIndex,
        pages: PageRange,
    ) -> PageRange {
        let entry = region.entry(page);
        if entry.kind() != Kind::Merged {
            return PageRange::new(page, 0);
        }
        let (_, pages) = region.advised_run(page, pages);
        let (below, above) = (page.0 - pages.first.0, pages.end().0 - page.0);
        let follows = |&offset: &u32| region.entry(page.plus(offset)).is_after(entry, offset);
        let leads =
            |&offset: &u32| entry.is_after(region.entry(PageIndex(page.0 - offset)), offset);
        let after = (1..above).take_while(follows).count() as u32;
        let before = (1..=below).take_while(leads).count() as u32;
        PageRange::new(PageIndex(page.0 - before), before + 1 + after)
    }

    /// Makes the merged pages among `pages` private again, until `budget_pages` were. Where it
    /// stopped, if before the end, and how many it made private.
    pub(crate) fn unmerge(
        &self,
        region: &Region,
        pages: PageRange,
        budget_pages: u32,
        spare: &mut Spare,
    ) -> Unmerged {
        let mut done = Unmerged::default();
        let mut page = pages.first;
        while page < pages.end() {
            let rest = PageRange::new(page, pages.end().0 - page.0);
            if region.entry(page).kind() != Kind::Merged {
                page = page.plus(1);
                continue;
            }
            if done.pages >= budget_pages {
                done.resume_at = Some(page);
                return done;
            }
            let (start, run) = (region.address(page), self.merged_run(region, rest).count.max(1));
            let _hold = self.hold(start, start.plus_pages(run));
            // It may have changed before it was held.
            let run = self.merged_run(region, PageRange::new(page, run));
            if run.is_empty() {
                continue;
            }
            let readable = self.readable_run(region, run).0.trailing_ones();
            if readable == 0 {
                done.stuck += 1;
                page = page.plus(1);
                continue;
            }
            let run = PageRange::new(page, readable);
            if self.restore(region, run, Cause::Request, spare) {
                done.pages += run.count;
            } else {
                done.stuck += run.count;
            }
            page = run.end();
        }
        done
    }
}

/// Moves filled spare pages over a region's pages. If that cannot be done, the region's pages are as
/// they were.
///
/// # Safety
/// The caller holds the region's pages, which are [advised alike](Region::advised_run), and owns the
/// filled ones, which are of `spare`.
pub(crate) unsafe fn put_in_place(
    region: &Region,
    spare: &mut Spare,
    filled: HostAddress,
    (address, bytes): (HostAddress, usize),
) -> io::Result<()> {
    let pages = region.pages_between(address, address.plus(bytes));
    let (advised, alike) = region.advised_run(pages.first, pages);
    assert!(alike == pages, "pages come back in runs that are advised alike");
    spare.advise(advised, filled)?;
    if spare.stays_mapped() {
        // SAFETY: the caller's contract.
        let moved = unsafe { mapping::move_over(filled, address, bytes) };
        if moved.is_ok() || mapping::is_mapped(address, bytes) {
            return moved;
        }
        // As below, and in the way that asks for no memory.
        spare.abandon();
    }
    // If the guest's mapping is gone, its content is in the spare pages: then there is nothing to do but
    // to try again.
    loop {
        // SAFETY: the caller's contract.
        match unsafe { mapping::remap_over(filled, address, bytes) } {
            Err(_) if !mapping::is_mapped(address, bytes) => {
                thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// What an unmerge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmerged {
    /// Pages made private.
    pub pages: u32,
    /// Pages left merged, for want of mappings or memory, or because they have a memory error.
    pub stuck: u32,
    /// Where to go on.
    pub resume_at: Option<PageIndex>,
}
