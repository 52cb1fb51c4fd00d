//! Giving memory back to its owner, as it was before it was managed: private, and unwatched.
//!
//! Pages come back in short holds while guest and lanes go on; only the last step keeps lanes out.
//!
//! CoW copies stay where they are: a private copy in a mapping of the store cannot be moved, and if it
//! is pinned not be copied. Nothing tells it from other memory but a discard, which would show the
//! store's page. So CoW copies remain with us as regions of their own, unwatched, until they are
//! discarded or unmapped.

use std::{
    io,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use bindery_sys::{mapping, maps, userfault::mode};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use bindery_wire::control::{Region as Announced, is_store};

use crate::{
    Core,
    copies::find_copies,
    region::Region,
    space_entry::{Kind, SpaceEntry},
    spare::Spare,
};

/// What giving memory back needs.
pub(crate) struct Release<'a> {
    core: &'a Core,
    spare: Spare,
}

impl<'a> Release<'a> {
    pub(crate) fn new(core: &'a Core) -> Result<Self, ReleaseError> {
        let spare = Spare::new().map_err(ReleaseError::Memory)?;
        Ok(Self { core, spare })
    }

    /// Gives back every region between two addresses. Pages that cannot be brought back for want of
    /// memory or mappings leave their regions managed.
    pub(crate) fn release(
        &mut self,
        start: HostAddress,
        end: HostAddress,
    ) -> Result<Vec<PageRange>, ReleaseError> {
        let mut released: Vec<PageRange> = Vec::new();
        let next = || self.core.regions.overlapping(start, end).into_iter().find(|r| r.watched);
        while let Some(region) = next() {
            let pages = self.release_region(&region)?;
            match released.last_mut() {
                _ if pages.is_empty() => {}
                Some(last) if last.end() == pages.first => last.count += pages.count,
                _ => released.push(pages),
            }
        }
        Ok(released)
    }

    /// Returns the pages given back: none if the region changed meanwhile.
    fn release_region(&mut self, region: &Arc<Region>) -> Result<PageRange, ReleaseError> {
        let pages = region.pages();
        self.bring_back(region, pages)?;
        let _nobody_looks = region.mapped.write().unwrap_or_else(PoisonError::into_inner);
        if !self.core.regions.has(region) {
            return Ok(PageRange::new(pages.first, 0));
        }
        // What lanes merged since.
        self.bring_back(region, pages)?;
        let _hold = self.core.hold(region.start(), region.end());
        let cow_copies = self.unwatch(region).inspect_err(|_| self.watch(region))?;
        self.core.regions.exchange(region, cow_copies);
        Ok(pages)
    }

    /// Ends the registrations of a region of which no page is merged. Returns its CoW copies.
    fn unwatch(&self, region: &Region) -> Result<Vec<Region>, ReleaseError> {
        let mut cow_copies = Vec::new();
        self.core.end_tracking(region, region.pages());
        // If it stays, the next scan has it tracked anew.
        region.is_tracked.store(false, Ordering::Relaxed);
        for (run, anonymous) in runs(region) {
            // Each part by the context that it is registered with: the kernel refuses the other.
            let faults = if anonymous { &self.core.guest_faults } else { &self.core.store_faults };
            // SAFETY: no page is in transit, and absent ones are zero ones.
            unsafe { faults.unregister(region.address(run.first), bytes_of(run)) }
                .map_err(ReleaseError::Memory)?;
            if !anonymous {
                cow_copies.push(region.unwatched_part(run));
            }
        }
        Ok(cow_copies)
    }

    /// Has a region watched again of which a part may not be any more.
    fn watch(&self, region: &Region) {
        let split = |run: PageRange| {
            let blocks = region.blocks(run).filter(|block| region.is_split(block.first));
            blocks.map(move |block| block.intersection(run))
        };
        for run in runs(region).filter(|(_, anonymous)| *anonymous).flat_map(|(run, _)| split(run))
        {
            let modes = mode::MISSING | mode::WP;
            // SAFETY: absent pages there are zero ones, as everywhere in the region.
            let registered = unsafe {
                self.core.guest_faults.register(region.address(run.first), bytes_of(run), modes)
            };
            // Pages that cannot be watched are found out when they are to move back: see `transfer`.
            drop(registered);
        }
    }

    /// Makes all pages of a range private that depend on a store.
    fn bring_back(&mut self, region: &Region, pages: PageRange) -> Result<(), ReleaseError> {
        let unmerged = self.core.unmerge(region, pages, u32::MAX, &mut self.spare);
        let bound = pages.pages().filter(|&page| !self.core.unbind(region, page)).count() as u32;
        match unmerged.stuck + bound {
            0 => Ok(()),
            pages => Err(ReleaseError::Stuck { pages }),
        }
    }
}

impl Core {
    /// Leaves memory that was [forgotten](Self::forget) to its owner, whose call about it failed: nobody
    /// watches it any more, and what lies in mappings of a store is CoW copies.
    pub(crate) fn leave(&self, start: HostAddress, end: HostAddress) -> io::Result<()> {
        for area in maps::between(start, end)? {
            let is_merged = is_store(&area.name) && !area.is_shared();
            if !is_merged && area.inode != 0 {
                continue;
            }
            let (start, bytes) = (area.start, area.end.0 - area.start.0);
            let faults = if is_merged { &self.store_faults } else { &self.guest_faults };
            // SAFETY: it was forgotten: no page is in transit, and absent ones are zero ones.
            let unwatched = unsafe { faults.unregister(start, bytes) };
            if is_merged {
                unwatched?;
                self.add_cow_copies(start, bytes)?;
            }
            // Other memory of the VMM's may be watched by somebody else.
            if !is_merged {
                // SAFETY: as above.
                let _ = unsafe { self.block_faults.unregister(start, bytes) };
            }
        }
        Ok(())
    }

    /// Makes a region of CoW copies, which are unwatched.
    fn add_cow_copies(&self, address: HostAddress, bytes: usize) -> io::Result<()> {
        let count = (bytes / PAGE_BYTES) as u32;
        let numbered = self.regions.number(address, count).filter(|_| !self.regions.is_full());
        let pages = numbered.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let region = Region::new(Announced { pages, address }, [])?.unwatched_part(pages);
        pages.pages().for_each(|page| region.set_entry(page, SpaceEntry::COW_COPY));
        self.regions.add(region);
        Ok(())
    }

    /// Has the kernel copy a page that could not be protected. Whether it needs no slot any more.
    fn unbind(&self, region: &Region, page: PageIndex) -> bool {
        if region.entry(page).kind() != Kind::Unprotected {
            return true;
        }
        let address = region.address(page);
        let _hold = self.hold(address, address.plus_pages(1));
        let entry = region.entry(page);
        if entry.kind() != Kind::Unprotected {
            return true;
        }
        // SAFETY: making a private copy of a page changes no content.
        let _ = unsafe { mapping::advise(address, PAGE_BYTES, libc::MADV_POPULATE_WRITE) };
        if !find_copies(&self.pagemap, address, 1).copied.contains(0) {
            return false;
        }
        region.set_entry(page, entry.with_kind(Kind::CowCopyLost));
        self.leave_store(entry);
        true
    }
}

/// The maximal runs of a region's pages that lie in anonymous mappings, or do not.
fn runs(region: &Region) -> impl Iterator<Item = (PageRange, bool)> {
    let mut at = region.pages().first;
    std::iter::from_fn(move || {
        let rest = PageRange::new(at, region.pages().end().0 - at.0);
        let anonymous = region.entry(rest.pages().next()?).is_anonymous();
        let same = |&page: &PageIndex| region.entry(page).is_anonymous() == anonymous;
        let run = PageRange::new(at, rest.pages().take_while(same).count() as u32);
        at = run.end();
        Some((run, anonymous))
    })
}

const fn bytes_of(pages: PageRange) -> usize {
    pages.count as usize * PAGE_BYTES
}

/// Why a region could not be given back. It stays managed, and nothing is lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The kernel had no memory or mappings for it.
    #[error(
        "the memory of this guest cannot be given back now: {0}; free some memory, then try again"
    )]
    Memory(#[source] io::Error),
    /// Memory is still filled from a source, which only a daemon can be.
    #[error(
        "{pages} pages of this guest are still missing, and are fetched from the daemon: try again when they are there"
    )]
    Bound {
        /// Number of pages that are missing.
        pages: u64,
    },
    /// So many pages could not be made private.
    #[error(
        "{pages} merged pages cannot be made private: raise vm.max_map_count or free memory, then try again; those with a memory error stay merged"
    )]
    Stuck {
        /// How many.
        pages: u32,
    },
}
