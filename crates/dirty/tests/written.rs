//! Written-page scans against a writer that knows what it wrote.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeSet;

use bindery_dirty::source::{Region, Source, SourceError, WrittenPages};
use bindery_sys::mapping::{self, Mapping};
use bindery_sys::userfault::{Userfault, feature, mode};
use bindery_testkit::skipped;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use common::{Oracle, collect};
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::index};

/// Memory registered for asynchronous write protection.
struct Watched {
    memory: Mapping,
    _context: Userfault,
}

impl Watched {
    /// None, loudly, where that is not permitted.
    fn new(pages: u32) -> Option<Self> {
        let features = feature::PAGEFAULT_FLAG_WP | feature::WP_UNPOPULATED | feature::WP_ASYNC;
        let context = match Userfault::open(features) {
            Ok(context) => context,
            Err(error) => {
                skipped!("userfaultfd with WP_ASYNC: {error}");
                return None;
            }
        };
        let memory = Mapping::anonymous(pages as usize * PAGE_BYTES).unwrap();
        // SAFETY: nobody waits in asynchronous write protection; huge pages hold the same content.
        unsafe {
            mapping::advise(memory.address(), memory.bytes(), libc::MADV_NOHUGEPAGE).unwrap();
            context.register(memory.address(), memory.bytes(), mode::WP).unwrap();
        }
        Some(Self { memory, _context: context })
    }

    fn region(&self, first: u32) -> Region {
        let count = (self.memory.bytes() / PAGE_BYTES) as u32;
        Region { start: self.memory.address(), pages: PageRange::new(PageIndex(first), count) }
    }

    fn source(&self, first: u32) -> WrittenPages {
        WrittenPages::of_self(vec![self.region(first)]).unwrap()
    }

    fn write<'a>(&self, pages: impl IntoIterator<Item = &'a u32>) {
        for page in pages {
            assert!((*page as usize) < self.memory.bytes() / PAGE_BYTES);
            // SAFETY: the page is in the mapping, which is ours. Volatile: for the fault.
            unsafe { self.memory.as_ptr().add(*page as usize * PAGE_BYTES).write_volatile(1) };
        }
    }

    fn discard(&self, page: u32) {
        let at = self.memory.address().plus_pages(page);
        // SAFETY: the page is ours to discard.
        unsafe { mapping::advise(at, PAGE_BYTES, libc::MADV_DONTNEED).unwrap() };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 5))]

    #[test]
    fn what_was_written_is_collected_once(
        pages in 1_u32..3000,
        first in 0_u32..100,
        epochs in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..200), 1..6),
    ) {
        let Some(memory) = Watched::new(pages) else { return Ok(()) };
        let mut source = memory.source(first);
        for epoch in &epochs {
            let written: BTreeSet<u32> =
                epoch.iter().map(|index| index.index(pages as usize) as u32).collect();
            memory.write(&written);
            let expected: BTreeSet<u32> = written.iter().map(|page| page + first).collect();
            prop_assert_eq!(collect(&mut source, first + pages), expected);
            prop_assert_eq!(collect(&mut source, first + pages), BTreeSet::new());
        }
    }
}

/// Beyond 512 regions the kernel's `walk_end` says less than what it walked, protected and returned.
#[test]
fn thousands_of_scattered_runs_are_all_found() {
    const PAGES: u32 = 1 << 16;
    let Some(memory) = Watched::new(PAGES) else { return };
    let mut source = memory.source(0);
    let mut random = SmallRng::seed_from_u64(3);
    memory.write(&(0..PAGES).collect::<Vec<_>>());
    assert_eq!(collect(&mut source, PAGES).len(), PAGES as usize);
    // Numbers of runs around multiples of what one call returns, and every other page.
    for runs in [511, 512, 513, 1023, 1024, 1025, 5000, 10_240, 20_000, 32_768] {
        let written: BTreeSet<u32> = index::sample(&mut random, PAGES as usize / 2, runs)
            .into_iter()
            .map(|pair| pair as u32 * 2)
            .collect();
        memory.write(&written);
        assert_eq!(collect(&mut source, PAGES), written, "{runs} runs");
        assert!(collect(&mut source, PAGES).is_empty(), "{runs} runs");
    }
    // Runs of different lengths, with absent pages between them.
    for page in (0..PAGES).filter(|page| page % 5 == 0) {
        memory.discard(page);
    }
    let written: BTreeSet<u32> =
        (0..PAGES).filter(|page| page % 5 != 0 && random.random_bool(0.6)).collect();
    memory.write(&written);
    assert_eq!(collect(&mut source, PAGES), written);
}

/// As documented: a discard is no write, and what comes to be there afterwards is one.
#[test]
fn a_discarded_page_counts_when_it_is_there_again() {
    let Some(memory) = Watched::new(100) else { return };
    let mut source = memory.source(0);
    memory.write(&[1, 2, 3]);
    assert_eq!(collect(&mut source, 100).len(), 3);
    memory.discard(2);
    assert!(collect(&mut source, 100).is_empty());
    memory.write(&[2]);
    assert_eq!(collect(&mut source, 100), [2].into());
}

#[test]
fn several_regions_are_one_set() {
    let (Some(low), Some(high)) = (Watched::new(10), Watched::new(10)) else { return };
    let mut source = WrittenPages::of_self(vec![high.region(50), low.region(3)]).unwrap();
    low.write(&[0, 9]);
    high.write(&[0, 9]);
    assert_eq!(collect(&mut source, 60), [3, 12, 50, 59].into());
}

#[test]
fn memory_that_is_not_watched_is_an_error_with_numbers() {
    let Some(memory) = Watched::new(64) else { return };
    let other = Mapping::anonymous(4 * PAGE_BYTES).unwrap();
    let region = Region { start: other.address(), pages: PageRange::new(PageIndex(0), 4) };
    let error = WrittenPages::of_self(vec![region]).unwrap_err();
    let shown = error.to_string();
    assert!(shown.contains(&other.address().to_string()) && shown.contains("4 pages"), "{shown}");

    // Mapped anew, half way.
    let mut source = memory.source(0);
    let mut lenient = memory.source(0).passing_over();
    memory.write(&[0, 63]);
    let middle = memory.memory.address().plus_pages(32);
    // SAFETY: the page is ours.
    unsafe { mapping::replace_with_anonymous(middle, PAGE_BYTES).unwrap() };
    let oracle = Oracle::new(64);
    let error = source.collect(&oracle).unwrap_err();
    assert!(matches!(error, SourceError::NotWatched { pages: 64, .. }), "{error}");
    // What comes before it may be marked, what comes behind it is left for the next.
    let mut found = oracle.take();
    found.extend(collect(&mut lenient, 64));
    assert_eq!(found, [0, 63].into());
}
