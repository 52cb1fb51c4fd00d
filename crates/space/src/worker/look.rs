//! Looking at a guest's pages: which there are, which were written, what they hold.

use std::{
    convert::Infallible,
    io,
    ops::Range,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use bindery_page::{DigestKey, Examined};
use bindery_sys::{
    mapping::{self, HUGE_PAGE_BYTES},
    pagemap::{EXTENTS_PER_CALL_MAX, Extent, Query, Scanned, category},
};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use super::{Part, Worker};
use bindery_wire::lane::{DigestKind, PageDigest, PageSpan, Presence, Reach};

use crate::{
    region::Region,
    tracking::{Grain, blocks_of},
    transfer::{HERE, PRESENT, PageSet, WINDOW_PAGES, find_pages},
};

/// Pages looked at before whoever unmaps them gets a turn.
const LOOK_PAGES: usize = 512;

/// Pages that are tracked, or no more, in one step: 1 GiB.
const TRACKED_PAGES: u32 = 1 << 18;

/// Pages of a guest's own that a scan is for. Absent ones and merged ones never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// Those written since the last scan.
    Written,
    /// All that are there, the zero page apart.
    Present,
}

impl Sought {
    fn query(self) -> Query {
        // Mappings of the store are not of the kind that is required, and passed over whole: so no
        // page needs to be asked whether it is a file's, which costs the kernel a cache miss each.
        let there = category::WP_ALLOWED | category::PRESENT;
        match self {
            // Zero pages as well: where the kernel splits a huge page, it maps them in place of pages of zeros
            // (Linux 6.12). Not huge ones: those come to absent pages alone, and become huge pages when they are
            // written, unless they are protected.
            Self::Written => Query {
                require: there | category::WRITTEN,
                any_of: category::ZERO | category::HUGE,
                invert: category::ZERO | category::HUGE,
                report: category::WRITTEN | category::HUGE | category::ZERO,
                protect: true,
                ..Query::default()
            },
            // Zero pages stay unprotected if they are, for the next scan of what was written.
            Self::Present => Query {
                require: there | category::ZERO,
                invert: category::ZERO,
                report: category::PRESENT | category::HUGE,
                protect: true,
                ..Query::default()
            },
        }
    }

    /// Returns the query for blocks that are tracked as such, which protects nothing. What is in swap, or under
    /// way to another frame, is found, too: nobody else looks for it there.
    fn block_query(self) -> Query {
        let (sought, invert) = match self {
            Self::Written => (category::WRITTEN, 0),
            Self::Present => (category::ZERO, category::ZERO),
        };
        Query {
            require: sought,
            any_of: category::PRESENT | category::SWAPPED,
            invert,
            // Not `WRITTEN` alone: the kernel's short cut for that takes swapped pages for protected ones.
            report: category::PRESENT | category::HUGE | category::ZERO,
            ..Query::default()
        }
    }
}

impl Worker {
    /// Finds the pages of `range` that were written since the last scan, in blocks that are split, as
    /// [`scan_for`](Self::scan_for) does.
    ///
    /// # Errors
    /// As `PAGEMAP_SCAN`.
    pub fn scan(
        &mut self,
        range: PageRange,
        written: &mut Vec<PageSpan>,
        max: usize,
    ) -> io::Result<Option<PageIndex>> {
        self.scan_for(Sought::Written, Reach::Split, range, written, max)
    }

    /// Which pages of `range` are as sought, ascending, into `found` until it has `max` elements.
    /// Protects them again. Returns where to go on if `found` became full.
    ///
    /// Pages that are absent or merged are not looked at; those that became so, or the zero page, after they
    /// were written, and that no scan found in between, are reported as [gone](Presence::Gone), once. So are zero
    /// pages that filled absent ones: they look no different. A page that the kernel copied inside a mapping of
    /// the store, or that is not protected there, is found each time: nobody knows whether it was written.
    /// About 2 ns for each private page that was not written.
    /// Waits for those who hold pages of the range when it begins; a page that is taken into transit
    /// afterwards, by another worker that merges, is told by the next scan.
    ///
    /// Blocks that are whole are passed over, unless `reach` says otherwise: see [`Reach`].
    ///
    /// # Errors
    /// As `PAGEMAP_SCAN`, and `UFFDIO_REGISTER` where whole blocks are to be reached.
    pub fn scan_for(
        &mut self,
        sought: Sought,
        reach: Reach,
        range: PageRange,
        found: &mut Vec<PageSpan>,
        max: usize,
    ) -> io::Result<Option<PageIndex>> {
        self.staging.empty();
        let query = sought.query();
        for part in self.tracked_parts(range, reach)? {
            let region = &part.region;
            let (mut at, end) = (region.address(part.pages.first), part.end_address());
            self.core.settle(at, end);
            let mut pending_reports = region.pending_run(part.pages);
            // Pages before this one are not told to be gone again.
            let mut gone_until = part.pages.first;
            while at < end {
                if found.len() >= max {
                    return Ok(Some(region.page(at)));
                }
                let limit = pending_reports.map_or(end, |run| region.address(run.pages.first));
                if let Some(run) = pending_reports.filter(|_| at == limit) {
                    region.note_reported(run);
                    let PageRange { first, count } = run.pages;
                    found.push(PageSpan {
                        first: first.0,
                        count,
                        presence: if run.untracked { Presence::Present } else { Presence::Gone },
                    });
                    let behind = run.pages.end();
                    // What is gone may be back, and is looked at like all others.
                    at = if run.untracked { at.plus_pages(count) } else { at };
                    gone_until = behind;
                    pending_reports =
                        region.pending_run(PageRange::new(behind, part.pages.end().0 - behind.0));
                    continue;
                }
                let room = (max - found.len()).min(EXTENTS_PER_CALL_MAX);
                let (grain, alike) = region.alike_until(region.page(at), part.pages.end());
                let limit = limit.min(region.start().plus_pages(alike.0 - region.pages().first.0));
                let scanned = match grain {
                    Grain::Block => self.scan_blocks(region, sought, at..limit, room)?,
                    Grain::Page => self.scan_pages(query, at..limit, room)?,
                };
                at = scanned.resume_at;
                let extents = &self.extents[..scanned.extents];
                found.extend(
                    extents.iter().filter_map(|extent| span_of(region, extent, gone_until)),
                );
                match grain {
                    Grain::Block => self.track_split_blocks(region, scanned.extents),
                    Grain::Page if reach == Reach::All => {
                        self.track_huge_pages(region, scanned.extents);
                    }
                    Grain::Page => {}
                }
            }
        }
        Ok(None)
    }

    /// Finds pages that are tracked by page, and protects them again.
    fn scan_pages(
        &mut self,
        query: Query,
        range: Range<HostAddress>,
        room: usize,
    ) -> io::Result<Scanned> {
        let bytes = range.end.0 - range.start.0;
        self.core.pagemap.scan(range.start, bytes, query, &mut self.extents[..room])
    }

    /// Tracks huge pages as such that were found to be written among the first `count` extents: the kernel
    /// has made them since.
    fn track_huge_pages(&self, region: &Arc<Region>, count: usize) {
        for extent in &self.extents[..count] {
            let blocks = blocks_of(region, extent);
            if extent.categories & category::HUGE != 0 && !blocks.is_empty() {
                self.core.change_grain(region, blocks, Grain::Block);
            }
        }
    }

    /// Finds pages that are tracked by block, and protects those blocks again that are huge pages.
    fn scan_blocks(
        &mut self,
        region: &Arc<Region>,
        sought: Sought,
        range: Range<HostAddress>,
        room: usize,
    ) -> io::Result<Scanned> {
        let start = range.start;
        // Whole blocks: of one that is cut nothing is protected.
        let most = HostAddress(start.plus_pages(TRACKED_PAGES).0 & !(HUGE_PAGE_BYTES - 1));
        let end = range.end.min(most);
        // Nobody splits a block, or unmaps it, between the look and the protection.
        let _hold = self.core.hold(start, end);
        if !self.core.regions.has(region) {
            return Ok(Scanned { extents: 0, resume_at: end });
        }
        let extents = &mut self.extents[..room];
        let scanned =
            self.core.pagemap.scan(start, end.0 - start.0, sought.block_query(), extents)?;
        let own = category::HUGE | category::ZERO;
        for extent in
            extents[..scanned.extents].iter().filter(|e| e.categories & own == category::HUGE)
        {
            self.core.protect_blocks(region, blocks_of(region, extent));
        }
        Ok(scanned)
    }

    /// Tracks blocks by page that the kernel was found to have split among the first `count` extents.
    fn track_split_blocks(&self, region: &Arc<Region>, count: usize) {
        let is_huge = |extent: &&Extent| extent.categories & category::HUGE != 0;
        for extent in self.extents[..count].iter().filter(|extent| !is_huge(extent)) {
            let (mut at, end) = [extent.start, extent.end]
                .map(|address| region.page(HostAddress(address as usize)))
                .into();
            while at < end {
                let block = region.block(at);
                if region.grain(at) == Grain::Block {
                    self.core.change_grain(region, block, Grain::Page);
                }
                at = block.end();
            }
        }
    }

    /// Returns the managed parts of a range, after tracking writes in their whole blocks, or no more, as
    /// `reach` says.
    fn tracked_parts(&self, range: PageRange, reach: Reach) -> io::Result<Vec<Part>> {
        loop {
            let parts = self.core.parts(range);
            let mut stand = true;
            for part in &parts {
                stand &= self.track(&part.region, reach)?;
            }
            // One that was cut meanwhile is looked up again: in parts that are new nothing may be tracked.
            if stand {
                return Ok(parts);
            }
        }
    }

    /// Tracks writes in the whole blocks of a region, too, or no more. Returns false if the region is no more.
    fn track(&self, region: &Arc<Region>, reach: Reach) -> io::Result<bool> {
        let is_tracked = reach == Reach::All;
        // Relaxed: whoever changes it has the region mapped.
        if !region.watched || region.is_tracked.load(Ordering::Relaxed) == is_tracked {
            return Ok(true);
        }
        let _mapped = region.mapped.read().unwrap_or_else(PoisonError::into_inner);
        if !self.core.regions.has(region) {
            return Ok(false);
        }
        // First: a block that is made whole meanwhile is tracked by who does that.
        region.is_tracked.store(is_tracked, Ordering::Relaxed);
        // Whoever touches what is held waits.
        for piece in region.pages().pieces_of_blocks(TRACKED_PAGES) {
            let start = region.address(piece.first);
            let _hold = self.core.hold(start, start.plus_pages(piece.count));
            match reach {
                Reach::All => self.core.track(region, piece).inspect_err(|_| {
                    region.is_tracked.store(false, Ordering::Relaxed);
                })?,
                Reach::Split => self.core.end_tracking(region, piece),
            }
        }
        Ok(true)
    }

    /// Digests pages as they are now; a page that is written meanwhile gets some digest,
    /// and one that is not managed, or cannot be read, or is absent in a whole block, none.
    pub fn digest(&mut self, pages: &[u32], key: &DigestKey, digests: &mut Vec<PageDigest>) {
        let examine = |region: &Region, page, next| {
            let [bytes, next] =
                [page, next].map(|page| region.address(PageIndex(page)).0 as *const u8);
            // SAFETY: `look` gives a region that is mapped and stays so: a page is 4096 bytes,
            // aligned to as many.
            match unsafe { bindery_page::examine_at(bytes, next, key) } {
                Examined::Zero => PageDigest { kind: DigestKind::Zeros, digest: [0; 2] },
                Examined::Content(digest) => {
                    PageDigest { kind: DigestKind::Content, digest: digest.to_words() }
                }
            }
        };
        let Ok(()) = self.look(pages, |pages, region| {
            let nexts = pages.iter().skip(1).chain(pages.last());
            digests.extend(pages.iter().zip(nexts).map(|(&page, &next)| {
                region.map_or_else(PageDigest::default, |region| examine(region, page, next))
            }));
            Ok::<(), Infallible>(())
        });
    }

    /// Whether `pages` pages of this process's memory from `start` on are mapped and have memory.
    pub(crate) fn are_here(&self, start: HostAddress, pages: u32) -> bool {
        let mut extents = [Extent::default()];
        let bytes = pages as usize * PAGE_BYTES;
        let scanned = self.core.pagemap.scan(start, bytes, PRESENT, &mut extents);
        scanned.is_ok_and(|scanned| scanned.extents == 1 && extents[0].pages() == pages as usize)
    }

    /// Copies pages to `to`, one after the other. `found` is told of each whether it is managed and can be
    /// read, and not absent in a whole block; in place of one that is not, what was there stays.
    ///
    /// # Safety
    /// `to` must be writable for as many pages, and aligned to 8; others may read and write there
    /// meanwhile.
    pub unsafe fn copy(&mut self, pages: &[u32], to: *mut u8, mut found: impl FnMut(bool)) {
        let mut at = to;
        let Ok(()) = self.look(pages, |pages, region| {
            for page in pages {
                found(region.is_some());
                if let Some(region) = region {
                    let bytes = region.address(PageIndex(*page)).0 as *const u8;
                    // SAFETY: `look` gives a region that is mapped and stays so; the caller's contract.
                    unsafe { mapping::copy_page(bytes, at) };
                }
                at = at.wrapping_add(PAGE_BYTES);
            }
            Ok::<(), Infallible>(())
        });
    }

    /// Calls `found` with `pages`, some at a time, and with the region that they are in,
    /// which stays mapped during the call; or with none, if they are not managed or cannot be read.
    fn look<E>(
        &self,
        pages: &[u32],
        mut found: impl FnMut(&[u32], Option<&Region>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = pages;
        while let [first, ..] = *rest {
            let Some(region) = self.core.regions.of(PageIndex(first)) else {
                found(&rest[..1], None)?;
                rest = &rest[1..];
                continue;
            };
            let _mapped = region.mapped.read().unwrap_or_else(PoisonError::into_inner);
            // Somebody who unmaps waits for us, so let go now and then.
            let batch = rest.iter().take(LOOK_PAGES);
            let count = batch.take_while(|&&page| region.pages().contains(PageIndex(page))).count();
            let stands = self.core.regions.has(&region);
            let (count, can_be_read) =
                if stands { self.alike(&rest[..count], &region) } else { (count, false) };
            found(&rest[..count], can_be_read.then_some(&region))?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// How many of a region's pages, from the first on, can be read or cannot be read as it, and which of
    /// the two. To read an absent page of a whole block would give it memory.
    fn alike(&self, pages: &[u32], region: &Region) -> (usize, bool) {
        let has_errors = self.core.has_memory_errors();
        let is_split = region.is_split(PageIndex(pages[0]));
        if is_split && !has_errors {
            let is_split = |page: &&u32| region.is_split(PageIndex(**page));
            return (pages.iter().take_while(is_split).count(), true);
        }
        let block = region.block(PageIndex(pages[0]));
        let window = pages[0]..block.end().0.min(pages[0] + WINDOW_PAGES);
        let count = pages.iter().zip(window).take_while(|(page, at)| *page == at).count() as u32;
        let start = region.address(PageIndex(pages[0]));
        let mut readable = PageSet::first(count);
        if !is_split {
            // Where the kernel does not say, none is read.
            readable = find_pages(&self.core.pagemap, start, count, HERE).unwrap_or_default();
        }
        if has_errors {
            readable = self.core.readable(start, readable);
        }
        match readable.contains(0) {
            true => (readable.0.trailing_ones() as usize, true),
            false => (readable.0.trailing_zeros().min(count) as usize, false),
        }
    }
}

/// Returns the pages of an extent, which are there, or gone if they are the zero page: then without those before
/// `gone_until`. Nothing if none is left, or they are a huge zero page, which comes to absent pages alone.
fn span_of(region: &Region, extent: &Extent, gone_until: PageIndex) -> Option<PageSpan> {
    let first = region.page(HostAddress(extent.start as usize)).0;
    let count = extent.pages() as u32;
    if extent.categories & category::ZERO == 0 {
        return Some(PageSpan { first, count, presence: Presence::Present });
    }
    let from = first.max(gone_until.0);
    let is_told = extent.categories & category::HUGE == 0 && from < first + count;
    is_told.then(|| PageSpan { first: from, count: first + count - from, presence: Presence::Gone })
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use bindery_sys::mapping::Mapping;
    use bindery_sys::table;
    use bindery_wire::lane::BLOCK_PAGES;

    use super::*;
    use crate::Space;

    /// Has a page be as one that had an uncorrected memory error, see ioctl_userfaultfd(2).
    fn poison(space: &Space, address: HostAddress) {
        const UFFDIO_POISON: libc::c_ulong = 0xc020_aa08;
        let mut argument = [address.0 as u64, PAGE_BYTES as u64, 0, 0];
        table::run(|| {
            let file = space.core.guest_faults.inside().as_fd().as_raw_fd();
            // SAFETY: the structure of the request: range, mode, what was done. The page is the test's.
            let result = unsafe { libc::ioctl(file, UFFDIO_POISON, argument.as_mut_ptr()) };
            assert_eq!(result, 0, "{}", io::Error::last_os_error());
        });
    }

    #[test]
    fn what_cannot_be_read_is_not_there() {
        let space = match Space::start() {
            Ok(space) => space,
            Err(error) => return bindery_testkit::skipped!("{error}"),
        };
        let memory = Mapping::anonymous(8 * PAGE_BYTES).expect("memory");
        let region = space.manage(memory.address(), memory.bytes()).expect("manage");
        let mut worker = space.worker().expect("worker");
        worker.split(&[region.pages.first.0 / BLOCK_PAGES * BLOCK_PAGES], &mut Vec::new());
        poison(&space, region.address.plus_pages(3));
        space.core.memory_errors.store(true, Ordering::Relaxed);
        let pages: Vec<u32> = region.pages.pages().map(|page| page.0).collect();
        let mut digests = Vec::new();
        worker.digest(&pages, &DigestKey::generate().expect("key"), &mut digests);
        let kinds = digests.iter().map(|digest| digest.kind);
        let mut expected = [DigestKind::Zeros; 8];
        expected[3] = DigestKind::Nothing;
        assert_eq!(kinds.collect::<Vec<_>>(), expected);
        let (mut bytes, mut found) = ([0_u8; 8 * PAGE_BYTES], Vec::new());
        // SAFETY: so many pages of our own.
        unsafe { worker.copy(&pages, bytes.as_mut_ptr(), |is| found.push(is)) };
        assert_eq!(found, [true, true, true, false, true, true, true, true]);
        space.forget(memory.address(), memory.bytes());
    }
}
