//! What stands in front of trees: feeds and rings.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what a test does not expect fails it")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_dirty::{Drained, Feed, JoinError, Joining, MOST_READERS, OutOfRange, Tree, ring};
use bindery_units::{PageIndex, PageRange};

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
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..PAGES as u32).for_each(|page| marker.push(PageIndex(page)).unwrap());
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
        }
    });
    assert!(found.into_iter().eq(0..PAGES as u32));
}
