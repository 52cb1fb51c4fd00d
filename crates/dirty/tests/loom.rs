//! Marks and harvests under every interleaving of two or three threads.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p bindery-dirty --test loom --release
//! ```
//!
//! The smallest tree with three levels: pages 0 and 1 share a word, page 64 a word of the first
//! summary with them, page 4096 only the top. A pass is not a proof: loom bounds preemptions here.

#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "what a test does not expect fails it")]

use bindery_dirty::marks::Drain;
use bindery_dirty::{Drained, Feed, Joining, Tree, bitmap, ring};
use bindery_units::{PageIndex, PageRange};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const PAGES: u64 = 4097;

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

fn tree(marked: &[u64]) -> Arc<Tree> {
    let tree = Tree::new(PAGES).unwrap();
    marked.iter().for_each(|page| tree.mark(*page).unwrap());
    Arc::new(tree)
}

fn spawn<R: 'static>(
    tree: &Arc<Tree>,
    body: impl FnOnce(&Tree) -> R + 'static,
) -> thread::JoinHandle<R> {
    let tree = Arc::clone(tree);
    thread::spawn(move || body(&tree))
}

fn harvest(tree: &Tree, first: u32, count: u32) -> Vec<u32> {
    let mut buffer = [PageIndex(0); 256];
    let window = PageRange::new(PageIndex(first), count);
    let harvest = tree.harvest_some(window, &mut buffer).unwrap();
    assert_eq!(harvest.rest, None);
    buffer[..harvest.pages].iter().map(|page| page.0).collect()
}

fn harvest_all(tree: &Tree) -> Vec<u32> {
    harvest(tree, 0, PAGES as u32)
}

/// What several harvests found, in order.
fn together(harvests: &[&[u32]]) -> Vec<u32> {
    let mut pages = harvests.concat();
    pages.sort_unstable();
    pages
}

#[test]
fn mark_beside_harvest() {
    model(4, || {
        let tree = tree(&[]);
        let marker = spawn(&tree, |tree| tree.mark(64_u64).unwrap());
        let first = harvest_all(&tree);
        marker.join().unwrap();
        let second = harvest_all(&tree);
        assert_eq!(together(&[&first, &second]), [64]);
    });
}

#[test]
fn mark_beside_a_harvest_of_its_neighbours() {
    model(3, || {
        let tree = tree(&[0, 64]);
        let marker = spawn(&tree, |tree| tree.mark(1_u64).unwrap());
        let first = harvest_all(&tree);
        marker.join().unwrap();
        let second = harvest_all(&tree);
        assert_eq!(together(&[&first, &second]), [0, 1, 64]);
    });
}

#[test]
fn mark_beside_mark_beside_harvest() {
    model(3, || {
        let tree = tree(&[]);
        let markers = [0_u64, 1].map(|page| spawn(&tree, move |tree| tree.mark(page).unwrap()));
        let first = harvest_all(&tree);
        markers.into_iter().for_each(|marker| marker.join().unwrap());
        let second = harvest_all(&tree);
        assert_eq!(together(&[&first, &second]), [0, 1]);
    });
}

/// A marker that is through has its mark harvested, wherever another one that marks beside it, or
/// the same page, has stopped.
#[test]
fn a_mark_that_is_through_is_harvested_whoever_is_half_way() {
    for stalled in [0_u64, 1, 64] {
        model(3, move || {
            let tree = tree(&[]);
            let other = spawn(&tree, move |tree| tree.mark(stalled).unwrap());
            tree.mark(0_u64).unwrap();
            // The other one may be anywhere.
            assert!(harvest_all(&tree).contains(&0));
            other.join().unwrap();
        });
    }
}

/// The same, with a harvest before: every bit that the mark finds may be taken under its eyes.
#[test]
fn a_mark_that_is_through_is_harvested_by_the_next_or_an_earlier_one() {
    model(3, || {
        let tree = tree(&[0]);
        let other = spawn(&tree, |tree| harvest_all(tree));
        tree.mark(0_u64).unwrap();
        let earlier = other.join().unwrap();
        let next = harvest_all(&tree);
        assert!(earlier.contains(&0) || next.contains(&0));
    });
}

#[test]
fn range_beside_harvest() {
    model(2, || {
        let tree = tree(&[]);
        let marker = spawn(&tree, |tree| tree.mark_range(62_u64, 4).unwrap());
        let first = harvest_all(&tree);
        marker.join().unwrap();
        let second = harvest_all(&tree);
        assert_eq!(together(&[&first, &second]), [62, 63, 64, 65]);
    });
}

#[test]
fn range_beside_a_harvest_of_a_part_of_it() {
    model(2, || {
        let tree = tree(&[64]);
        let marker = spawn(&tree, |tree| tree.mark_range(63_u64, 3).unwrap());
        let first = harvest(&tree, 0, 65);
        marker.join().unwrap();
        let second = harvest_all(&tree);
        assert!(first.iter().all(|page| *page < 65));
        let mut found = together(&[&first, &second]);
        found.dedup();
        assert_eq!(found, [63, 64, 65]);
    });
}

/// Whole words are filled by plain stores.
#[test]
fn a_range_of_whole_words_beside_harvest() {
    model(3, || {
        let tree = tree(&[]);
        let marker = spawn(&tree, |tree| tree.mark_range(64_u64, 128).unwrap());
        let first = harvest_all(&tree);
        marker.join().unwrap();
        let second = harvest_all(&tree);
        assert!(together(&[&first, &second]).into_iter().eq(64..192));
    });
}

/// The same, with another marker in a filled word, who may find the mark before its summary.
#[test]
fn a_mark_in_a_range_that_is_half_way_is_harvested() {
    model(3, || {
        let tree = tree(&[]);
        let other = spawn(&tree, |tree| tree.mark_range(64_u64, 128).unwrap());
        let harvester = spawn(&tree, harvest_all);
        tree.mark(100_u64).unwrap();
        let next = harvest_all(&tree);
        let earlier = harvester.join().unwrap();
        assert!(earlier.contains(&100) || next.contains(&100));
        other.join().unwrap();
    });
}

#[test]
fn words_beside_harvest() {
    model(2, || {
        let tree = tree(&[1]);
        let marker = spawn(&tree, |tree| tree.mark_words(0, &[0b10, 1]).unwrap());
        let first = harvest_all(&tree);
        marker.join().unwrap();
        let mut found = together(&[&first, &harvest_all(&tree)]);
        found.dedup();
        assert_eq!(found, [1, 64]);
    });
}

/// A buffer of one page has all else put back, beside a mark.
#[test]
fn mark_beside_a_harvest_that_puts_back() {
    model(2, || {
        let tree = tree(&[0, 64]);
        let marker = spawn(&tree, |tree| tree.mark(1_u64).unwrap());
        let mut one = [PageIndex(0)];
        let first =
            tree.harvest_some(PageRange::new(PageIndex(0), PAGES as u32), &mut one).unwrap();
        assert_eq!((first.pages, one[0].0), (1, 0));
        marker.join().unwrap();
        assert!(tree.is_sound());
        assert_eq!(harvest_all(&tree), [1, 64]);
    });
}

#[test]
fn two_harvests_share_what_is_marked() {
    model(2, || {
        let tree = tree(&[0, 64, 4096]);
        let other = spawn(&tree, |tree| harvest_all(tree));
        let own = harvest_all(&tree);
        let theirs = other.join().unwrap();
        assert_eq!(together(&[&own, &theirs]), [0, 64, 4096]);
    });
}

/// Who marks has written to the page; who harvests reads it. If no mark is left, the last content
/// was read.
fn content_beside_harvest(mark: fn(&Tree)) {
    model(3, move || {
        let tree = tree(&[0]);
        let content = Arc::new(AtomicU64::new(0));
        let written = Arc::clone(&content);
        let writer = spawn(&tree, move |tree| {
            written.store(1, Ordering::Relaxed);
            mark(tree);
        });
        let first = harvest_all(&tree);
        let read = content.load(Ordering::Relaxed);
        writer.join().unwrap();
        assert!(first.contains(&0));
        assert!(read == 1 || harvest_all(&tree).contains(&0), "a write was lost");
    });
}

#[test]
fn the_content_behind_a_mark_is_seen() {
    content_beside_harvest(|tree| tree.mark(0_u64).unwrap());
}

#[test]
fn the_content_behind_a_range_is_seen() {
    content_beside_harvest(|tree| tree.mark_range(0_u64, 1).unwrap());
}

#[test]
fn the_content_behind_whole_words_is_seen() {
    content_beside_harvest(|tree| tree.mark_range(0_u64, 128).unwrap());
}

#[test]
fn the_content_behind_words_is_seen() {
    content_beside_harvest(|tree| tree.mark_words(0, &[1]).unwrap());
}

/// Who joins reads all pages as they are, and gets every mark from then on.
#[test]
fn join_beside_mark() {
    model(3, || {
        let feed = std::sync::Arc::new(Feed::new(1).unwrap());
        let content = Arc::new(AtomicU64::new(0));
        let (own, written) = (std::sync::Arc::clone(&feed), Arc::clone(&content));
        let writer = thread::spawn(move || {
            written.store(1, Ordering::Relaxed);
            own.mark(0_u64).unwrap();
        });
        let reader = feed.join(Joining::Clean).unwrap();
        let read = content.load(Ordering::Relaxed);
        writer.join().unwrap();
        assert!(read == 1 || reader.is_marked(0_u64), "a write was lost");
    });
}

#[test]
fn push_beside_drain() {
    model(3, || {
        let tree = std::sync::Arc::new(Tree::new(64).unwrap());
        let (mut marker, mut reader) = ring(&tree, 1);
        let pusher = thread::spawn(move || {
            (0..3).for_each(|page| marker.push(PageIndex(page)).unwrap());
        });
        let mut found = Vec::new();
        let mut drain = |found: &mut Vec<PageIndex>| {
            if reader.drain(found) == Drained::RestInTree {
                tree.harvest_into(PageRange::new(PageIndex(0), 64), found).unwrap();
            }
        };
        drain(&mut found);
        pusher.join().unwrap();
        drain(&mut found);
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2].map(PageIndex));
    });
}

/// A bitmap's marks are in the tree after one drain or the next, and only what was marked. Pages 0 and 1
/// share a word, page 64 a block with them; page 128 is in the next one.
#[test]
fn bitmap_beside_drain() {
    for marks in [[0_u64, 1], [0, 64], [0, 128], [0, 0]] {
        model(4, move || {
            let tree = Tree::new(PAGES).unwrap();
            let (mut marker, reader) = bitmap(PAGES).unwrap();
            let content = Arc::new(AtomicU64::new(0));
            let written = Arc::clone(&content);
            let writer = thread::spawn(move || {
                for (number, page) in (1..).zip(marks) {
                    written.store(number, Ordering::Relaxed);
                    marker.mark(page).unwrap();
                }
            });
            reader.drain(&tree);
            let (first, read) = (harvest_all(&tree), content.load(Ordering::Relaxed));
            writer.join().unwrap();
            reader.drain(&tree);
            let second = harvest_all(&tree);
            let mut found = together(&[&first, &second]);
            found.dedup();
            let mut expected = marks.map(|page| page as u32).to_vec();
            expected.dedup();
            assert_eq!(found, expected);
            assert!(read == 2 || second.contains(&(marks[1] as u32)), "a write was lost");
            assert_eq!(reader.drain(&tree), 0);
        });
    }
}

#[test]
fn two_drains_share_a_bitmaps_marks() {
    model(3, || {
        let tree = std::sync::Arc::new(Tree::new(PAGES).unwrap());
        let (mut marker, reader) = bitmap(PAGES).unwrap();
        marker.mark(64_u64).unwrap();
        let reader = std::sync::Arc::new(reader);
        let (own_tree, own_reader) = (std::sync::Arc::clone(&tree), std::sync::Arc::clone(&reader));
        let other = thread::spawn(move || own_reader.drain(&*own_tree));
        marker.mark(1_u64).unwrap();
        reader.drain(&*tree);
        other.join().unwrap();
        reader.drain(&*tree);
        assert_eq!(harvest_all(&tree), [1, 64]);
    });
}
