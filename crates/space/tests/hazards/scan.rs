//! `PAGEMAP_SCAN` and the marks of write protection that it and others leave.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bindery_space::{Reach, Sought, Worker};
use bindery_sys::pagemap::{EXTENTS_PER_CALL_MAX, Extent, Pagemap, Query, category};
use bindery_units::{PAGE_BYTES, PageRange, Slot};
use bindery_wire::lane::{PageOutcome, PageSpan, Presence, Run, RunTarget};

use crate::common::{Bench, merged};

/// 2 MiB.
const HUGE_PAGES: u32 = 512;

/// Does what might never end: a guest that faults again and again.
fn within_seconds<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()));
    told.recv_timeout(Duration::from_secs(20)).expect("it ends")
}

/// How many pages of a range are marked, and not there.
fn marked(bench: &Bench, page: u32, count: u32) -> usize {
    let query = Query { require: category::SWAPPED, report: category::SWAPPED, ..Query::default() };
    let mut extents = [Extent::default(); 64];
    let bytes = count as usize * PAGE_BYTES;
    let pagemap = Pagemap::of_self().expect("pagemap");
    let found = pagemap.scan(bench.address(page), bytes, query, &mut extents).expect("scan");
    extents[..found.extents].iter().map(Extent::pages).sum()
}

/// Has the kernel mark every absent page of a range as protected, as a scan without `PRESENT` does.
fn mark(bench: &Bench, page: u32, count: u32) {
    let query = Query {
        require: category::WRITTEN,
        report: category::WRITTEN,
        protect: true,
        ..Query::default()
    };
    let pagemap = Pagemap::of_self().expect("pagemap");
    let bytes = count as usize * PAGE_BYTES;
    pagemap.scan(bench.address(page), bytes, query, &mut [Extent::default(); 64]).expect("scan");
    assert_eq!(marked(bench, page, count), count as usize, "the kernel marks what is absent");
}

/// Hears that so many pages left their slots. Whoever wrote one goes on a little before it is told.
fn hear_of(worker: &mut Worker, count: usize) {
    let mut lost = Vec::new();
    while lost.len() < count {
        // Pages are told of in groups of 64, each as a whole.
        let room = lost.len() + 64;
        worker.lost(&mut lost, room);
        thread::yield_now();
    }
}

/// The pages of a guest's own among those that were reported.
fn pages_of(spans: &[PageSpan]) -> Vec<u32> {
    let own = spans.iter().filter(|span| span.presence == Presence::Present);
    own.flat_map(|span| span.first..span.first + span.count).collect()
}

#[test]
fn a_scan_leaves_no_marks_on_holes() {
    let Some(bench) = Bench::new(256, 1) else { return };
    let mut worker = bench.space.worker().expect("worker");
    // A page in the midst has the kernel look at the page table of all.
    bench.fill(128, 1);
    bench
        .space
        .discard(bench.address(128), 128 * PAGE_BYTES, libc::MADV_DONTNEED)
        .expect("discard");
    bench.fill(0, 1);
    for sought in [Sought::Written, Sought::Present] {
        worker.scan_for(sought, Reach::Split, bench.all(), &mut Vec::new(), 100).expect("scan");
        assert_eq!(marked(&bench, 64, 192), 0, "{sought:?}");
    }
}

#[test]
fn marked_holes_are_zeros_for_whoever_touches_or_merges_them() {
    let Some(bench) = Bench::new(256, 1) else { return };
    let mut worker = bench.space.worker().expect("worker");
    mark(&bench, 0, 64);
    let (touched, written) = (bench.words(3) as usize, bench.words(4) as usize);
    let seen = within_seconds(move || {
        // SAFETY: the pages are in the mapping.
        unsafe {
            (written as *mut u64).write_volatile(9);
            ((touched as *mut u64).read_volatile(), (written as *mut u64).read_volatile())
        }
    });
    assert_eq!(seen, (0, 9));
    let mut outcomes = Vec::new();
    let zeros = Run { page: bench.page(0).0, count: 64, slot: 0, target: RunTarget::Zeros };
    worker.merge(&bench.segments(), &[zeros], &mut outcomes);
    assert_eq!(outcomes[4], PageOutcome::Different);
    // SAFETY: as above.
    assert_eq!(unsafe { bench.words(4).read_volatile() }, 9);
    assert!((5..64).all(|page| bench.holds(page, 0)));
}

#[test]
fn a_scan_of_more_extents_than_the_kernel_counts_right_finds_all() {
    let pages = 4 * EXTENTS_PER_CALL_MAX as u32;
    let Some(bench) = Bench::new(pages as usize, 1) else { return };
    let mut worker = bench.space.worker().expect("worker");
    (0..pages).step_by(2).for_each(|page| bench.fill(page, 1));
    // Batches of zero pages lie between: those are gone, if anything.
    let mut found = Vec::new();
    assert_eq!(worker.scan(bench.all(), &mut found, pages as usize).expect("scan"), None);
    let expected: Vec<u32> = (0..pages).step_by(2).map(|page| bench.page(page).0).collect();
    assert_eq!(pages_of(&found), expected);
}

#[test]
fn holes_as_large_as_a_page_table_hide_nothing_behind_them() {
    let Some(bench) = Bench::new(8 * HUGE_PAGES as usize, 1) else { return };
    let mut worker = bench.space.worker().expect("worker");
    let islands: Vec<u32> = (0..4).map(|at| at * 2 * HUGE_PAGES + 700).collect();
    islands.iter().for_each(|&page| bench.fill(page, 1));
    let mut found = Vec::new();
    worker.scan(bench.all(), &mut found, 1000).expect("scan");
    let expected: Vec<u32> = islands.iter().map(|&page| bench.page(page).0).collect();
    assert_eq!(pages_of(&found), expected);
    // Piece by piece, with ends in the midst of holes.
    islands.iter().for_each(|&page| bench.fill(page, 2));
    found.clear();
    for at in (0..8 * HUGE_PAGES).step_by(300) {
        let piece = PageRange::new(bench.page(at), 300.min(8 * HUGE_PAGES - at));
        worker.scan(piece, &mut found, 1000).expect("scan");
    }
    assert_eq!(pages_of(&found), expected);
}

#[test]
fn pages_that_came_back_are_zeroed_and_merged_over_their_seams() {
    let Some(bench) = Bench::full_of(64, 3) else { return };
    let mut worker = bench.space.worker().expect("worker");
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64));
    // Each comes back alone: a mapping of its own.
    (0..64).step_by(2).chain((1..64).step_by(2)).for_each(|page| bench.fill(page, 3));
    hear_of(&mut worker, 64);
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64), "in one go");
    (0..64).step_by(2).chain((1..64).step_by(2)).for_each(|page| bench.fill(page, 4));
    hear_of(&mut worker, 64);
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), [PageOutcome::Different; 64], "and back");
    assert!((0..64).all(|page| bench.holds(page, 4)));
    bench.space.discard(bench.address(0), 64 * PAGE_BYTES, libc::MADV_DONTNEED).expect("discard");
    let words: Vec<usize> = (0..64).map(|page| bench.words(page) as usize).collect();
    // SAFETY: the pages are in the mapping.
    let seen =
        move || words.into_iter().all(|at| unsafe { (at as *const u64).read_volatile() } == 0);
    assert!(within_seconds(seen), "zeros, and no endless fault");
}

/// All spans that a scan finds, with whether they are gone.
fn scanned(bench: &Bench, worker: &mut Worker) -> Vec<(u32, u32, u32)> {
    let mut spans = Vec::new();
    assert_eq!(worker.scan(bench.all(), &mut spans, 1000).expect("scan"), None);
    let first = bench.page(0).0;
    spans.iter().map(|span| (span.first - first, span.count, span.presence as u32)).collect()
}

#[test]
fn what_was_written_and_merged_before_any_scan_is_told_once() {
    let Some(bench) = Bench::new(64, 64) else { return };
    let mut worker = bench.space.worker().expect("worker");
    (0..64).for_each(|page| bench.fill(page, 3));
    (0..32).for_each(|slot| bench.fill_slot(Slot(slot), 4));
    (32..64).for_each(|slot| bench.fill_slot(Slot(slot), 3));
    assert_eq!(scanned(&bench, &mut worker), [(0, 64, 0)]);
    (8..24).for_each(|page| bench.fill(page, 4));
    (40..44).for_each(|page| bench.fill(page, 0));
    assert_eq!(bench.merge(&mut worker, 10, 10, Slot(10)), merged(10));
    assert_eq!(bench.merge(&mut worker, 32, 4, Slot(32)), merged(4), "not written since");
    let zeros = Run { page: bench.page(40).0, count: 4, slot: 0, target: RunTarget::Zeros };
    let mut outcomes = Vec::new();
    worker.merge(&bench.segments(), &[zeros], &mut outcomes);
    assert_eq!(outcomes, merged(4));
    let told = [(8, 2, 0), (10, 10, 1), (20, 4, 0), (40, 4, 1)];
    assert_eq!(scanned(&bench, &mut worker), told);
    assert_eq!(scanned(&bench, &mut worker), []);
    bench.fill(12, 5);
    bench.fill(41, 5);
    assert_eq!(scanned(&bench, &mut worker), [(12, 1, 0), (41, 1, 0)], "came back");
}

#[test]
fn what_was_discarded_is_told_once_and_what_is_written_there_afterwards_too() {
    let Some(bench) = Bench::full_of(64, 3) else { return };
    let mut worker = bench.space.worker().expect("worker");
    assert_eq!(bench.merge(&mut worker, 16, 16, Slot(0)), merged(16));
    scanned(&bench, &mut worker);
    // The guest's own and merged ones.
    bench.space.discard(bench.address(8), 16 * PAGE_BYTES, libc::MADV_DONTNEED).expect("discard");
    bench.fill(9, 7);
    assert_eq!(scanned(&bench, &mut worker), [(8, 16, 1), (9, 1, 0)]);
    assert_eq!(scanned(&bench, &mut worker), []);
}

/// A guest that writes what others hold, so that pages merge between its write and the next scan.
#[test]
fn a_copy_that_follows_what_scans_tell_is_the_memory_in_the_end() {
    const PAGES: u32 = 64;
    const VALUES: u64 = 4;
    let Some(bench) = Bench::new(PAGES as usize, VALUES as u32) else { return };
    (0..VALUES).for_each(|value| bench.fill_slot(Slot(value as u32), value));
    let (bench, ended) = (&bench, &AtomicBool::new(false));
    let random = |state: &mut u64| {
        // Xorshift.
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    };
    // SAFETY: the page is in the mapping.
    let word = |page: u32| unsafe { bench.words(page).read_volatile() };
    let mut copy = vec![0; PAGES as usize];
    let mut gone = 0;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut state = 1;
            while !ended.load(Ordering::Relaxed) {
                let page = random(&mut state) as u32 % PAGES;
                bench.fill(page, random(&mut state) % VALUES);
                if random(&mut state).is_multiple_of(16) {
                    let address = bench.address(random(&mut state) as u32 % PAGES);
                    let discarded = bench.space.discard(address, PAGE_BYTES, libc::MADV_DONTNEED);
                    discarded.expect("discard");
                }
            }
        });
        scope.spawn(move || {
            let mut worker = bench.space.worker().expect("worker");
            let mut lost = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                for page in 0..PAGES {
                    let slot = word(page) as u32;
                    let target = if slot == 0 { RunTarget::Zeros } else { RunTarget::Slots };
                    let run = Run { page: bench.page(page).0, count: 1, slot, target };
                    worker.merge(&bench.segments(), &[run], &mut Vec::new());
                }
                lost.clear();
                worker.lost(&mut lost, PAGES as usize);
            }
        });
        let mut worker = bench.space.worker().expect("worker");
        let mut follow = |copy: &mut Vec<u64>| {
            for (first, count, is_gone) in scanned(bench, &mut worker) {
                gone += is_gone * count;
                (first..first + count).for_each(|page| copy[page as usize] = word(page));
            }
        };
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            follow(&mut copy);
            thread::sleep(Duration::from_millis(1));
        }
        ended.store(true, Ordering::Relaxed);
        // What was in transit is told by the second.
        thread::sleep(Duration::from_millis(100));
        (0..2).for_each(|_| follow(&mut copy));
    });
    assert_eq!(copy, (0..PAGES).map(word).collect::<Vec<_>>());
    assert!(gone > 0, "no page was merged between a write and a scan");
}
