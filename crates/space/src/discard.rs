//! What the VMM itself does to its memory: throw pages away, unmap them, fork, take them back.
//!
//! On a mapping of the store `MADV_DONTNEED` would show the store's page again instead of zeros, so
//! such pages become fresh anonymous memory first. The content to come is zero, so a thread that
//! touches a page before it is registered again finds what it should.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::{Arc, PoisonError},
};

use bindery_sys::mapping;
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use crate::{
    Core,
    entry::{Entry, Kind},
    region::Region,
    restore::discarded,
    spare::Spare,
    transfer::{PRESENT, PageSet, STAGING_PAGES, Staging, find_pages},
};

impl Core {
    /// Throws away the managed pages between two addresses: they are zero afterwards.
    pub(crate) fn discard(
        &self,
        start: HostAddress,
        end: HostAddress,
        advice: i32,
    ) -> io::Result<()> {
        for region in self.regions.overlapping(start, end) {
            let pages = region.pages_between(start, end);
            let address = region.address(pages.first);
            let hold = self.held.hold(address, address.plus_pages(pages.count));
            let result = self.discard_held(&region, pages, advice);
            drop(hold);
            self.wake(address, pages.count);
            result?;
        }
        Ok(())
    }

    fn discard_held(&self, region: &Region, pages: PageRange, advice: i32) -> io::Result<()> {
        let mut at = pages.first;
        while at < pages.end() {
            let rest = PageRange::new(at, pages.end().0 - at.0);
            let anonymous = region.entry(at).is_anonymous();
            let same = |&page: &PageIndex| region.entry(page).is_anonymous() == anonymous;
            let run = PageRange::new(at, rest.pages().take_while(same).count() as u32);
            let (address, bytes) = (region.address(at), run.count as usize * PAGE_BYTES);
            if anonymous {
                // SAFETY: the VMM asked for it, and the range is held.
                unsafe { mapping::advise(address, bytes, advice)? };
            } else {
                self.discard_mapped(region, run)?;
            }
            at = run.end();
        }
        Ok(())
    }

    /// Throws away pages that lie in mappings of a store.
    fn discard_mapped(&self, region: &Region, run: PageRange) -> io::Result<()> {
        let (address, bytes) = (region.address(run.first), run.count as usize * PAGE_BYTES);
        // SAFETY: the VMM throws the pages away, and the range is held.
        if unsafe { self.lay_afresh(region, address, bytes) }.is_err() {
            return self.discard_in_place(region, run);
        }
        self.budget.made(2);
        for page in run.pages() {
            let entry = region.entry(page);
            if matches!(entry.kind(), Kind::Merged | Kind::Bound) {
                self.leave_store(entry);
            }
            region.set_entry(page, discarded(entry));
        }
        Ok(())
    }

    /// The same without a mapping to spare: the pages become strays full of zeros.
    fn discard_in_place(&self, region: &Region, run: PageRange) -> io::Result<()> {
        for page in run.pages() {
            let address = region.address(page);
            if region.entry(page).kind() == Kind::Merged {
                self.restore_by_kernel(region, page);
            }
            if region.entry(page).kind() == Kind::Merged {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            self.store_faults.write_protect(address, PAGE_BYTES, false)?;
            // SAFETY: the page is mapped, writable and held, and its owner wants it to be zero.
            unsafe { std::ptr::write_bytes(address.0 as *mut u8, 0, PAGE_BYTES) };
        }
        Ok(())
    }

    fn leave_store(&self, entry: Entry) {
        if let Some(store) = self.store(entry.store()) {
            store.remove_mapped(1);
        }
    }

    /// Forgets the managed pages between two addresses, whose memory is about to be unmapped or
    /// replaced by its owner. Waits for work on them; returns what was forgotten.
    pub(crate) fn forget(&self, start: HostAddress, end: HostAddress) -> Vec<PageRange> {
        let mut forgotten = Vec::new();
        for region in self.regions.overlapping(start, end) {
            let pages = region.pages_between(start, end);
            let address = region.address(pages.first);
            let _nobody_looks = region.mapped.write().unwrap_or_else(PoisonError::into_inner);
            let hold = self.held.hold(address, address.plus_pages(pages.count));
            for page in pages.pages() {
                let entry = region.entry(page);
                if matches!(entry.kind(), Kind::Merged | Kind::Bound) {
                    self.leave_store(entry);
                    region.set_entry(page, Entry::PRIVATE);
                }
            }
            self.regions.cut(&region, pages);
            drop(hold);
            forgotten.push(pages);
        }
        forgotten
    }

    /// Gives a region back to its owner as it was before: private memory, unwatched. Pages that
    /// cannot be brought back for want of memory or mappings leave it managed.
    pub(crate) fn release_region(&self, region: &Arc<Region>) -> Result<(), ReleaseError> {
        let mut spare = Spare::new().map_err(ReleaseError::Memory)?;
        let unmerged = self.unmerge(region, region.pages(), u32::MAX, &mut spare);
        if unmerged.stuck > 0 {
            return Err(ReleaseError::Stuck { pages: unmerged.stuck });
        }
        if region.is_shared_file() {
            self.return_file(region)?;
        }
        let (start, count) = (region.start(), region.pages().count);
        let _nobody_looks = region.mapped.write().unwrap_or_else(PoisonError::into_inner);
        let hold = self.held.hold(start, region.end());
        self.regions.cut(region, region.pages());
        let bytes = count as usize * PAGE_BYTES;
        // SAFETY: nothing of the region is held elsewhere: no page is in transit, none is merged.
        // A range without this registration is no error to the kernel.
        unsafe {
            self.guest_faults.unregister(start, bytes).map_err(ReleaseError::Memory)?;
            self.store_faults.unregister(start, bytes).map_err(ReleaseError::Memory)?;
        }
        drop(hold);
        self.wake(start, count);
        Ok(())
    }

    /// Puts a region's pages back into the file that it was mapped from, and maps that again.
    fn return_file(&self, region: &Region) -> Result<(), ReleaseError> {
        let file = region.file.as_ref().expect("a shared region keeps its file");
        let staging = Staging::new(&self.guest_faults).map_err(ReleaseError::Memory)?;
        for piece in region.pages().pieces(STAGING_PAGES) {
            let address = region.address(piece.first);
            let hold = self.held.hold(address, address.plus_pages(piece.count));
            // SAFETY: the piece is held, and staging was left empty.
            let result = unsafe { self.return_piece(region, piece, file, &staging) };
            drop(hold);
            self.wake(address, piece.count);
            result?;
        }
        Ok(())
    }

    /// # Safety
    /// The caller holds the piece, and staging is empty.
    unsafe fn return_piece(
        &self,
        region: &Region,
        piece: PageRange,
        file: &OwnedFd,
        staging: &Staging,
    ) -> Result<(), ReleaseError> {
        let (address, count) = (region.address(piece.first), piece.count);
        let offset = region.file_offset_bytes
            + u64::from(piece.first.0 - region.pages().first.0) * PAGE_BYTES as u64;
        let wanted = PageSet::first(count);
        // SAFETY: the caller's contract.
        let staged = unsafe { staging.take(&self.guest_faults, &self.pagemap, address, wanted) };
        let give_back = || {
            // SAFETY: the piece is held, the pages are staged and their places absent.
            unsafe { staging.give_back(&self.guest_faults, &self.pagemap, address, staged) };
        };
        if !find_pages(&self.pagemap, address, count, PRESENT).is_empty() {
            // A page that is pinned cannot move, and I/O may be writing to it.
            give_back();
            return Err(ReleaseError::Pinned);
        }
        let target = File::from(file.try_clone().map_err(ReleaseError::Memory)?);
        for (first, pages) in staged.spans() {
            let bytes = pages as usize * PAGE_BYTES;
            // SAFETY: staged pages are readable and nobody writes them.
            let content = unsafe { std::slice::from_raw_parts(staging.page(first), bytes) };
            let at = offset + u64::from(first) * PAGE_BYTES as u64;
            if let Err(error) = target.write_all_at(content, at) {
                give_back();
                return Err(ReleaseError::Memory(error));
            }
        }
        let bytes = count as usize * PAGE_BYTES;
        // SAFETY: the piece is held and the file has its content now.
        let mapped =
            unsafe { mapping::replace_with_shared_file(address, bytes, file.as_fd(), offset) };
        if let Err(error) = mapped {
            give_back();
            return Err(ReleaseError::Memory(error));
        }
        staging.clear(count);
        Ok(())
    }
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
    /// So many pages could not be made private.
    #[error(
        "{pages} merged pages cannot be made private: raise vm.max_map_count or free memory, then try again"
    )]
    Stuck {
        /// How many.
        pages: u32,
    },
    /// I/O is under way into memory that came from a shared file.
    #[error("I/O is under way into memory that is to be shared again: try again when it is done")]
    Pinned,
}
