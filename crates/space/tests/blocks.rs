//! Blocks: huge pages stay as the kernel made them until they are split, and come back.

mod common;

use bindery_space::{Reach, Sought, Worker};
use bindery_sys::mapping::HUGE_PAGE_BYTES;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange, Slot};
use bindery_wire::lane::{
    BLOCK_PAGES, BlockOutcome, BlockSample, BlockState, DigestKind, LossCause, PageSpan, Run,
    RunTarget,
};
use common::{Bench, blocks_of, huge_kib, merged};

const BLOCKS: usize = 3;
const PAGES: usize = BLOCKS * BLOCK_PAGES as usize;
const HUGE_KIB: u64 = HUGE_PAGE_BYTES as u64 >> 10;

/// Memory of whole blocks, of which the first two are filled: each page with its number and one more. Nothing
/// where the kernel makes no huge pages.
fn filled() -> Option<(Bench, Worker)> {
    let bench = Bench::of_huge_pages(PAGES, 2 * BLOCK_PAGES)?;
    (0..2 * BLOCK_PAGES).for_each(|page| bench.fill(page, u64::from(page) + 1));
    if huge(&bench) < 2 * HUGE_KIB {
        bindery_testkit::skipped!("the kernel makes no huge pages here");
        return None;
    }
    let worker = bench.space.worker().expect("worker");
    Some((bench, worker))
}

fn huge(bench: &Bench) -> u64 {
    huge_kib(bench.address(0), bench.memory.bytes())
}

fn holds_all(bench: &Bench) -> bool {
    (0..2 * BLOCK_PAGES).all(|page| bench.holds(page, u64::from(page) + 1))
}

fn sample(worker: &mut Worker, bench: &Bench) -> Vec<BlockSample> {
    let mut samples = Vec::new();
    worker.sample(&blocks_of(bench.all()), &mut samples);
    samples
}

fn states(worker: &mut Worker, bench: &Bench) -> Vec<BlockState> {
    sample(worker, bench).iter().map(|sample| sample.state).collect()
}

fn collapse(worker: &mut Worker, bench: &Bench, block: usize) -> BlockOutcome {
    let mut outcomes = Vec::new();
    worker.collapse(&blocks_of(bench.all())[block..][..1], &mut outcomes);
    outcomes[0]
}

fn written(worker: &mut Worker, bench: &Bench, reach: Reach) -> Vec<u32> {
    let mut spans: Vec<PageSpan> = Vec::new();
    worker.scan_for(Sought::Written, reach, bench.all(), &mut spans, 10_000).expect("scan");
    let first = bench.page(0).0;
    spans.iter().flat_map(|span| span.first - first..span.first - first + span.count).collect()
}

#[test]
fn managed_memory_is_huge_until_it_is_split_and_reading_splits_nothing() {
    let Some((bench, mut worker)) = filled() else { return };
    assert_eq!(
        states(&mut worker, &bench),
        [BlockState::Huge, BlockState::Huge, BlockState::Absent]
    );
    let pages: Vec<u32> = bench.all().pages().map(|page| page.0).collect();
    let mut digests = Vec::new();
    worker.digest(&pages, &bindery_page::DigestKey::generate().expect("key"), &mut digests);
    let there = digests.iter().filter(|digest| digest.kind == DigestKind::Content).count();
    assert_eq!(there, 2 * BLOCK_PAGES as usize);
    let absent = &digests[2 * BLOCK_PAGES as usize..];
    assert!(absent.iter().all(|digest| digest.kind == DigestKind::Nothing));
    assert_eq!(huge(&bench), 2 * HUGE_KIB, "reading neither splits nor fills");
    assert_eq!(states(&mut worker, &bench)[2], BlockState::Absent);
    assert!(written(&mut worker, &bench, Reach::Split).is_empty(), "nobody watches");
    assert_eq!(huge(&bench), 2 * HUGE_KIB);
    bench.space.release().expect("release");
}

#[test]
fn a_signature_changes_when_much_is_written_and_not_by_itself() {
    let Some((bench, mut worker)) = filled() else { return };
    let before = sample(&mut worker, &bench);
    assert_eq!(sample(&mut worker, &bench), before);
    (0..BLOCK_PAGES).for_each(|page| bench.fill(page, 7));
    let after = sample(&mut worker, &bench);
    assert_ne!(after[0].signature, before[0].signature);
    assert_eq!(after[1], before[1]);
    bench.space.release().expect("release");
}

#[test]
fn a_merged_page_splits_its_block_alone_and_a_collapse_brings_it_back() {
    let Some((bench, mut worker)) = filled() else { return };
    (0..64).for_each(|slot| bench.fill_slot(Slot(slot), u64::from(slot) + 101));
    assert_eq!(bench.merge(&mut worker, 100, 64, Slot(0)), merged(64));
    assert_eq!(
        states(&mut worker, &bench),
        [BlockState::Split, BlockState::Huge, BlockState::Absent]
    );
    assert_eq!(huge(&bench), HUGE_KIB);
    // One of them was written, and its mapping is another.
    bench.fill(120, 121);
    assert!(holds_all(&bench));

    assert_eq!(collapse(&mut worker, &bench, 0), BlockOutcome::Huge);
    assert_eq!(huge(&bench), 2 * HUGE_KIB);
    assert!(holds_all(&bench));
    let mut lost = Vec::new();
    assert!(!worker.lost(&mut lost, 1000));
    let unmerged = lost.iter().filter(|lost| lost.cause == LossCause::Unmerge).count();
    assert_eq!((lost.len(), unmerged), (64, 63), "the written one was lost before");
    // And again.
    assert_eq!(bench.merge(&mut worker, 100, 64, Slot(0)), merged(64));
    assert_eq!(collapse(&mut worker, &bench, 0), BlockOutcome::Huge);
    assert!(holds_all(&bench));
    bench.space.release().expect("release");
}

#[test]
fn blocks_that_follow_one_another_share_a_mapping_when_they_come_back() {
    let Some((bench, mut worker)) = filled() else { return };
    (0..64).for_each(|slot| bench.fill_slot(Slot(slot), u64::from(slot) + 1));
    (0..64).for_each(|slot| bench.fill_slot(Slot(64 + slot), u64::from(slot) + 513));
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64));
    assert_eq!(bench.merge(&mut worker, 512, 64, Slot(64)), merged(64));
    for block in 0..2 {
        assert_eq!(collapse(&mut worker, &bench, block), BlockOutcome::Huge);
    }
    let end = bench.address(0).plus(2 * HUGE_PAGE_BYTES);
    let areas = bindery_sys::maps::between(bench.address(0), end).expect("maps");
    assert_eq!(areas.len(), 1, "{areas:?}");
    assert!(holds_all(&bench));
    bench.space.release().expect("release");
}

#[test]
fn a_block_of_zeros_becomes_a_hole_and_is_huge_when_it_is_touched_again() {
    let Some((bench, mut worker)) = filled() else { return };
    (0..BLOCK_PAGES).for_each(|page| bench.fill(page, 0));
    let zeros =
        |first| Run { page: bench.page(first).0, count: 64, slot: 0, target: RunTarget::Zeros };
    let runs: Vec<Run> = (0..BLOCK_PAGES).step_by(64).map(zeros).collect();
    let mut outcomes = Vec::new();
    worker.merge(&bench.segments(), &runs, &mut outcomes);
    assert_eq!(outcomes, merged(BLOCK_PAGES as usize));
    assert_eq!(collapse(&mut worker, &bench, 0), BlockOutcome::Whole);
    assert_eq!(states(&mut worker, &bench)[0], BlockState::Absent);
    assert!((0..BLOCK_PAGES).all(|page| bench.holds(page, 0)));
    bench.fill(3, 4);
    assert_eq!(huge(&bench), 2 * HUGE_KIB, "after it was read, as well");
    bench.space.release().expect("release");
}

#[test]
fn what_was_not_advised_to_be_huge_stays_split() {
    let Some(bench) = Bench::new(PAGES, 64) else { return };
    let mut worker = bench.space.worker().expect("worker");
    let first = bench.region.pages.first.0.next_multiple_of(BLOCK_PAGES);
    let from = first - bench.page(0).0;
    (from..from + BLOCK_PAGES).for_each(|page| bench.fill(page, u64::from(page)));
    let mut outcomes = Vec::new();
    worker.collapse(&[first], &mut outcomes);
    let policy = bindery_sys::huge::Policy::of_machine();
    let expected = match policy {
        Ok(bindery_sys::huge::Policy::Always) => BlockOutcome::Huge,
        _ => BlockOutcome::Stuck,
    };
    assert_eq!(outcomes, [expected]);
    assert!((from..from + BLOCK_PAGES).all(|page| bench.holds(page, u64::from(page))));
    bench.space.release().expect("release");
}

#[test]
fn writes_in_whole_blocks_are_found_while_somebody_watches_them() {
    let Some((bench, mut worker)) = filled() else { return };
    assert_eq!(written(&mut worker, &bench, Reach::All).len(), 2 * BLOCK_PAGES as usize);
    assert!(written(&mut worker, &bench, Reach::All).is_empty());
    bench.fill(5, 6);
    bench.fill(1030, 1);
    let found = written(&mut worker, &bench, Reach::All);
    assert_eq!(found, (0..512).chain(1024..1536).collect::<Vec<_>>(), "all of a huge page");
    assert_eq!(huge(&bench), 3 * HUGE_KIB);
    // A huge page that is new is reported once more, as it comes to be tracked as such.
    assert_eq!(written(&mut worker, &bench, Reach::All), (1024..1536).collect::<Vec<_>>());
    assert!(written(&mut worker, &bench, Reach::All).is_empty());
    // A split block is watched as before, beside the whole ones.
    worker.split(&blocks_of(bench.all())[..1], &mut Vec::new());
    assert_eq!(written(&mut worker, &bench, Reach::All), (0..512).collect::<Vec<_>>());
    bench.fill(9, 10);
    bench.fill(600, 601);
    let expected: Vec<u32> = [9].into_iter().chain(512..1024).collect();
    assert_eq!(written(&mut worker, &bench, Reach::All), expected);
    assert!(written(&mut worker, &bench, Reach::Split).is_empty());
    bench.fill(10, 11);
    bench.fill(601, 602);
    assert_eq!(written(&mut worker, &bench, Reach::Split), [10]);
    assert!(holds_all(&bench));
    bench.space.release().expect("release");
}

#[test]
fn writes_that_are_tracked_split_no_huge_page() {
    let Some((bench, mut worker)) = filled() else { return };
    let _ = written(&mut worker, &bench, Reach::All);
    for round in 0..10 {
        let page = round * 100 + 3;
        bench.fill(page, u64::from(page) + 1);
        let block = page / BLOCK_PAGES * BLOCK_PAGES;
        let expected: Vec<u32> = (block..block + BLOCK_PAGES).collect();
        assert_eq!(written(&mut worker, &bench, Reach::All), expected, "round {round}");
        assert!(written(&mut worker, &bench, Reach::All).is_empty());
        assert_eq!(huge(&bench), 2 * HUGE_KIB, "round {round}");
    }
    assert!(written(&mut worker, &bench, Reach::Split).is_empty());
    bench.fill(5, 6);
    assert_eq!(huge(&bench), 2 * HUGE_KIB);
    assert!(holds_all(&bench));
    bench.space.release().expect("release");
    bench.fill(5, 6);
    assert_eq!(huge(&bench), 2 * HUGE_KIB);
}

#[test]
fn a_huge_page_that_the_kernel_split_is_tracked_by_page() {
    let Some((bench, mut worker)) = filled() else { return };
    let _ = written(&mut worker, &bench, Reach::All);
    bench.space.discard(bench.address(7), PAGE_BYTES, libc::MADV_DONTNEED).expect("discard");
    bench.fill(9, 10);
    let found = written(&mut worker, &bench, Reach::All);
    assert!(found.contains(&7) && found.contains(&9) && found.iter().all(|page| *page < 512));
    // What was reported before that is reported once more.
    let _ = written(&mut worker, &bench, Reach::All);
    bench.fill(8, 9);
    bench.fill(7, 8);
    assert_eq!(written(&mut worker, &bench, Reach::All), [7, 8]);
    // And by block again when it is huge again, which takes pages that are not protected.
    let _ = written(&mut worker, &bench, Reach::Split);
    // SAFETY: a huge page has the content of the pages that it is made of.
    let collapsed =
        unsafe { bindery_sys::mapping::advise(bench.address(0), HUGE_PAGE_BYTES, MADV_COLLAPSE) };
    collapsed.expect("collapse");
    let _ = written(&mut worker, &bench, Reach::All);
    bench.fill(9, 10);
    assert_eq!(written(&mut worker, &bench, Reach::All).len(), 512);
    assert_eq!(huge(&bench), 2 * HUGE_KIB);
    assert!(holds_all(&bench));
    bench.space.release().expect("release");
}

#[test]
fn a_block_that_is_cut_while_it_is_tracked_lets_writers_go_on() {
    let Some((bench, mut worker)) = filled() else { return };
    let _ = written(&mut worker, &bench, Reach::All);
    bench.space.forget(bench.address(100), 100 * PAGE_BYTES);
    // SAFETY: the pages are the test's, and nobody has them any more.
    unsafe { bindery_sys::mapping::replace_with_anonymous(bench.address(100), 100 * PAGE_BYTES) }
        .expect("map");
    bench.fill(50, 51);
    bench.fill(350, 351);
    let found = written(&mut worker, &bench, Reach::All);
    assert!(found.contains(&50) && found.contains(&350), "{found:?}");
    bench.space.release().expect("release");
}

/// `MADV_COLLAPSE` of madvise(2).
const MADV_COLLAPSE: i32 = 25;

#[test]
fn a_discard_in_a_whole_block_is_reported_to_who_watches() {
    let Some((bench, mut worker)) = filled() else { return };
    let _ = written(&mut worker, &bench, Reach::All);
    bench.space.discard(bench.address(7), PAGE_BYTES, libc::MADV_DONTNEED).expect("discard");
    assert_eq!(written(&mut worker, &bench, Reach::All), [7]);
    assert!(bench.holds(7, 0));
    bench.space.release().expect("release");
}

#[test]
fn blocks_that_are_no_longer_managed_are_said_to_be() {
    let Some((bench, mut worker)) = filled() else { return };
    let blocks = blocks_of(bench.all());
    bench.space.release().expect("release");
    let (mut samples, mut outcomes) = (Vec::new(), Vec::new());
    worker.sample(&blocks, &mut samples);
    worker.split(&blocks, &mut outcomes);
    worker.collapse(&blocks, &mut outcomes);
    assert!(samples.iter().all(|sample| sample.state == BlockState::Unmanaged));
    assert_eq!(outcomes, vec![BlockOutcome::Unmanaged; 2 * BLOCKS]);
    assert_eq!(huge(&bench), 2 * HUGE_KIB);
    assert!(holds_all(&bench));
}

#[test]
fn pages_of_a_block_have_numbers_that_begin_with_a_multiple() {
    let Some(bench) = Bench::of_huge_pages(PAGES, 1) else { return };
    assert_eq!(bench.all().first.0 % BLOCK_PAGES, 0);
    let inner = PageRange::new(PageIndex(bench.all().first.0 + 1), 1);
    assert_eq!(blocks_of(inner), [bench.all().first.0]);
    bench.space.release().expect("release");
}

#[test]
fn either_side_of_a_block_that_is_cut_is_split_by_itself() {
    let Some((bench, mut worker)) = filled() else { return };
    bench.space.forget(bench.address(100), 100 * PAGE_BYTES);
    bench.fill_slot(Slot(0), 301);
    assert_eq!(bench.merge(&mut worker, 300, 1, Slot(0)), merged(1));
    let _ = written(&mut worker, &bench, Reach::Split);
    bench.fill(50, 51);
    bench.fill(350, 351);
    assert_eq!(written(&mut worker, &bench, Reach::Split), [350], "the other side is whole");
    assert_eq!(states(&mut worker, &bench)[0], BlockState::Small, "it is to be split as well");
    assert_eq!(collapse(&mut worker, &bench, 0), BlockOutcome::Stuck);
    worker.split(&blocks_of(bench.all())[..1], &mut Vec::new());
    assert_eq!(states(&mut worker, &bench)[0], BlockState::Split);
    let _ = written(&mut worker, &bench, Reach::Split);
    bench.fill(50, 51);
    bench.fill(351, 352);
    assert_eq!(written(&mut worker, &bench, Reach::Split), [50, 351]);
    // Of a block that was split before it was cut both sides are.
    worker.split(&blocks_of(bench.all())[1..2], &mut Vec::new());
    bench.space.forget(bench.address(700), PAGE_BYTES);
    assert_eq!(states(&mut worker, &bench)[1], BlockState::Split);
    assert!(holds_all(&bench));
    bench.space.release().expect("release");
}
