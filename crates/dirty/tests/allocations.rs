//! What marks, harvests into a caller's buffer and looks at a tree: none of it allocates, counted by the
//! allocator.

#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use bindery_dirty::marks::Drain;
use bindery_dirty::{Drained, Feed, Joining, Tree, Window, bitmap, ring};
use bindery_units::{PageIndex, PageRange};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator with the caller's own promises; counting does not touch
// the memory, nor allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this thread allocates in it.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

const PAGES: u64 = if cfg!(miri) { 20_000 } else { 1 << 22 };
const WHOLE: PageRange = PageRange { first: PageIndex(0), count: PAGES as u32 };

#[test]
fn allocations_are_counted() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

/// Sparse, dense and full parts, through buffers that end in each of them.
#[test]
fn a_harvest_into_a_buffer_allocates_nothing() {
    for room in [64, 700, 10_000] {
        let tree = Tree::new(PAGES).unwrap();
        let mut buffer = vec![PageIndex(0); room];
        let mut runs = vec![PageRange::default(); room];
        let allocated = allocations(|| {
            (0..PAGES).step_by(997).for_each(|page| tree.mark(page).unwrap());
            tree.mark_range(PAGES / 2, 9000).unwrap();
            (0..5000).step_by(2).for_each(|page| tree.mark(page + 77_u64).unwrap());
            let (mut found, mut rest) = (0, Some(Window::from(WHOLE)));
            let marked = tree.count();
            while let Some(window) = rest {
                let harvest = tree.harvest_some(window, &mut buffer).unwrap();
                found += harvest.pages as u64;
                rest = harvest.rest;
            }
            assert_eq!(found, marked);
            tree.mark_pages(0, &buffer[..1]).unwrap();
            tree.harvest_runs(WHOLE, &mut runs, |run| assert_eq!(run.count, 1)).unwrap();
            assert!(tree.is_empty());
        });
        assert_eq!(allocated, 0, "a buffer of {room} pages");
    }
}

/// A list that has room is filled, and not replaced.
#[test]
fn a_list_with_room_is_not_allocated_again() {
    let mut tree = Tree::new(PAGES).unwrap();
    let (mut pages, mut runs) = (Vec::with_capacity(20_000), Vec::with_capacity(3000));
    let allocated = allocations(|| {
        for turn in 0..3_u64 {
            pages.clear();
            tree.mark_range(turn * 100, 3000).unwrap();
            match turn {
                0 => tree.harvest_into(WHOLE, &mut pages).unwrap(),
                1 => tree.harvest_alone(WHOLE, &mut pages).unwrap(),
                _ => tree.list_into(WHOLE, &mut pages).unwrap(),
            }
            assert_eq!(pages.len(), 3000);
            runs.clear();
            tree.mark_range(turn * 100, 3000).unwrap();
            match turn {
                0 => tree.harvest_runs_into(WHOLE, &mut runs).unwrap(),
                _ => tree.harvest_runs_alone(WHOLE, &mut runs).unwrap(),
            }
            assert_eq!(runs, [PageRange::new(PageIndex(turn as u32 * 100), 3000)]);
        }
    });
    assert_eq!(allocated, 0);
}

#[test]
fn looking_and_set_operations_allocate_nothing() {
    let [tree, other] = [(); 2].map(|()| Tree::new(PAGES).unwrap());
    let mut bitmap = vec![0; tree.bitmap_words()];
    let allocated = allocations(|| {
        tree.mark_range(5_u64, 500).unwrap();
        other.mark_words(1, &[!0, 1]).unwrap();
        tree.unite(&other).unwrap();
        tree.subtract(&other).unwrap();
        tree.export(&mut bitmap).unwrap();
        other.import(&bitmap).unwrap();
        assert_eq!((tree.iter().count(), tree.runs().count()), (435, 2));
        assert_eq!((tree.count(), other.count()), (435, 500));
    });
    assert_eq!(allocated, 0);
}

#[test]
fn what_stands_in_front_allocates_nothing() {
    let tree = Arc::new(Tree::new(PAGES).unwrap());
    let feed = Arc::new(Feed::new(PAGES).unwrap());
    let reader = feed.join(Joining::Clean).unwrap();
    let (mut bitmap_marker, bitmap_reader) = bitmap(PAGES).unwrap();
    let (mut ring_marker, mut ring_reader) = ring(&tree, 4);
    let mut pages = Vec::with_capacity(10_000);
    let allocated = allocations(|| {
        bitmap_marker.mark(9_u64).unwrap();
        bitmap_marker.mark_range(5000_u64, 100).unwrap();
        assert_eq!(bitmap_reader.drain(&*feed), 101);
        assert_eq!(reader.drain(&*tree), 101);
        (0..6).for_each(|page| ring_marker.push(PageIndex(page)).unwrap());
        assert_eq!(ring_reader.drain(&mut pages), Drained::RestInTree);
        tree.harvest_into(WHOLE, &mut pages).unwrap();
        assert_eq!(pages.len(), 4 + 2 + 101);
    });
    assert_eq!(allocated, 0);
}
