//! Regions: which memory of the process is managed, and as which pages.
//!
//! A region can shrink or fall in two when its VMM unmaps a part; the parts keep sharing the
//! tables. Page indices are never used again, so that a message about a region that is gone cannot
//! be taken for one about another.

use std::{
    fs::File,
    io,
    sync::{
        Arc, RwLock, RwLockReadGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use bindery_sys::{mapping::Mapping, maps::Advised};
use bindery_units::{HostAddress, PAGE_BYTES, PAGE_SHIFT, PageIndex, PageRange};

use crate::{advice::Advice, entry::Entry, extents::Extents, wire::control::Region as Announced};

/// Pages that share one bit of the summary of losses.
pub(crate) const GROUP_PAGES: usize = 64;

/// The entries of a region's pages and a summary of those that were lost.
#[derive(Debug)]
struct Table {
    entries: Mapping,
    lost: Mapping,
    /// How many pages there are that are untracked.
    untracked: AtomicU32,
}

/// Managed memory of this process.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) announced: Announced,
    table: Arc<Table>,
    /// The page that the table's first entry is for.
    table_base: PageIndex,
    /// What the VMM advised: mappings made later get it too.
    pub(crate) advice: Advice,
    /// Held for reading while a lane looks at pages, for writing while memory goes away. Taken
    /// before pages are held, never after.
    pub(crate) mapped: RwLock<()>,
    /// The file that a shared region was mapped from, kept to give it back.
    pub(crate) file: Option<Arc<File>>,
    pub(crate) file_offset_bytes: u64,
    /// Whether faults of its pages come to us. If not, the region was given back, and is here for
    /// strays whose discards are still ours.
    pub(crate) watched: bool,
}

impl Region {
    pub(crate) fn new(
        announced: Announced,
        file: Option<Arc<File>>,
        file_offset_bytes: u64,
        advised: Advised,
    ) -> io::Result<Self> {
        let pages = announced.pages.count as usize;
        let groups = pages.div_ceil(GROUP_PAGES).div_ceil(64);
        let table = Table {
            entries: Mapping::anonymous(pages * size_of::<AtomicU32>())?,
            lost: Mapping::anonymous(groups * size_of::<AtomicU64>())?,
            untracked: AtomicU32::new(0),
        };
        Ok(Self {
            announced,
            table: Arc::new(table),
            table_base: announced.pages.first,
            advice: advised.into(),
            mapped: RwLock::new(()),
            file,
            file_offset_bytes,
            watched: true,
        })
    }

    /// The part of the region that holds `pages`, as a region of its own.
    pub(crate) fn part(&self, pages: PageRange) -> Self {
        let skipped = pages.first.0 - self.pages().first.0;
        Self {
            announced: Announced {
                pages,
                address: self.announced.address.plus_pages(skipped),
                backing: self.announced.backing,
            },
            table: Arc::clone(&self.table),
            table_base: self.table_base,
            advice: self.advised().into(),
            mapped: RwLock::new(()),
            file: self.file.clone(),
            file_offset_bytes: self.file_offset_bytes + (u64::from(skipped) << PAGE_SHIFT),
            watched: self.watched,
        }
    }

    /// The same part once the region is given back.
    pub(crate) fn unwatched_part(&self, pages: PageRange) -> Self {
        Self { watched: false, ..self.part(pages) }
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

    fn entry_cell(&self, page: PageIndex) -> &AtomicU32 {
        assert!(self.pages().contains(page), "a page's entry is in its own region");
        let at = (page.0 - self.table_base.0) as usize;
        // SAFETY: the table has an entry for every page of the region it was made for, of which
        // `self` is a part; it is zeroed memory, aligned to a page, and lives as long as `self`.
        unsafe { &*self.table.entries.as_ptr().cast::<AtomicU32>().add(at) }
    }

    pub(crate) fn entry(&self, page: PageIndex) -> Entry {
        // Acquire: pairs with the Release in `set_entry`, so that who sees a page merged also sees
        // the mapping that was made for it.
        Entry(self.entry_cell(page).load(Ordering::Acquire))
    }

    /// Sets the entry of a page that the caller holds and that has no loss to report.
    pub(crate) fn set_entry(&self, page: PageIndex, entry: Entry) {
        // The entry before its summary bit: a reporter that clears the bit and then reads the entry
        // either finds the loss or leaves a bit for the next.
        let before = Entry(self.entry_cell(page).swap(entry.0, Ordering::Release));
        self.note_change(page, before, entry);
    }

    /// Changes the entry of a page that the caller holds, and of which a reporter may take the mark
    /// of a loss away meanwhile. Returns the entry that there was.
    pub(crate) fn change_entry(&self, page: PageIndex, change: impl Fn(Entry) -> Entry) -> Entry {
        let cell = self.entry_cell(page);
        let mut before = Entry(cell.load(Ordering::Acquire));
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
                Err(now) => before = Entry(now),
            }
        }
    }

    fn note_change(&self, page: PageIndex, before: Entry, entry: Entry) {
        // Relaxed, as where it is read: who waits for those who hold pages sees what they counted.
        let (was, is) = (before.kind().is_untracked(), entry.kind().is_untracked());
        if is && !was {
            self.table.untracked.fetch_add(1, Ordering::Relaxed);
        } else if was && !is {
            self.table.untracked.fetch_sub(1, Ordering::Relaxed);
        }
        if entry.is_lost() {
            let (word, bit) = self.lost_bit(page);
            // Release: pairs with the Acquire in `take_lost_groups`.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// The first pages within `pages`, one after the other, that may be written without any scan finding
    /// that.
    pub(crate) fn untracked_run(&self, pages: PageRange) -> Option<PageRange> {
        if self.table.untracked.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let is_untracked = |page: &PageIndex| self.entry(*page).kind().is_untracked();
        let first = pages.pages().find(is_untracked)?;
        let rest = PageRange::new(first, pages.end().0 - first.0);
        let count = rest.pages().take_while(is_untracked).count();
        Some(PageRange::new(first, count as u32))
    }

    /// Takes the mark of a loss away, unless the page changed meanwhile.
    pub(crate) fn report_loss(&self, page: PageIndex, seen: Entry) -> bool {
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

/// All regions of the process.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    list: RwLock<Vec<Arc<Region>>>,
    next_page: AtomicU32,
    /// Their bounds, for those who may not wait.
    extents: Extents,
}

/// Regions start at multiples of this many pages, so that a group of pages is of one region.
const REGION_ALIGN_PAGES: u32 = 512;

impl Regions {
    /// Page indices for a region of `count` pages, never given before.
    pub(crate) fn number(&self, count: u32) -> Option<PageRange> {
        let aligned = count.checked_next_multiple_of(REGION_ALIGN_PAGES)?;
        let first = self
            .next_page
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(aligned))
            .ok()?;
        Some(PageRange::new(PageIndex(first), count))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Region>>> {
        self.list.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether any managed memory may be between two addresses. Takes no lock.
    pub(crate) fn may_overlap(&self, start: HostAddress, end: HostAddress) -> bool {
        self.extents.may_overlap(start, end)
    }

    pub(crate) fn of(&self, page: PageIndex) -> Option<Arc<Region>> {
        self.read().iter().find(|region| region.pages().contains(page)).cloned()
    }

    pub(crate) fn overlapping(&self, start: HostAddress, end: HostAddress) -> Vec<Arc<Region>> {
        if !self.may_overlap(start, end) {
            return Vec::new();
        }
        let regions = self.read();
        regions.iter().filter(|r| r.start() < end && start < r.end()).cloned().collect()
    }

    pub(crate) fn add(&self, region: Region) -> Arc<Region> {
        let region = Arc::new(region);
        self.replace(|list| list.push(Arc::clone(&region)));
        region
    }

    /// Takes `pages` out of `region`; what is left of it stays.
    pub(crate) fn cut(&self, region: &Arc<Region>, pages: PageRange) {
        let all = region.pages();
        let before = PageRange::new(all.first, pages.first.0 - all.first.0);
        let after = PageRange::new(pages.end(), all.end().0 - pages.end().0);
        let rest = [before, after].into_iter().filter(|rest| !rest.is_empty());
        self.exchange(region, rest.map(|rest| region.part(rest)).collect());
    }

    /// Puts `parts` of a region in its place.
    pub(crate) fn exchange(&self, region: &Arc<Region>, parts: Vec<Region>) {
        self.replace(|list| {
            list.retain(|other| !Arc::ptr_eq(other, region));
            list.extend(parts.into_iter().map(Arc::new));
        });
    }

    /// Whether a region was neither cut nor taken out since it was looked up.
    pub(crate) fn has(&self, region: &Arc<Region>) -> bool {
        self.read().iter().any(|other| Arc::ptr_eq(other, region))
    }

    fn replace(&self, change: impl FnOnce(&mut Vec<Arc<Region>>)) {
        let mut list = self.list.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        change(&mut list);
        self.extents.replace(list.iter().map(|region| (region.start(), region.end())));
    }
}

#[cfg(test)]
mod tests {
    use bindery_units::Slot;

    use super::*;
    use crate::{
        entry::Kind,
        wire::control::{Backing, StoreId},
    };

    fn region(first: u32, count: u32) -> Region {
        let announced = Announced {
            pages: PageRange::new(PageIndex(first), count),
            address: HostAddress(0x10_0000),
            backing: Backing::Anonymous,
        };
        Region::new(announced, None, 0, Advised::default()).expect("small tables")
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
        let broken = Entry::new(Kind::Broken, StoreId(1), Slot(9));
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
    fn untracked_pages_are_found_by_the_part_that_holds_them_until_they_are_no_more() {
        let whole = region(0, 300);
        assert_eq!(whole.untracked_run(whole.pages()), None);
        let bound = Entry::new(Kind::Bound, StoreId(1), Slot(9));
        let lost = bound.with_kind(Kind::StrayLost);
        let kinds = [(7, Entry::STRAY), (8, bound), (9, lost), (290, Entry::STRAY)];
        kinds.iter().for_each(|(page, entry)| whole.set_entry(PageIndex(*page), *entry));
        assert!(whole.report_loss(PageIndex(9), lost));
        let run = |first, count| PageRange::new(PageIndex(first), count);
        assert_eq!(whole.untracked_run(run(0, 300)), Some(run(7, 3)));
        assert_eq!(whole.untracked_run(run(8, 1)), Some(run(8, 1)));
        assert_eq!(whole.part(run(100, 100)).untracked_run(run(100, 100)), None);
        assert_eq!(whole.part(run(280, 20)).untracked_run(run(280, 20)), Some(run(290, 1)));
        for (page, _) in kinds {
            whole.change_entry(PageIndex(page), |_| Entry::PRIVATE);
        }
        assert_eq!(whole.table.untracked.load(Ordering::Relaxed), 0);
        assert_eq!(whole.untracked_run(run(0, 300)), None);
    }

    #[test]
    fn cutting_leaves_the_rest() {
        let regions = Regions::default();
        let whole = regions.add(region(0, 100));
        regions.cut(&whole, PageRange::new(PageIndex(10), 20));
        assert!(regions.of(PageIndex(9)).is_some() && regions.of(PageIndex(10)).is_none());
        assert_eq!(
            regions.of(PageIndex(30)).expect("rest").start(),
            HostAddress(0x10_0000 + 30 * 4096)
        );
        assert!(!regions.may_overlap(HostAddress(0), HostAddress(0x1000)));
    }
}
