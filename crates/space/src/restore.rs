//! Bringing merged pages back: after a write (a break), or on request (an unmerge).
//!
//! The content comes from the store, whose slots never change while they are mapped, and gets into
//! place in one step ([`spare`](crate::spare)). No event of the kernel has to be read on the way,
//! because the spare page is not registered until it is in place and present.
//!
//! If there is no mapping left to be had, a written page is left to the kernel's copy-on-write
//! inside the store's mapping. That needs nothing but the page. Such a page is a *stray* from then
//! on: a pin cannot be told there, so it is never moved or copied again until its guest discards it.

use bindery_sys::{mapping, userfault::mode};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use crate::{
    Core,
    entry::{Entry, Kind},
    region::Region,
    spare::{SPARE_PAGES_MAX, Spare},
};

impl Core {
    /// Makes merged pages of one run private again. All of `pages` are merged with consecutive
    /// slots and the caller holds them. Whether it was done; if not, nothing has changed.
    pub(crate) fn restore(
        &self,
        region: &Region,
        pages: PageRange,
        cause: Kind,
        spare: &mut Spare,
    ) -> bool {
        let entry = region.entry(pages.first);
        assert!(entry.kind() == Kind::Merged, "only merged pages are restored");
        let Some(store) = self.store(entry.store()) else {
            unreachable!("a store stays while pages are merged with it")
        };
        let Ok(filled) = spare.peek(pages.count as usize) else { return false };
        for (offset, _) in pages.pages().enumerate() {
            let source = store.page(entry.slot().plus(offset as u32));
            let target = filled.plus(offset * PAGE_BYTES).0 as *mut u8;
            // SAFETY: a slot is 4096 readable bytes that do not change while pages are merged with
            // it, and these are: the caller holds them. The spare pages are ours.
            unsafe { mapping::copy_page(source, target) };
        }
        let address = region.address(pages.first);
        let bytes = pages.count as usize * PAGE_BYTES;
        if region.forks_without() {
            // SAFETY: the spare pages are ours; they become the guest's with the guest's advice.
            if unsafe { mapping::advise(filled, bytes, libc::MADV_DONTFORK) }.is_err() {
                return false;
            }
        }
        // SAFETY: the caller holds the guest's pages; the spare ones are ours and have the content.
        if unsafe { mapping::remap_over(filled, address, bytes) }.is_err() {
            // mremap(2) may have unmapped the target before it failed only if the source's own
            // mapping changed, and that one is ours alone. So nothing has changed.
            return false;
        }
        spare.taken(pages.count as usize);
        self.budget.made(2);
        // SAFETY: the pages are present; who finds them absent later is served by the handler.
        let registered =
            unsafe { self.guest_faults.register(address, bytes, mode::MISSING | mode::WP) };
        store.remove_mapped(pages.count);
        for (offset, page) in pages.pages().enumerate() {
            let left = entry.plus(offset as u32).with_kind(match registered {
                Ok(()) => cause,
                // Private memory that cannot be watched: as good as a stray.
                Err(_) => Kind::StrayLost,
            });
            region.set_entry(page, left);
        }
        true
    }

    /// Leaves a written page to the kernel's copy-on-write. The caller holds it.
    pub(crate) fn restore_by_kernel(&self, region: &Region, page: PageIndex) {
        let entry = region.entry(page);
        let Some(store) = self.store(entry.store()) else {
            unreachable!("a store stays while pages are merged with it")
        };
        let address = region.address(page);
        if self.store_faults.write_protect(address, PAGE_BYTES, false).is_err() {
            return;
        }
        // The slot may be freed once the daemon hears of it, so the copy must be made now and not
        // when the writer gets round to it.
        // SAFETY: making a private copy of a page changes no content.
        if unsafe { mapping::advise(address, PAGE_BYTES, libc::MADV_POPULATE_WRITE) }.is_err() {
            return;
        }
        store.remove_mapped(1);
        region.set_entry(page, entry.with_kind(Kind::StrayLost));
    }

    /// The longest run within `pages`, from its first page on, that is merged with consecutive
    /// slots of one store; at most what can be restored in one step.
    pub(crate) fn merged_run(&self, region: &Region, pages: PageRange) -> PageRange {
        let first = region.entry(pages.first);
        let follows = |offset: u32| region.entry(pages.first.plus(offset)) == first.plus(offset);
        let limit = pages.count.min(SPARE_PAGES_MAX as u32);
        let count = if first.kind() == Kind::Merged {
            (1..limit).find(|&offset| !follows(offset)).unwrap_or(limit)
        } else {
            0
        };
        PageRange::new(pages.first, count)
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
            let _hold = self.held.hold(start, start.plus_pages(run));
            // It may have changed before it was held.
            let run = self.merged_run(region, PageRange::new(page, run));
            if run.is_empty() {
                continue;
            }
            if self.restore(region, run, Kind::Unmerged, spare) {
                done.pages += run.count;
            } else {
                done.stuck += run.count;
            }
            self.wake(start, run.count);
            page = run.end();
        }
        done
    }
}

/// What an unmerge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmerged {
    /// Pages made private.
    pub pages: u32,
    /// Pages left merged, for want of mappings or memory.
    pub stuck: u32,
    /// Where to go on.
    pub resume_at: Option<PageIndex>,
}

impl Region {
    fn forks_without(&self) -> bool {
        self.dont_fork.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Applies what the VMM advised for the region to a mapping just made in it.
    ///
    /// # Safety
    /// The caller holds the range.
    pub(crate) unsafe fn advise_mapping(
        &self,
        start: bindery_units::HostAddress,
        bytes: usize,
    ) -> std::io::Result<()> {
        if self.forks_without() {
            // SAFETY: the caller's contract; the advice keeps the content.
            unsafe { mapping::advise(start, bytes, libc::MADV_DONTFORK)? };
        }
        Ok(())
    }
}

/// What a page becomes when its guest throws it away.
pub(crate) fn discarded(entry: Entry) -> Entry {
    match entry.kind() {
        Kind::Merged | Kind::Bound => entry.with_kind(Kind::Discarded),
        Kind::StrayLost => entry.with_kind(Kind::Discarded),
        Kind::Stray | Kind::Private => Entry::PRIVATE,
        Kind::Broken | Kind::Discarded | Kind::Unmerged => entry,
    }
}
