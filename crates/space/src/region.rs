//! A region: managed memory of the process, as pages, and what is known of each.
//!
//! A region can shrink or fall in two when its VMM unmaps a part; the parts keep sharing the
//! tables.

use std::{
    io,
    ops::Range,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use bindery_sys::{mapping::Mapping, maps::Advised};
use bindery_units::{HostAddress, PAGE_BYTES, PAGE_SHIFT, PageIndex, PageRange};

use bindery_wire::{control::Region as Announced, lane::BLOCK_PAGES};

use crate::{
    advice::{Advice, LastingAdvice},
    pending_reports::PendingReports,
    space_entry::SpaceEntry,
    tracking::Grain,
};

/// Pages that share one bit of the summary of losses.
pub(crate) const GROUP_PAGES: usize = 64;

/// The entries of a region's pages, a summary of those that were lost, those that the next scan has to
/// tell of, and what the VMM advised for each page.
#[derive(Debug)]
struct Table {
    entries: Mapping,
    lost: Mapping,
    pending_reports: PendingReports,
    advice: Advice,
}

/// Consecutive pages that a scan has to tell of whatever the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingRun {
    pub(crate) pages: PageRange,
    /// They may be written without any scan finding that. If not, they have changed once, and what is
    /// there now may not be the guest's own.
    pub(crate) untracked: bool,
}

/// Managed memory of this process.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) announced: Announced,
    table: Arc<Table>,
    /// The page that the table's first entry is for.
    table_base: PageIndex,
    /// Held for reading while a lane looks at pages, for writing while memory goes away. Taken
    /// before pages are held, never after.
    pub(crate) mapped: RwLock<()>,
    /// True if faults of its pages may come to us. If not, the region was given back, and is here for
    /// CoW copies whose discards are still ours.
    pub(crate) watched: bool,
    /// Bits of blocks that are split, from the region's first one on. Each part has its own: where a block is cut,
    /// either side of it is whole or split by itself.
    split: Box<[AtomicU64]>,
    /// Bits of whole blocks in which writes are tracked by block.
    by_block: Box<[AtomicU64]>,
    /// True while writes are tracked in blocks that are whole, too. Changed by who has `mapped` for reading
    /// and holds the region.
    pub(crate) is_tracked: AtomicBool,
}

impl Region {
    /// Makes the tables of a region, all of whose pages are private. `advised`: where memory begins that
    /// is advised otherwise than what is before it, ascending.
    pub(crate) fn new(
        announced: Announced,
        advised: impl IntoIterator<Item = (HostAddress, Advised)>,
    ) -> io::Result<Self> {
        let pages = announced.pages.count as usize;
        let page = |at: HostAddress| {
            announced.pages.first.plus(((at.0 - announced.address.0) >> PAGE_SHIFT) as u32)
        };
        let advised = advised.into_iter().map(|(at, advised)| (page(at), advised));
        let words = |bits: usize| Mapping::anonymous(bits.div_ceil(64) * size_of::<AtomicU64>());
        let table = Table {
            entries: Mapping::anonymous(pages * size_of::<AtomicU32>())?,
            lost: words(pages.div_ceil(GROUP_PAGES))?,
            pending_reports: PendingReports::new(pages)?,
            advice: Advice::new(announced.pages.first, advised),
        };
        Ok(Self {
            announced,
            table: Arc::new(table),
            table_base: announced.pages.first,
            mapped: RwLock::new(()),
            watched: true,
            split: block_bits(announced.pages),
            by_block: block_bits(announced.pages),
            is_tracked: AtomicBool::new(false),
        })
    }

    /// The part of the region that holds `pages`, as a region of its own. Nobody splits blocks meanwhile, or
    /// makes them whole.
    pub(crate) fn part(&self, pages: PageRange) -> Self {
        let skipped = pages.first.0 - self.pages().first.0;
        let part = Self {
            announced: Announced { pages, address: self.announced.address.plus_pages(skipped) },
            table: Arc::clone(&self.table),
            table_base: self.table_base,
            mapped: RwLock::new(()),
            watched: self.watched,
            split: block_bits(pages),
            by_block: block_bits(pages),
            is_tracked: AtomicBool::new(self.is_tracked.load(Ordering::Relaxed)),
        };
        for block in part.blocks(pages).filter(|block| self.is_split(block.first)) {
            part.set_split(block.first, true);
        }
        for block in part.blocks(pages) {
            part.set_grain(block, self.grain(block.first));
        }
        part
    }

    /// The same part once the region is given back.
    pub(crate) fn unwatched_part(&self, pages: PageRange) -> Self {
        Self { watched: false, ..self.part(pages) }
    }

    /// Returns the number of parts that there are of the region that was offered, at most.
    pub(crate) fn parts(&self) -> usize {
        Arc::strong_count(&self.table)
    }

    pub(crate) const fn pages(&self) -> PageRange {
        self.announced.pages
    }

    pub(crate) const fn start(&self) -> HostAddress {
        self.announced.address
    }

    pub(crate) const fn end(&self) -> HostAddress {
        self.announced.address.plus_pages(self.announced.pages.count)
    }

    /// Where `page` is mapped.
    pub(crate) fn address(&self, page: PageIndex) -> HostAddress {
        debug_assert!(self.pages().contains(page), "a page is looked for in its own region");
        self.start().plus_pages(page.0 - self.pages().first.0)
    }

    /// The page at `address`, which the region holds.
    pub(crate) fn page(&self, address: HostAddress) -> PageIndex {
        self.pages().first.plus(((address.0 - self.start().0) >> PAGE_SHIFT) as u32)
    }

    /// The region's pages between two addresses.
    pub(crate) fn pages_between(&self, start: HostAddress, end: HostAddress) -> PageRange {
        let (low, high) = (start.max(self.start()), end.min(self.end()));
        if low >= high {
            return PageRange::default();
        }
        PageRange::new(self.page(low), ((high.0 - low.0).div_ceil(PAGE_BYTES)) as u32)
    }

    /// Notes what the VMM advised for pages of the region.
    pub(crate) fn note_advice(&self, pages: PageRange, advice: LastingAdvice) {
        self.table.advice.note(pages, advice);
    }

    /// Returns how a page is advised, and which of `pages` around it, that has it, are so too. Allocates
    /// nothing.
    pub(crate) fn advised_run(&self, page: PageIndex, pages: PageRange) -> (Advised, PageRange) {
        self.table.advice.run(page, pages)
    }

    fn entry_cell(&self, page: PageIndex) -> &AtomicU32 {
        assert!(self.pages().contains(page), "a page's entry is in its own region");
        let at = (page.0 - self.table_base.0) as usize;
        // SAFETY: the table has an entry for every page of the region it was made for, of which
        // `self` is a part; it is zeroed memory, aligned to a page, and lives as long as `self`.
        unsafe { &*self.table.entries.as_ptr().cast::<AtomicU32>().add(at) }
    }

    pub(crate) fn entry(&self, page: PageIndex) -> SpaceEntry {
        // Acquire: pairs with the Release in `set_entry`, so that who sees a page merged also sees
        // the mapping that was made for it.
        SpaceEntry(self.entry_cell(page).load(Ordering::Acquire))
    }

    /// Sets the entry of a page that the caller holds and that has no loss to report.
    pub(crate) fn set_entry(&self, page: PageIndex, entry: SpaceEntry) {
        // The entry before its summary bit: a reporter that clears the bit and then reads the entry
        // either finds the loss or leaves a bit for the next.
        let before = SpaceEntry(self.entry_cell(page).swap(entry.0, Ordering::Release));
        self.note_change(page, before, entry);
    }

    /// Changes the entry of a page that the caller holds, and of which a reporter may take the mark
    /// of a loss away meanwhile. Returns the entry that there was.
    pub(crate) fn change_entry(
        &self,
        page: PageIndex,
        change: impl Fn(SpaceEntry) -> SpaceEntry,
    ) -> SpaceEntry {
        let cell = self.entry_cell(page);
        let mut before = SpaceEntry(cell.load(Ordering::Acquire));
        loop {
            let after = change(before);
            // Release: as in `set_entry`.
            let changed =
                cell.compare_exchange(before.0, after.0, Ordering::AcqRel, Ordering::Acquire);
            match changed {
                Ok(_) => {
                    self.note_change(page, before, after);
                    return before;
                }
                Err(now) => before = SpaceEntry(now),
            }
        }
    }

    fn note_change(&self, page: PageIndex, before: SpaceEntry, entry: SpaceEntry) {
        if entry.kind().is_untracked() && !before.kind().is_untracked() {
            self.add_pending(PageRange::new(page, 1));
        }
        if entry.is_lost() {
            let (word, bit) = self.lost_bit(page);
            // Release: pairs with the Acquire in `take_lost_groups`.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Has the next scan tell of pages that the caller holds.
    pub(crate) fn add_pending(&self, pages: PageRange) {
        self.table.pending_reports.add(self.places(pages));
    }

    /// The first of `pages`, one after the other, that a scan has to tell of whatever the kernel says:
    /// all of them untracked, or none. Those that are stay so; the others are told now, and no more.
    pub(crate) fn pending_run(&self, pages: PageRange) -> Option<PendingRun> {
        let found = self.table.pending_reports.run(self.places(pages))?;
        let first = self.table_base.plus(found.start as u32);
        let is_untracked = |page: PageIndex| self.entry(page).kind().is_untracked();
        let untracked = is_untracked(first);
        let rest = PageRange::new(first, found.len() as u32);
        let count = rest.pages().take_while(|page| is_untracked(*page) == untracked).count();
        Some(PendingRun { pages: PageRange::new(first, count as u32), untracked })
    }

    /// The caller tells of `run`.
    pub(crate) fn note_reported(&self, run: PendingRun) {
        if run.untracked {
            return;
        }
        self.table.pending_reports.remove(self.places(run.pages));
        // Whoever makes a page untracked adds it afterwards: either that is seen here or stays.
        for page in run.pages.pages().filter(|page| self.entry(*page).kind().is_untracked()) {
            self.add_pending(PageRange::new(page, 1));
        }
    }

    /// Stops the next scan from reporting pages that are the region's no more.
    pub(crate) fn forget_pending(&self, pages: PageRange) {
        self.table.pending_reports.remove(self.places(pages));
    }

    /// Where `pages` are in the table.
    fn places(&self, pages: PageRange) -> Range<usize> {
        let first = (pages.first.0 - self.table_base.0) as usize;
        first..first + pages.count as usize
    }

    /// Takes the mark of a loss away, unless the page changed meanwhile.
    pub(crate) fn report_loss(&self, page: PageIndex, seen: SpaceEntry) -> bool {
        self.entry_cell(page)
            .compare_exchange(seen.0, seen.reported().0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn lost_bit(&self, page: PageIndex) -> (&AtomicU64, u64) {
        let group = (page.0 - self.table_base.0) as usize / GROUP_PAGES;
        // SAFETY: the summary has a bit for every group of the table; see `entry_cell`.
        let word = unsafe { &*self.table.lost.as_ptr().cast::<AtomicU64>().add(group / 64) };
        (word, 1 << (group % 64))
    }

    /// Returns the pages of the block that `page` is in, as far as the region has them.
    pub(crate) fn block(&self, page: PageIndex) -> PageRange {
        let first = PageIndex(page.0 - page.0 % BLOCK_PAGES);
        PageRange::new(first, BLOCK_PAGES).intersection(self.pages())
    }

    /// Returns the blocks that `pages` have a part of, ascending.
    pub(crate) fn blocks(&self, pages: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        let numbers = pages.first.0 / BLOCK_PAGES..pages.end().0.div_ceil(BLOCK_PAGES);
        let pages = self.pages();
        numbers.map(move |number| {
            PageRange::new(PageIndex(number * BLOCK_PAGES), BLOCK_PAGES).intersection(pages)
        })
    }

    /// Returns true if the block of `page` is split: watched page by page. Blocks that are whole are the
    /// kernel's own.
    pub(crate) fn is_split(&self, page: PageIndex) -> bool {
        let (word, bit) = self.block_bit(&self.split, page);
        // Acquire: pairs with the Release in `set_split`, so that who sees it split also sees it watched.
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Notes whether the block of `page` is split. The caller holds pages of it, or all of it if it is not.
    pub(crate) fn set_split(&self, page: PageIndex, is_split: bool) {
        let (word, bit) = self.block_bit(&self.split, page);
        // Release: pairs with the Acquire in `is_split`.
        if is_split {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Returns the way in which writes are tracked in the block of `page`, if it is whole and they are.
    pub(crate) fn grain(&self, page: PageIndex) -> Grain {
        let (word, bit) = self.block_bit(&self.by_block, page);
        // Acquire: pairs with the Release in `set_grain`, so that who sees it also sees the registration.
        if word.load(Ordering::Acquire) & bit == 0 { Grain::Page } else { Grain::Block }
    }

    /// Notes the way in which writes are tracked in the blocks of `pages`, which the caller holds.
    pub(crate) fn set_grain(&self, pages: PageRange, grain: Grain) {
        for block in self.blocks(pages) {
            let (word, bit) = self.block_bit(&self.by_block, block.first);
            // Release: pairs with the Acquire in `grain`.
            match grain {
                Grain::Block => word.fetch_or(bit, Ordering::Release),
                Grain::Page => word.fetch_and(!bit, Ordering::Release),
            };
        }
    }

    /// Returns how the block of `page` is tracked, and the end of the blocks from there on that are alike, no
    /// further than `end`.
    pub(crate) fn alike_until(&self, page: PageIndex, end: PageIndex) -> (Grain, PageIndex) {
        let grain = self.grain(page);
        let mut at = self.block(page).end();
        while at < end && self.grain(at) == grain {
            at = self.block(at).end();
        }
        (grain, at.min(end))
    }

    fn block_bit<'b>(&self, bits: &'b [AtomicU64], page: PageIndex) -> (&'b AtomicU64, u64) {
        assert!(self.pages().contains(page), "a page's block is looked for in its own region");
        let block = (page.0 / BLOCK_PAGES - self.pages().first.0 / BLOCK_PAGES) as usize;
        (&bits[block / 64], 1 << (block % 64))
    }

    /// Calls `found` with the pages of each group in which a loss may stand, and forgets the group.
    /// `found` says whether to go on; if not, the group is remembered.
    pub(crate) fn take_lost_groups(&self, mut found: impl FnMut(PageRange) -> bool) -> bool {
        let mut page = self.pages().first;
        while page < self.pages().end() {
            let offset = (page.0 - self.table_base.0) as usize % GROUP_PAGES;
            let count = ((GROUP_PAGES - offset) as u32).min(self.pages().end().0 - page.0);
            let (word, bit) = self.lost_bit(page);
            // Acquire: pairs with the Release in `set_entry`.
            // A group that another part shares keeps its bit: the loss may be the other's.
            let whole = count as usize == GROUP_PAGES;
            let clear = if whole { !bit } else { !0 };
            if word.load(Ordering::Relaxed) & bit != 0
                && word.fetch_and(clear, Ordering::Acquire) & bit != 0
                && !found(PageRange::new(page, count))
            {
                word.fetch_or(bit, Ordering::Release);
                return false;
            }
            page = page.plus(count);
        }
        true
    }
}

/// Returns a bit for each block that `pages` have a part of.
fn block_bits(pages: PageRange) -> Box<[AtomicU64]> {
    let blocks = pages.end().0.div_ceil(BLOCK_PAGES) - pages.first.0 / BLOCK_PAGES;
    (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(test)]
mod tests {
    use bindery_units::Slot;

    use super::*;
    use bindery_wire::control::StoreId;

    use crate::space_entry::Kind;

    fn region(first: u32, count: u32) -> Region {
        let announced = Announced {
            pages: PageRange::new(PageIndex(first), count),
            address: HostAddress(0x10_0000),
        };
        Region::new(announced, []).expect("small tables")
    }

    #[test]
    fn addresses_and_pages_agree() {
        let region = region(512, 100);
        let page = PageIndex(530);
        assert_eq!(region.page(region.address(page)), page);
        let half = region.pages_between(HostAddress(0x0f_f000), HostAddress(0x10_2001));
        assert_eq!(half, PageRange::new(PageIndex(512), 3));
    }

    #[test]
    fn a_loss_is_reported_once_and_by_the_part_that_holds_it() {
        let whole = region(0, 300);
        let broken = SpaceEntry::new(Kind::Broken, StoreId(1), Slot(9));
        whole.set_entry(PageIndex(299), broken);
        let (left, right) = (
            whole.part(PageRange::new(PageIndex(0), 290)),
            whole.part(PageRange::new(PageIndex(290), 10)),
        );
        let collect = |region: &Region| {
            let mut pages = Vec::new();
            region.take_lost_groups(|range| {
                for page in range.pages() {
                    let entry = region.entry(page);
                    if entry.is_lost() && region.report_loss(page, entry) {
                        pages.push(page);
                    }
                }
                true
            });
            pages
        };
        assert_eq!(collect(&left), []);
        assert_eq!(collect(&right), [PageIndex(299)]);
        assert_eq!(collect(&right), []);
    }

    #[test]
    fn untracked_pages_are_told_by_the_part_that_holds_them_until_they_are_no_more() {
        let whole = region(0, 300);
        assert_eq!(whole.pending_run(whole.pages()), None);
        let bound = SpaceEntry::new(Kind::Unprotected, StoreId(1), Slot(9));
        let lost = bound.with_kind(Kind::CowCopyLost);
        let kinds = [(7, SpaceEntry::COW_COPY), (8, bound), (9, lost), (290, SpaceEntry::COW_COPY)];
        kinds.iter().for_each(|(page, entry)| whole.set_entry(PageIndex(*page), *entry));
        assert!(whole.report_loss(PageIndex(9), lost));
        let range = |first, count| PageRange::new(PageIndex(first), count);
        let run =
            |first, count, untracked| Some(PendingRun { pages: range(first, count), untracked });
        let part = |first, count| whole.part(range(first, count)).pending_run(range(first, count));
        for _ in 0..2 {
            assert_eq!(whole.pending_run(range(0, 300)), run(7, 3, true));
            whole.note_reported(run(7, 3, true).unwrap());
        }
        assert_eq!(whole.pending_run(range(8, 1)), run(8, 1, true));
        assert_eq!((part(100, 100), part(280, 20)), (None, run(290, 1, true)));
        for (page, _) in kinds {
            whole.change_entry(PageIndex(page), |_| SpaceEntry::PRIVATE);
        }
        // How they got rid of their copies nobody has told.
        assert_eq!(whole.pending_run(range(0, 300)), run(7, 3, false));
        whole.note_reported(run(7, 3, false).unwrap());
        assert_eq!(whole.pending_run(range(0, 300)), run(290, 1, false));
        whole.forget_pending(range(256, 44));
        assert_eq!(whole.pending_run(range(0, 300)), None);
    }

    #[test]
    fn pages_that_changed_are_told_once_and_apart_from_untracked_ones() {
        let region = region(512, 300);
        let range = |first, count| PageRange::new(PageIndex(first), count);
        region.add_pending(range(600, 10));
        region.set_entry(PageIndex(604), SpaceEntry::COW_COPY);
        let mut reported = Vec::new();
        let mut at = 512;
        while let Some(run) = region.pending_run(range(at, 812 - at)) {
            region.note_reported(run);
            reported.push((run.pages.first.0, run.pages.count, run.untracked));
            at = run.pages.end().0;
        }
        assert_eq!(reported, [(600, 4, false), (604, 1, true), (605, 5, false)]);
        let stays = PendingRun { pages: range(604, 1), untracked: true };
        assert_eq!(region.pending_run(range(512, 300)), Some(stays));
    }
}
