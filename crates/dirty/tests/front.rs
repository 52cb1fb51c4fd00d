//! What stands in front of trees: feeds and rings.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what a test does not expect fails it")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bindery_dirty::marks::Drain;
use bindery_dirty::{
    Drained, Feed, JoinError, Joining, MOST_READERS, OutOfRange, Tree, bitmap, ring,
};
use bindery_units::{PageIndex, PageRange};
use proptest::collection::vec;
use proptest::prelude::*;

const PAGES: u64 = 5000;
const WHOLE: PageRange = PageRange { first: PageIndex(0), count: PAGES as u32 };

fn harvest(tree: &Tree) -> Vec<u32> {
    let mut pages = Vec::new();
    tree.harvest_into(WHOLE, &mut pages).unwrap();
    pages.into_iter().map(|page| page.0).collect()
}

#[test]
fn every_reader_gets_every_mark() {
    let feed = Arc::new(Feed::new(PAGES).unwrap());
    feed.mark(1_u64).unwrap();
    let merge = feed.join(Joining::Clean).unwrap();
    feed.mark(2_u64).unwrap();
    let checkpoint = feed.join(Joining::AllMarked).unwrap();
    assert_eq!(feed.readers(), 2);
    assert_eq!(harvest(&checkpoint).len() as u64, PAGES);
    feed.mark_range(10_u64, 2).unwrap();
    feed.mark_words(1, &[1]).unwrap();
    feed.mark_pages(4000, &[PageIndex(7)]).unwrap();
    assert_eq!(harvest(&checkpoint), [10, 11, 64, 4007]);
    assert_eq!(harvest(&merge), [2, 10, 11, 64, 4007]);
    drop(merge);
    feed.mark(3_u64).unwrap();
    assert_eq!(harvest(&checkpoint), [3]);
    // The seat is taken again, and nothing of its last reader is left.
    let migrate = feed.join(Joining::Clean).unwrap();
    assert!(migrate.is_empty() && feed.readers() == 2);
}

#[test]
fn seats_are_few_and_given_back() {
    let feed = Arc::new(Feed::new(PAGES).unwrap());
    let mut readers: Vec<_> =
        (0..MOST_READERS).map(|_| feed.join(Joining::Clean).unwrap()).collect();
    assert!(matches!(feed.join(Joining::Clean), Err(JoinError::Full)));
    readers.swap_remove(5);
    readers.push(feed.join(Joining::AllMarked).unwrap());
    assert_eq!(readers.last().unwrap().count(), PAGES);
    assert!(Feed::new(0).is_err());
    let beyond = Err(OutOfRange { page: PAGES, pages: PAGES });
    assert_eq!(feed.mark(PAGES), beyond);
    assert_eq!(feed.mark_range(PAGES - 1, 2), beyond);
}

#[test]
fn readers_join_and_leave_while_marks_go_on() {
    let feed = Arc::new(Feed::new(PAGES).unwrap());
    let steady = feed.join(Joining::Clean).unwrap();
    let is_over = AtomicBool::new(false);
    let rounds = if cfg!(miri) { 3 } else { 300 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut page = 0;
            while !is_over.load(Ordering::Relaxed) {
                feed.mark(page).unwrap();
                page = (page + 7) % PAGES;
            }
        });
        for _ in 0..rounds {
            let guest = feed.join(Joining::AllMarked).unwrap();
            assert_eq!(harvest(&guest).len() as u64, PAGES);
            feed.mark(3333_u64).unwrap();
            assert!(guest.is_marked(3333_u64));
            assert!(harvest(&steady).contains(&3333));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_full_ring_loses_no_page() {
    let tree = Arc::new(Tree::new(PAGES).unwrap());
    let (mut marker, mut reader) = ring(&tree, 4);
    let mut pages = Vec::new();
    for page in [5, 6, 5] {
        marker.push(PageIndex(page)).unwrap();
    }
    assert_eq!(reader.drain(&mut pages), Drained::All);
    assert_eq!(pages, [5, 6, 5].map(PageIndex));
    for page in 10..16 {
        marker.push(PageIndex(page)).unwrap();
    }
    pages.clear();
    assert_eq!(reader.drain(&mut pages), Drained::RestInTree);
    assert_eq!(pages, [10, 11, 12, 13].map(PageIndex));
    assert_eq!(harvest(&tree), [14, 15]);
    assert_eq!(reader.drain(&mut pages), Drained::All);
    let beyond = OutOfRange { page: PAGES, pages: PAGES };
    assert_eq!(marker.push(PageIndex(PAGES as u32)), Err(beyond));
}

#[test]
fn a_ring_beside_its_reader_loses_no_page() {
    let tree = Arc::new(Tree::new(PAGES).unwrap());
    let (mut marker, mut reader) = ring(&tree, 64);
    let is_over = AtomicBool::new(false);
    let mut found = BTreeSet::new();
    let pushed = if cfg!(miri) { 400 } else { PAGES as u32 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..pushed).for_each(|page| marker.push(PageIndex(page)).unwrap());
            is_over.store(true, Ordering::Release);
        });
        let mut pages = Vec::new();
        loop {
            let was_over = is_over.load(Ordering::Acquire);
            if reader.drain(&mut pages) == Drained::RestInTree {
                tree.harvest_into(WHOLE, &mut pages).unwrap();
            }
            found.extend(pages.drain(..).map(|page| page.0));
            if was_over {
                break;
            }
            if cfg!(miri) {
                std::thread::yield_now();
            }
        }
    });
    assert!(found.into_iter().eq(0..pushed));
}

const MOST_PAGES: u64 = if cfg!(miri) { 13_000 } else { 40_000 };
const MOST_IN_A_RANGE: u64 = if cfg!(miri) { 70 } else { 600 };
const MOST_RANGES: usize = if cfg!(miri) { 6 } else { 20 };

/// Pages of every block are looked at: under Miri, few of them.
fn bitmap_cases() -> u32 {
    if cfg!(miri) { 3 } else { ProptestConfig::default().cases / 2 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: bitmap_cases(), failure_persistence: None, ..<_>::default() })]

    /// A bitmap is a set that is emptied whenever it is drained.
    #[test]
    fn a_bitmap_is_a_set(
        pages in prop_oneof![1..200_u64, 4000..5000_u64, 10_000..MOST_PAGES],
        turns in vec(vec((any::<u64>(), 0..MOST_IN_A_RANGE), 0..MOST_RANGES), 1..4),
    ) {
        let (tree, (mut marker, reader)) = (Tree::new(pages).unwrap(), bitmap(pages).unwrap());
        for turn in turns {
            let mut expected = BTreeSet::new();
            for (first, count) in turn {
                let first = first % pages;
                let count = count.min(pages - first);
                match count {
                    1 => marker.mark(first).unwrap(),
                    _ => marker.mark_range(first, count).unwrap(),
                }
                expected.extend(first..first + count);
            }
            prop_assert_eq!(reader.drain(&tree), expected.len() as u64);
            prop_assert!(tree.is_sound());
            let mut found = Vec::new();
            tree.harvest_into(PageRange::new(PageIndex(0), pages as u32), &mut found).unwrap();
            prop_assert!(found.into_iter().map(u64::from).eq(expected));
        }
        prop_assert_eq!(reader.drain(&tree), 0);
    }
}

/// Nobody reads the feed: whoever joins later sees what was written, and the bitmap is empty for it.
#[test]
fn a_bitmap_goes_to_every_reader_that_there_is() {
    let feed = Arc::new(Feed::new(PAGES).unwrap());
    let (mut marker, reader) = bitmap(PAGES).unwrap();
    marker.mark_range(4990_u64, 10).unwrap();
    assert_eq!(reader.drain(&*feed), 10);
    let [merge, checkpoint] = [(); 2].map(|()| feed.join(Joining::Clean).unwrap());
    assert_eq!(reader.drain(&*feed), 0);
    marker.mark(4999_u64).unwrap();
    marker.mark(0_u64).unwrap();
    assert_eq!(reader.drain(&*feed), 2);
    assert_eq!((harvest(&merge), harvest(&checkpoint)), (vec![0, 4999], vec![0, 4999]));
}

/// Two readers of a bitmap beside its marker: each mark goes to one of them, and the last content is read.
#[test]
fn two_readers_share_a_bitmap_beside_its_marker() {
    let tree = Tree::new(PAGES).unwrap();
    let (mut marker, reader) = bitmap(PAGES).unwrap();
    let content: Vec<_> = (0..PAGES).map(|_| AtomicU32::new(0)).collect();
    let seen: Vec<_> = (0..PAGES).map(|_| AtomicU32::new(0)).collect();
    let is_over = AtomicBool::new(false);
    // Pages 0 to 63 share a word, the others a block with it, but for the last: of a part of a block.
    let pages = [0, 1, 63, 64, 4095, PAGES - 1];
    let rounds = if cfg!(miri) { 40 } else { 200_000 };
    let take = || {
        reader.drain(&tree);
        for page in harvest(&tree) {
            let page = page as usize;
            seen[page].fetch_max(content[page].load(Ordering::Relaxed), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    take();
                    std::thread::yield_now();
                }
            })
        });
        for round in 1..=rounds {
            for page in pages {
                content[page as usize].store(round, Ordering::Relaxed);
                marker.mark(page).unwrap();
            }
        }
        is_over.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    take();
    for page in pages {
        let seen = seen[page as usize].load(Ordering::Relaxed);
        assert_eq!(seen, rounds, "the last write to page {page} was lost");
    }
    assert_eq!(reader.drain(&tree), 0);
    assert!(tree.is_empty() && tree.is_sound());
}

/// A bitmap of any size goes into a tree that is harvested window by window meanwhile.
#[test]
#[cfg(not(miri))]
fn a_bitmap_of_2_to_the_40_goes_into_windows() {
    let pages = 1_u64 << 40;
    let (tree, (mut marker, reader)) = (Tree::new(pages).unwrap(), bitmap(pages).unwrap());
    assert_eq!(reader.reserved_bytes().0, (1 << 37) + (1 << 28));
    let edges = [0, 63, 4095, (1 << 31) - 1, 1 << 31, (1 << 32) + 77, pages - 4096, pages - 1];
    let windows: Vec<_> = tree.windows().collect();
    assert_eq!(windows.len(), 1 << 9);
    for turn in 0..2 {
        edges.into_iter().for_each(|page| marker.mark(page).unwrap());
        let mut drained = 0;
        let (mut found, mut list) = (Vec::new(), Vec::new());
        for (number, window) in windows.iter().enumerate() {
            if number == 0 || number == 300 {
                drained += reader.drain(&tree);
                // Behind the harvest, and before it: one is left for the next turn.
                marker.mark_range(50_u64, 1).unwrap();
            }
            list.clear();
            tree.harvest_into(*window, &mut list).unwrap();
            found.extend(list.iter().map(|page| window.base + u64::from(page.0)));
        }
        let late = if turn == 0 { vec![] } else { vec![50] };
        let mut expected: Vec<u64> = edges.into_iter().chain(late).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(drained, expected.len() as u64 + 1);
    }
    assert_eq!(tree.iter().collect::<Vec<_>>(), [50]);
}

#[test]
fn a_bitmap_names_the_page_that_it_does_not_have() {
    let (mut marker, reader) = bitmap(PAGES).unwrap();
    assert_eq!(marker.mark(PAGES), Err(OutOfRange { page: PAGES, pages: PAGES }));
    assert_eq!(marker.mark_range(PAGES - 1, 2), Err(OutOfRange { page: PAGES, pages: PAGES }));
    let beyond = Err(OutOfRange { page: u64::MAX, pages: PAGES });
    assert_eq!(marker.mark_range(2_u64, u64::MAX), beyond);
    assert_eq!(reader.drain(&Tree::new(PAGES).unwrap()), 0);
    assert!(bitmap(0).is_err() && bitmap((1 << 40) + 1).is_err());
    // A bit a page, a byte for 4096 of them.
    assert_eq!(bitmap(1 << 16).unwrap().1.reserved_bytes().0, (1 << 13) + (1 << 4));
}
