//! Table of the pages of bound memory that are decided, and of those that somebody has asked for. Pure.
//!
//! A page is *decided* once its content depends on the source no more: it was filled, or its owner threw it
//! away. Nothing decided is ever filled again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bindery_units::{HostAddress, PAGE_SHIFT, PageIndex, PageRange};
use bindery_wire::control::BoundRange;
use bindery_wire::source::LACKS_GAP_PAGES;

/// Bits of a range, one for each page. Parts of a range share them; all changes are made under the lock of
/// the table, so that no order matters.
#[derive(Debug)]
struct Bits(Box<[AtomicU64]>);

impl Bits {
    fn new(pages: u32) -> Self {
        Self((0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Sets bits `from..to`. Returns how many were not set.
    fn set(&self, from: u32, to: u32) -> u32 {
        let mut newly = 0;
        for (word, mask) in words(from, to) {
            newly += (mask & !self.0[word].fetch_or(mask, Ordering::Relaxed)).count_ones();
        }
        newly
    }

    fn count(&self, from: u32, to: u32) -> u32 {
        words(from, to).map(|(word, mask)| (mask & self.word(word)).count_ones()).sum()
    }

    /// Returns the first bit of `from..to` that is `set`.
    fn first(&self, from: u32, to: u32, set: bool) -> Option<u32> {
        let flip = if set { 0 } else { u64::MAX };
        words(from, to).find_map(|(word, mask)| {
            let found = (self.word(word) ^ flip) & mask;
            (found != 0).then(|| word as u32 * 64 + found.trailing_zeros())
        })
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn word(&self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }
}

/// The words that hold bits `from..to`, and which of their bits these are.
fn words(from: u32, to: u32) -> impl Iterator<Item = (usize, u64)> {
    (from / 64..to.div_ceil(64).max(from / 64)).map(move |word| {
        let (low, high) = (from.max(word * 64) % 64, (to - word * 64).min(64));
        let below = |bit: u32| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
        (word as usize, below(high) & !below(low))
    })
}

/// A part of a bound range: all of it, or what is left where its owner unmapped some.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) start: HostAddress,
    /// Pages of the image.
    pub(crate) pages: PageRange,
    /// True if it is to be offered for merging once it is filled.
    pub(crate) is_offered: bool,
    /// True if children of fork are to have it once it is filled.
    pub(crate) forks: bool,
    /// The page that the first bits are of.
    origin: PageIndex,
    decided: Arc<Bits>,
    asked: Arc<Bits>,
}

impl Part {
    pub(crate) fn end(&self) -> HostAddress {
        self.start.plus_pages(self.pages.count)
    }

    pub(crate) fn address(&self, page: PageIndex) -> HostAddress {
        self.start.plus_pages(page.0 - self.pages.first.0)
    }

    fn bits(&self, pages: PageRange) -> (u32, u32) {
        (pages.first.0 - self.origin.0, pages.end().0 - self.origin.0)
    }

    fn missing(&self) -> u32 {
        let (from, to) = self.bits(self.pages);
        self.pages.count - self.decided.count(from, to)
    }

    /// Returns the first run of pages in `pages` whose bits are set, or are not; at most `max` long.
    fn run(&self, pages: PageRange, bits: &Bits, set: bool, max: u32) -> Option<PageRange> {
        let pages = self.pages.intersection(pages);
        if pages.is_empty() {
            return None;
        }
        let (from, to) = self.bits(pages);
        let first = bits.first(from, to, set)?;
        // No further than is of use: a run may be as long as memory.
        let to = to.min(first.saturating_add(max));
        let end = bits.first(first, to, !set).unwrap_or(to);
        Some(PageRange::new(self.origin.plus(first), end - first))
    }
}

/// Result of looking up an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Bound no more.
    Nothing,
    /// This page is missing; true if nobody asked for it before.
    Missing(PageIndex, bool),
    /// So many pages from there on are decided.
    Decided(u32),
}

/// Pages that are looked at for one fault.
const FAULT_PAGES: u32 = 64;

/// All bound memory.
#[derive(Debug, Default)]
pub(crate) struct BoundTable {
    /// Ascending by address. They overlap neither there nor in the image.
    parts: Vec<Part>,
    missing: u64,
}

impl BoundTable {
    /// Makes a table of ranges that are [bindable](bindery_wire::control::are_bindable), of which every page is
    /// missing.
    pub(crate) fn new(ranges: &[BoundRange]) -> Self {
        let part = |range: &BoundRange| {
            let pages = PageRange::new(range.first, (range.bytes >> PAGE_SHIFT) as u32);
            let [decided, asked] = [(); 2].map(|()| Arc::new(Bits::new(pages.count)));
            let (start, origin) = (range.address, pages.first);
            Part { start, pages, is_offered: true, forks: true, origin, decided, asked }
        };
        let mut parts: Vec<Part> = ranges.iter().map(part).collect();
        parts.sort_unstable_by_key(|part| part.start);
        let missing = parts.iter().map(|part| u64::from(part.pages.count)).sum();
        Self { parts, missing }
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the number of pages that are missing.
    pub(crate) const fn missing(&self) -> u64 {
        self.missing
    }

    /// Looks up what the byte at an address belongs to, and notes that somebody waits for it if it is missing.
    pub(crate) fn fault(&self, address: HostAddress) -> Found {
        let behind = self.parts.partition_point(|part| part.start <= address);
        let part = self.parts[..behind].last().filter(|part| address < part.end());
        let Some(part) = part else { return Found::Nothing };
        let page = part.pages.first.plus(((address.0 - part.start.0) >> PAGE_SHIFT) as u32);
        let rest = PageRange::new(page, (part.pages.end().0 - page.0).min(FAULT_PAGES));
        match part.run(rest, &part.decided, true, FAULT_PAGES) {
            Some(run) if run.first == page => Found::Decided(run.count),
            _ => {
                let (from, _) = part.bits(rest);
                Found::Missing(page, part.asked.set(from, from + 1) > 0)
            }
        }
    }

    /// Returns the first run of missing pages in `pages`, at most `max` long, and where it lies.
    pub(crate) fn first_missing(
        &self,
        pages: PageRange,
        max: u32,
    ) -> Option<(HostAddress, PageRange)> {
        let runs = self.parts.iter().filter_map(|part| {
            let run = part.run(pages, &part.decided, false, max)?;
            Some((part.address(run.first), run))
        });
        runs.min_by_key(|(_, run)| run.first)
    }

    /// Returns the first page of a run that somebody has asked for, and where it lies. The run may have been one
    /// part's, and be several parts' by now.
    pub(crate) fn first_asked(&self, run: PageRange) -> Option<(HostAddress, PageIndex)> {
        let asked = self.parts.iter().filter_map(|part| {
            let asked = part.run(run, &part.asked, true, 1)?;
            Some((part.address(asked.first), asked.first))
        });
        asked.min_by_key(|(_, page)| *page)
    }

    /// Returns the first and the end of the addresses between two that are bound. `None` if none is.
    pub(crate) fn extent(
        &self,
        start: HostAddress,
        end: HostAddress,
    ) -> Option<(HostAddress, HostAddress)> {
        let overlaps = |part: &&Part| start < part.end() && part.start < end;
        let mut parts = self.parts.iter().filter(overlaps);
        let first = parts.next()?;
        let last = parts.next_back().unwrap_or(first);
        Some((start.max(first.start), end.min(last.end())))
    }

    /// Returns the pages between two addresses, part by part.
    pub(crate) fn pages_between(&self, start: HostAddress, end: HostAddress) -> Vec<PageRange> {
        let first = self.parts.partition_point(|part| part.end() <= start);
        let parts = self.parts[first..].iter().take_while(|part| part.start < end);
        let cut = parts.map(|part| {
            let before = start.0.saturating_sub(part.start.0) >> PAGE_SHIFT;
            let until = (end.0.min(part.end().0) - part.start.0) >> PAGE_SHIFT;
            PageRange::new(part.pages.first.plus(before as u32), (until - before) as u32)
        });
        cut.collect()
    }

    /// Notes that pages are decided.
    pub(crate) fn decide(&mut self, pages: PageRange) {
        for part in &self.parts {
            let pages = part.pages.intersection(pages);
            if !pages.is_empty() {
                let (from, to) = part.bits(pages);
                self.missing -= u64::from(part.decided.set(from, to));
            }
        }
    }

    /// Forgets who has asked for what.
    pub(crate) fn forget_asked(&self) {
        self.parts.iter().for_each(|part| part.asked.clear());
    }

    /// Returns the parts between two addresses, cut to them.
    pub(crate) fn within(&mut self, start: HostAddress, end: HostAddress) -> &mut [Part] {
        if start >= end {
            return &mut [];
        }
        self.divide(start);
        self.divide(end);
        let first = self.parts.partition_point(|part| part.start < start);
        let behind = self.parts.partition_point(|part| part.start < end);
        &mut self.parts[first..behind]
    }

    /// Forgets what is between two addresses.
    pub(crate) fn cut(&mut self, start: HostAddress, end: HostAddress) {
        let gone: u64 = self.within(start, end).iter().map(|part| u64::from(part.missing())).sum();
        self.missing -= gone;
        self.parts.retain(|part| part.start < start || end <= part.start);
    }

    /// Returns what is missing as runs, each within a part, with pages among them that are not.
    pub(crate) fn lacks(&self) -> Vec<PageRange> {
        let mut runs: Vec<PageRange> = Vec::new();
        for part in &self.parts {
            let (own, mut rest) = (runs.len(), part.pages);
            while let Some(run) = part.run(rest, &part.decided, false, u32::MAX) {
                match runs[own..].last_mut() {
                    Some(last) if run.first.0 - last.end().0 < LACKS_GAP_PAGES => {
                        last.count = run.end().0 - last.first.0;
                    }
                    _ => runs.push(run),
                }
                rest = PageRange::new(run.end(), part.pages.end().0 - run.end().0);
            }
        }
        runs
    }

    /// Makes two parts of one that begins before an address and ends after it.
    fn divide(&mut self, at: HostAddress) {
        let behind = self.parts.partition_point(|part| part.start < at);
        let Some(part) = self.parts[..behind].last_mut().filter(|part| at < part.end()) else {
            return;
        };
        let before = ((at.0 - part.start.0) >> PAGE_SHIFT) as u32;
        let (all, mut second) = (part.pages, part.clone());
        part.pages.count = before;
        second.start = at;
        second.pages = PageRange::new(all.first.plus(before), all.count - before);
        self.parts.insert(behind, second);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const BASE: usize = 1 << 30;

    fn at(page: u32) -> HostAddress {
        HostAddress(BASE + ((page as usize) << PAGE_SHIFT))
    }

    fn range(page: u32, pages: u32, first: u32) -> BoundRange {
        BoundRange {
            address: at(page),
            bytes: u64::from(pages) << PAGE_SHIFT,
            first: PageIndex(first),
        }
    }

    /// Three ranges, the pages of which come in another order than their addresses.
    fn ranges() -> [BoundRange; 3] {
        [range(0, 200, 1000), range(200, 70, 100), range(400, 130, 300)]
    }

    /// Page of the image at each page of memory, and whether it is decided.
    fn model() -> BTreeMap<u32, (u32, bool)> {
        let pages = ranges().into_iter().flat_map(|range| {
            let page = ((range.address.0 - BASE) >> PAGE_SHIFT) as u32;
            let count = (range.bytes >> PAGE_SHIFT) as u32;
            (0..count).map(move |n| (page + n, (range.first.0 + n, false)))
        });
        pages.collect()
    }

    proptest! {
        /// The table says what a list of pages says, whatever is decided and cut.
        #[test]
        fn the_table_agrees_with_a_list(
            steps in prop::collection::vec((any::<bool>(), 0u32..1250, 0u32..200), 0..25),
            asked in prop::collection::vec(0u32..560, 1..20),
        ) {
            let (mut table, mut model) = (BoundTable::new(&ranges()), model());
            for (cuts, first, count) in steps {
                if cuts {
                    let (from, to) = (first % 560, first % 560 + count % 30);
                    table.cut(at(from), at(to));
                    model.retain(|&page, _| page < from || to <= page);
                } else {
                    let range = PageRange::new(PageIndex(first), count);
                    table.decide(range);
                    let all = model.values_mut().filter(|(page, _)| range.contains(PageIndex(*page)));
                    all.for_each(|(_, decided)| *decided = true);
                }
            }
            let missing: Vec<u32> = {
                let mut all: Vec<_> = model.values().filter(|(_, decided)| !decided).map(|(page, _)| *page).collect();
                all.sort_unstable();
                all
            };
            prop_assert_eq!(table.missing(), missing.len() as u64);
            let everything = PageRange::new(PageIndex(0), 2000);
            let mut rest = everything;
            let mut found = Vec::new();
            while let Some((address, run)) = table.first_missing(rest, 7) {
                prop_assert!(run.count <= 7);
                let page = ((address.0 - BASE) >> PAGE_SHIFT) as u32;
                prop_assert!((0..run.count).all(|n| model[&(page + n)].0 == run.first.0 + n));
                found.extend(run.pages().map(|page| page.0));
                rest = PageRange::new(run.end(), 2000 - run.end().0);
            }
            prop_assert_eq!(&found, &missing);
            let (low, high) = (at(30), at(290));
            let between: Vec<u32> = table
                .pages_between(low, high)
                .into_iter()
                .flat_map(|run| run.pages().map(|page| page.0).collect::<Vec<_>>())
                .collect();
            let inside = model.iter().filter(|(page, _)| (30..290).contains(*page));
            let expected: Vec<u32> = inside.map(|(_, (index, _))| *index).collect();
            prop_assert_eq!(&between, &expected);
            let extent = table.extent(low, high);
            prop_assert_eq!(extent.is_some(), !expected.is_empty());
            if let Some((from, to)) = extent {
                let inside = model.keys().filter(|page| (30..290).contains(*page));
                prop_assert_eq!(from, at(*inside.clone().min().unwrap()));
                prop_assert_eq!(to, at(*inside.max().unwrap() + 1));
            }
            let lacks = table.lacks();
            let is_lacking = |page: u32| lacks.iter().any(|run| run.contains(PageIndex(page)));
            prop_assert!(missing.iter().all(|&page| is_lacking(page)));
            for page in asked {
                let found = table.fault(at(page).plus(17));
                match model.get(&page) {
                    None => prop_assert_eq!(found, Found::Nothing),
                    Some((_, true)) => prop_assert!(matches!(found, Found::Decided(1..))),
                    Some((index, false)) => {
                        prop_assert!(matches!(found, Found::Missing(page, _) if page.0 == *index));
                        let again = Found::Missing(PageIndex(*index), false);
                        prop_assert_eq!(table.fault(at(page)), again);
                        let run = PageRange::new(PageIndex(*index), 1);
                        prop_assert_eq!(table.first_asked(run), Some((at(page), PageIndex(*index))));
                    }
                }
            }
        }
    }

    #[test]
    fn marks_hold_for_what_they_were_set_for() {
        let mut table = BoundTable::new(&ranges());
        table.within(at(10), at(20)).iter_mut().for_each(|part| part.is_offered = false);
        let parts: Vec<_> =
            table.parts().iter().map(|part| (part.pages.count, part.is_offered)).collect();
        assert_eq!(parts, [(10, true), (10, false), (180, true), (70, true), (130, true)]);
        assert_eq!(table.missing(), 400);
        assert!(table.within(at(270), at(400)).is_empty() && table.within(at(5), at(5)).is_empty());
    }

    #[test]
    fn who_asked_is_forgotten_and_asks_again() {
        let table = BoundTable::new(&ranges());
        assert_eq!(table.fault(at(3)), Found::Missing(PageIndex(1003), true));
        assert_eq!(table.fault(at(3)), Found::Missing(PageIndex(1003), false));
        table.forget_asked();
        assert_eq!(table.fault(at(3)), Found::Missing(PageIndex(1003), true));
    }
}
