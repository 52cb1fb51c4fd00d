//! Any sequence of operations against a `BTreeSet`, on sizes around those at which a level begins.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what a test does not expect fails it")]

use std::collections::BTreeSet;
use std::ops::Range;

use bindery_dirty::{MismatchError, OutOfRange, SizeError, Tree, Window};
use bindery_units::{PageIndex, PageRange};
use proptest::prelude::*;

const OPERATIONS: usize = if cfg!(miri) { 12 } else { 60 };

const SIZES: [u64; 13] = [
    1,
    2,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    10_000,
    (1 << 18) - 1,
    1 << 18,
    (1 << 18) + 1,
    if cfg!(miri) { 300_000 } else { 1 << 40 },
];

/// Numbers are scaled to the tree; pages of the largest one come in clusters.
#[derive(Clone, Debug)]
enum Operation {
    Mark(u32),
    MarkRange(u32, u16),
    MarkWords(u32, Vec<u64>),
    Harvest(u32, u32),
    HarvestAll,
    HarvestAlone,
    HarvestSome(u32, u32, u16),
    HarvestRuns(u32, u32, u16),
    HarvestRunsAlone,
    PutBack(Vec<u32>),
    Unite(Vec<u32>),
    Subtract(Vec<u32>),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    use Operation::*;
    let pages = || prop::collection::vec(any::<u32>(), 0..40);
    let words = prop::collection::vec(prop_oneof![Just(0), Just(!0), any::<u64>()], 0..70);
    let operation = prop_oneof![
        6 => any::<u32>().prop_map(Mark),
        4 => (any::<u32>(), any::<u16>()).prop_map(|(first, count)| MarkRange(first, count)),
        2 => (any::<u32>(), words).prop_map(|(at, words)| MarkWords(at, words)),
        3 => (any::<u32>(), any::<u32>()).prop_map(|(a, b)| Harvest(a, b)),
        1 => Just(HarvestAll),
        1 => Just(HarvestAlone),
        3 => (any::<u32>(), any::<u32>(), any::<u16>()).prop_map(|(a, b, n)| HarvestSome(a, b, n)),
        3 => (any::<u32>(), any::<u32>(), any::<u16>()).prop_map(|(a, b, n)| HarvestRuns(a, b, n)),
        1 => Just(HarvestRunsAlone),
        1 => pages().prop_map(PutBack),
        1 => pages().prop_map(Unite),
        1 => pages().prop_map(Subtract),
    ];
    prop::collection::vec(operation, 1..OPERATIONS)
}

struct Pair {
    tree: Tree,
    oracle: BTreeSet<u64>,
}

impl Pair {
    fn new(pages: u64) -> Self {
        Self { tree: Tree::new(pages).unwrap(), oracle: BTreeSet::new() }
    }

    /// A page of the tree: anywhere in a small one, in one of a few places of a large one.
    fn page(&self, number: u32) -> u64 {
        let pages = self.tree.pages();
        let place = u64::from(number >> 28) * (pages / 16) + u64::from(number & 0xffff);
        if pages < 1 << 20 { u64::from(number) % pages } else { place.min(pages - 1) }
    }

    fn range(&self, a: u32, b: u32) -> Range<u64> {
        let (a, b) = (self.page(a), self.page(b));
        let (start, end) = (a.min(b), a.max(b) + 1);
        start..end.min(start + u64::from(u32::MAX >> 1))
    }

    fn window(range: &Range<u64>, base: u64) -> Window {
        let first = PageIndex((range.start - base) as u32);
        Window { base, range: PageRange::new(first, (range.end - range.start) as u32) }
    }

    fn take(&mut self, range: Range<u64>, at_most: usize) -> Vec<u64> {
        let pages: Vec<u64> = self.oracle.range(range).copied().take(at_most).collect();
        pages.iter().for_each(|page| assert!(self.oracle.remove(page)));
        pages
    }

    fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Mark(page) => {
                let page = self.page(page);
                self.tree.mark(page).unwrap();
                self.oracle.insert(page);
            }
            Operation::MarkRange(first, count) => {
                let first = self.page(first);
                let count = u64::from(count).min(self.tree.pages() - first);
                self.tree.mark_range(first, count).unwrap();
                self.oracle.extend(first..first + count);
            }
            Operation::MarkWords(at, words) => self.mark_words(at, &words),
            Operation::Harvest(a, b) => {
                let range = self.range(a, b);
                let mut pages = Vec::new();
                self.tree.harvest_into(Self::window(&range, range.start), &mut pages).unwrap();
                assert_eq!(named(&pages, range.start), self.take(range, usize::MAX));
            }
            Operation::HarvestAll => {
                let mut found = Vec::new();
                for window in self.tree.windows() {
                    let mut pages = Vec::new();
                    self.tree.harvest_into(window, &mut pages).unwrap();
                    found.extend(named(&pages, window.base));
                }
                assert_eq!(found, self.take(0..u64::MAX, usize::MAX));
            }
            Operation::HarvestAlone => {
                let mut found = Vec::new();
                for window in self.tree.windows() {
                    let mut pages = Vec::new();
                    self.tree.harvest_alone(window, &mut pages).unwrap();
                    found.extend(named(&pages, window.base));
                }
                assert_eq!(found, self.take(0..u64::MAX, usize::MAX));
            }
            Operation::HarvestSome(a, b, room) => self.harvest_some(a, b, room.into()),
            Operation::HarvestRuns(a, b, room) => self.harvest_runs(a, b, room.into()),
            Operation::HarvestRunsAlone => {
                let mut found = Vec::new();
                for window in self.tree.windows() {
                    let mut runs = Vec::new();
                    self.tree.harvest_runs_alone(window, &mut runs).unwrap();
                    found.extend(runs.iter().flat_map(|run| named_run(*run, window.base)));
                }
                assert_eq!(found, self.take(0..u64::MAX, usize::MAX));
            }
            Operation::PutBack(numbers) => {
                let Some(window) = self.tree.windows().last() else { unreachable!() };
                let most = (self.tree.pages() - window.base) as u32;
                let pages: Vec<_> = numbers.iter().map(|page| PageIndex(page % most)).collect();
                self.tree.mark_pages(window.base, &pages).unwrap();
                self.oracle.extend(named(&pages, window.base));
            }
            Operation::Unite(pages) => {
                let other = self.other(&pages);
                self.tree.unite(&other).unwrap();
                self.oracle.extend(&other);
            }
            Operation::Subtract(pages) => {
                let other = self.other(&pages);
                self.tree.subtract(&other).unwrap();
                other.iter().for_each(|page| _ = self.oracle.remove(&page));
            }
        }
    }

    fn other(&self, pages: &[u32]) -> Tree {
        let other = Tree::new(self.tree.pages()).unwrap();
        // Some of what is there, too.
        let own = self.oracle.iter().step_by(3).take(50).copied();
        pages.iter().map(|page| self.page(*page)).chain(own).for_each(|page| {
            other.mark(page).unwrap();
        });
        other
    }

    fn mark_words(&mut self, at: u32, words: &[u64]) {
        let first = (self.page(at) / 64) as usize;
        let bit = |at: usize| (first as u64 + at as u64 / 64) * 64 + at as u64 % 64;
        let pages: Vec<u64> = (0..words.len() * 64)
            .filter(|at| words[at / 64] >> (at % 64) & 1 == 1)
            .map(bit)
            .collect();
        match pages.last() {
            Some(last) if *last >= self.tree.pages() => {
                let error = self.tree.mark_words(first, words).unwrap_err();
                assert!(error.page >= self.tree.pages() && pages.contains(&error.page));
            }
            _ => {
                self.tree.mark_words(first, words).unwrap();
                self.oracle.extend(pages);
            }
        }
    }

    /// Takes a window piece by piece until it is done.
    fn harvest_some(&mut self, a: u32, b: u32, room: usize) {
        let range = self.range(a, b);
        let base = range.start / 2;
        let mut window = Self::window(&range, range.start);
        if range.end - base < u64::from(u32::MAX) {
            window = Self::window(&range, base);
        }
        let mut buffer = vec![PageIndex(0); room];
        for _ in 0..8 {
            let harvest = self.tree.harvest_some(window, &mut buffer).unwrap();
            let expected = self.take(window.start()..window.end(), room);
            assert_eq!(named(&buffer[..harvest.pages], window.base), expected);
            assert!(self.tree.is_sound_where_small());
            let Some(rest) = harvest.rest else {
                assert!(self.take(window.start()..window.end(), usize::MAX).is_empty());
                return;
            };
            assert_eq!((harvest.pages, rest.end()), (room, window.end()));
            window = rest;
        }
    }

    /// Takes a window as runs, through a buffer of any size or into a list of other runs.
    fn harvest_runs(&mut self, a: u32, b: u32, room: usize) {
        let range = self.range(a, b);
        let base = range.start - range.start % 100;
        let window = Self::window(&range, base);
        let expected = runs(&self.take(range, usize::MAX).into_iter().collect());
        let before = PageRange::new(PageIndex(0), window.range.first.0);
        let mut found = vec![before];
        if room.is_multiple_of(2) {
            self.tree.harvest_runs_into(window, &mut found).unwrap();
            let found: Vec<_> = found[1..].iter().map(|run| named_run(*run, base)).collect();
            assert_eq!((found, before.count), (expected, window.range.first.0));
        } else {
            let mut buffer = vec![PageRange::default(); (room % 300) | 1];
            self.tree.harvest_runs(window, &mut buffer, |run| found.push(run)).unwrap();
            let pages = found[1..].iter().flat_map(|run| named_run(*run, base));
            assert!(pages.eq(expected.into_iter().flatten()));
            assert!(found[1..].iter().all(|run| run.count > 0));
        }
    }

    fn check(&self) {
        assert!(self.tree.iter().eq(self.oracle.iter().copied()));
        assert_eq!(self.tree.count(), self.oracle.len() as u64);
        assert_eq!(self.tree.is_empty(), self.oracle.is_empty());
        assert!(self.tree.runs().eq(runs(&self.oracle)));
        let mut listed = Vec::new();
        for window in self.tree.windows().take(1) {
            self.tree.list_into(window, &mut listed).unwrap();
            assert!(named(&listed, 0).iter().eq(self.oracle.range(..window.end())));
        }
        for page in self.oracle.iter().flat_map(|page| [page.saturating_sub(1), *page, page + 1]) {
            assert_eq!(self.tree.is_marked(page), self.oracle.contains(&page));
        }
        assert!(self.tree.is_sound_where_small());
        self.check_bitmap();
    }

    fn check_bitmap(&self) {
        if self.tree.pages() > 1 << 20 {
            return;
        }
        let mut bitmap = vec![0xdead; self.tree.bitmap_words()];
        self.tree.export(&mut bitmap).unwrap();
        // The legacy bitmap is one of bytes: page n is bit n % 8 of byte n / 8.
        let bytes: Vec<u8> = bitmap.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for page in 0..bytes.len() as u64 * 8 {
            let is_set = bytes[(page / 8) as usize] >> (page % 8) & 1 == 1;
            assert_eq!(is_set, self.oracle.contains(&page), "page {page}");
        }
        let other = Tree::new(self.tree.pages()).unwrap();
        other.import(&bitmap).unwrap();
        assert!(other.iter().eq(self.oracle.iter().copied()));
    }
}

trait Sound {
    fn is_sound_where_small(&self) -> bool;
}

impl Sound for Tree {
    fn is_sound_where_small(&self) -> bool {
        self.pages() > 1 << 20 || self.is_sound()
    }
}

fn named(pages: &[PageIndex], base: u64) -> Vec<u64> {
    pages.iter().map(|page| base + u64::from(page.0)).collect()
}

fn named_run(run: PageRange, base: u64) -> Range<u64> {
    base + u64::from(run.first.0)..base + u64::from(run.end().0)
}

fn runs(pages: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run) if run.end == *page => run.end += 1,
            _ => runs.push(*page..page + 1),
        }
    }
    runs
}

fn cases() -> u32 {
    if cfg!(miri) { 4 } else { ProptestConfig::default().cases }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..<_>::default() })]

    #[test]
    fn a_tree_is_a_set(size in prop::sample::select(&SIZES[..]), operations in operations()) {
        let mut pair = Pair::new(size);
        for operation in operations {
            pair.run(operation);
        }
        pair.check();
    }
}

#[test]
fn every_page_of_every_size_can_be_marked_and_harvested() {
    for size in SIZES.into_iter().filter(|size| *size <= 10_000) {
        let tree = Tree::new(size).unwrap();
        let whole = PageRange::new(PageIndex(0), size as u32);
        let mut pages = Vec::new();
        for page in 0..size {
            tree.mark(page).unwrap();
            pages.clear();
            tree.harvest_into(whole, &mut pages).unwrap();
            assert_eq!(pages, [PageIndex(page as u32)], "of {size}");
        }
        tree.mark_all();
        assert!(tree.runs().eq(std::iter::once(0..size)));
        tree.harvest_into(whole, &mut pages).unwrap();
        assert_eq!(pages.len() as u64, size + 1);
        assert!(tree.is_empty() && tree.is_sound());
    }
}

/// Words of all levels are under way where the buffer ends, in groups and between them.
#[test]
fn what_a_buffer_has_no_room_for_is_left_for_the_next() {
    const PAGES: u64 = if cfg!(miri) { 40_000 } else { 1_000_000 };
    // Sparse, then every other page, then all of them.
    let sparse = (0..PAGES / 2).step_by(997);
    let pages: Vec<u64> =
        sparse.chain((PAGES / 2..PAGES / 2 + 9000).step_by(2)).chain(PAGES - 9000..PAGES).collect();
    for (first, count) in [(0, PAGES), (1, PAGES - 1), (PAGES / 4 + 5, PAGES / 2)] {
        let expected: Vec<u64> =
            pages.iter().copied().filter(|page| (first..first + count).contains(page)).collect();
        for room in [1, 63, 64, 65, 700, 4096, 5000, 50_000] {
            let tree = Tree::new(PAGES).unwrap();
            pages.iter().for_each(|page| tree.mark(*page).unwrap());
            let mut rest = Some(Pair::window(&(first..first + count), 0));
            let (mut found, mut buffer) = (Vec::new(), vec![PageIndex(0); room]);
            while let Some(window) = rest.filter(|_| found.len() < 100 * room) {
                let harvest = tree.harvest_some(window, &mut buffer).unwrap();
                found.extend(named(&buffer[..harvest.pages], 0));
                assert!(tree.is_sound());
                assert_eq!(tree.count() as usize, pages.len() - found.len());
                rest = harvest.rest;
            }
            assert_eq!(found, expected[..found.len()], "{room} of {first} and {count} more");
            assert_eq!(rest.is_none(), found.len() == expected.len());
        }
    }
}

/// A harvest of a part leaves summaries that lead out of it as well, whether they lead anywhere or not.
#[test]
fn what_follows_a_summary_that_leads_nowhere_is_found() {
    const PAGES: u64 = 1 << 25;
    for (first, second) in
        [(0x6700_u64, 0x7000_u64), (5, 5000), (5, 300_000), (300_000, 20_000_000)]
    {
        let tree = Tree::new(PAGES).unwrap();
        tree.mark(first).unwrap();
        let part = PageRange::new(PageIndex(0), first as u32 + 1);
        tree.harvest_into(part, &mut Vec::new()).unwrap();
        tree.mark(second).unwrap();
        assert_eq!(tree.iter().collect::<Vec<u64>>(), [second]);
        assert!(tree.runs().eq(std::iter::once(second..second + 1)));
        assert_eq!((tree.count(), tree.is_empty()), (1, false));
    }
}

#[test]
fn a_harvest_leaves_no_summary_behind() {
    let tree = Tree::new(300_000).unwrap();
    tree.mark_range(5_u64, 299_990).unwrap();
    tree.harvest_into(PageRange::new(PageIndex(0), 300_000), &mut Vec::new()).unwrap();
    // Whatever is looked at from here on is found by summaries alone.
    tree.mark(299_999_u64).unwrap();
    let mut one = [PageIndex(0); 2];
    let harvest = tree.harvest_some(PageRange::new(PageIndex(0), 300_000), &mut one).unwrap();
    assert_eq!((harvest.pages, harvest.rest, one[0]), (1, None, PageIndex(299_999)));
}

#[test]
fn what_is_out_of_range_is_refused_with_the_numbers() {
    let tree = Tree::new(100).unwrap();
    assert_eq!(tree.mark(100_u64), Err(OutOfRange { page: 100, pages: 100 }));
    assert_eq!(tree.mark(u64::MAX), Err(OutOfRange { page: u64::MAX, pages: 100 }));
    assert_eq!(tree.mark_range(90_u64, 11), Err(OutOfRange { page: 100, pages: 100 }));
    assert!(tree.mark_range(u64::MAX, 2).is_err());
    assert_eq!(tree.mark_words(1, &[1 << 36]), Err(OutOfRange { page: 100, pages: 100 }));
    assert!(tree.mark_words(usize::MAX, &[1]).is_err());
    assert_eq!(tree.mark_words(7, &[0, 0]), Ok(()));
    assert!(tree.mark_pages(0, &[PageIndex(3), PageIndex(100)]).is_err());
    let beyond = PageRange::new(PageIndex(50), 51);
    assert!(tree.harvest_into(beyond, &mut Vec::new()).is_err());
    assert_eq!(tree.iter().collect::<Vec<_>>(), [3]);
    let message = tree.mark(PageIndex(117)).unwrap_err().to_string();
    assert_eq!(message, "page 117 is out of range: the dirty set has 100 pages");
}

#[test]
fn what_has_another_size_is_refused_with_the_numbers() {
    let tree = Tree::new(100).unwrap();
    let wrong = MismatchError::Words { pages: 100, expected: 2, found: 3 };
    assert_eq!(tree.import(&[0; 3]), Err(wrong));
    assert_eq!(tree.export(&mut [0; 3]), Err(wrong));
    let stray = MismatchError::OutOfRange(OutOfRange { page: 127, pages: 100 });
    assert_eq!(tree.import(&[1, 1 << 63]), Err(stray));
    let other = Tree::new(101).unwrap();
    assert_eq!(tree.unite(&other), Err(MismatchError::Pages { pages: 100, found: 101 }));
    assert!(tree.subtract(&other).is_err() && tree.is_empty());
    for pages in [0, (1 << 40) + 1] {
        assert!(matches!(Tree::new(pages), Err(SizeError::Unsupported { .. })));
    }
}

/// A harvest of a part leaves summaries that lead nowhere, at every level.
#[test]
fn what_lies_behind_summaries_that_lead_nowhere_is_found() {
    for pages in [1_u64 << 13, 1 << 19, 1 << 25, 1 << 31, 1 << 40] {
        let tree = Tree::new(pages).unwrap();
        let last = pages - 1;
        tree.mark_range(1_u64, 62).unwrap();
        tree.mark(last).unwrap();
        let mut listed = Vec::new();
        tree.harvest_into(PageRange::new(PageIndex(1), 62), &mut listed).unwrap();
        assert_eq!(listed.len(), 62);
        assert_eq!(tree.iter().collect::<Vec<_>>(), [last], "{pages} pages");
        assert_eq!((tree.count(), tree.is_empty()), (1, false));
        assert!(tree.runs().eq(std::iter::once(last..pages)));
    }
}
