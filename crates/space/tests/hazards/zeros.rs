//! Pages of zeros for which the kernel maps its own: where it splits a huge page, and where merging has it do so.

use bindery_space::{Reach, Sought, Worker};
use bindery_sys::mapping;
use bindery_units::{PAGE_BYTES, Slot};
use bindery_wire::lane::{BLOCK_PAGES, PageSpan, Presence, Run, RunTarget};

use crate::common::{Bench, blocks_of, huge_kib, merged, split};

/// A huge page whose pages hold their numbers and one more. Nothing where the kernel makes none.
fn filled() -> Option<(Bench, Worker)> {
    let bench = Bench::of_huge_pages(BLOCK_PAGES as usize, 64)?;
    (0..BLOCK_PAGES).for_each(|page| bench.fill(page, u64::from(page) + 1));
    if huge_kib(bench.address(0), bench.memory.bytes()) == 0 {
        bindery_testkit::skipped!("the kernel makes no huge pages here");
        return None;
    }
    let worker = bench.space.worker().expect("worker");
    Some((bench, worker))
}

fn spans(worker: &mut Worker, bench: &Bench, reach: Reach) -> Vec<PageSpan> {
    let mut spans = Vec::new();
    worker.scan_for(Sought::Written, reach, bench.all(), &mut spans, 10_000).expect("scan");
    spans
}

fn written(worker: &mut Worker, bench: &Bench, reach: Reach) -> Vec<u32> {
    let first = bench.page(0).0;
    let pages = |span: &PageSpan| span.first - first..span.first - first + span.count;
    spans(worker, bench, reach).iter().flat_map(pages).collect()
}

/// Makes the kernel split the huge page that a page lies in, as it does by itself where memory is short.
fn split_by_kernel(bench: &Bench, page: u32) {
    // SAFETY: the advice changes no content.
    unsafe { mapping::advise(bench.address(page), PAGE_BYTES, libc::MADV_COLD) }.expect("advice");
}

#[test]
fn written_zeros_are_reported_where_merging_splits_a_huge_page() {
    let Some((bench, mut worker)) = filled() else { return };
    assert!(split(&mut worker, bench.all()));
    let _ = written(&mut worker, &bench, Reach::Split);
    assert!(written(&mut worker, &bench, Reach::Split).is_empty());
    bench.fill(10, 0);
    bench.fill(200, 0);
    bench.fill_slot(Slot(0), 301);
    assert_eq!(bench.merge(&mut worker, 300, 1, Slot(0)), merged(1));
    assert_eq!(written(&mut worker, &bench, Reach::Split), [10, 200]);
    assert!(written(&mut worker, &bench, Reach::Split).is_empty(), "reported once");
    bench.fill(10, 7);
    assert_eq!(written(&mut worker, &bench, Reach::Split), [10]);
    bench.space.release().expect("release");
}

#[test]
fn written_zeros_are_reported_where_the_kernel_splits_a_huge_page() {
    for reach in [Reach::Split, Reach::All] {
        let Some((bench, mut worker)) = filled() else { return };
        if reach == Reach::Split {
            assert!(split(&mut worker, bench.all()));
        }
        let _ = written(&mut worker, &bench, reach);
        assert!(written(&mut worker, &bench, reach).is_empty());
        bench.fill(10, 0);
        bench.fill(200, 0);
        split_by_kernel(&bench, 300);
        let found = written(&mut worker, &bench, reach);
        assert!(found.contains(&10) && found.contains(&200), "{reach:?}: {found:?}");
        // A block that was tracked as such is reported once more.
        let _ = written(&mut worker, &bench, reach);
        assert!(written(&mut worker, &bench, reach).is_empty(), "{reach:?}");
        bench.fill(10, 7);
        assert_eq!(written(&mut worker, &bench, reach), [10], "{reach:?}");
        bench.space.release().expect("release");
    }
}

/// With nothing else in the block that a scan finds.
#[test]
fn a_block_of_written_zeros_is_reported_where_the_kernel_splits_it() {
    let Some((bench, mut worker)) = filled() else { return };
    let _ = written(&mut worker, &bench, Reach::All);
    (0..BLOCK_PAGES).for_each(|page| bench.fill(page, 0));
    split_by_kernel(&bench, 300);
    let all: Vec<u32> = (0..BLOCK_PAGES).collect();
    assert_eq!(written(&mut worker, &bench, Reach::All), all);
    let _ = written(&mut worker, &bench, Reach::All);
    assert!(written(&mut worker, &bench, Reach::All).is_empty());
    bench.space.release().expect("release");
}

#[test]
fn zeros_are_gone_and_reported_by_one_span_if_they_were_discarded_as_well() {
    let Some((bench, mut worker)) = filled() else { return };
    assert!(split(&mut worker, bench.all()));
    let _ = written(&mut worker, &bench, Reach::Split);
    let (start, bytes) = (bench.address(64), 64 * PAGE_BYTES);
    bench.space.discard(start, bytes, libc::MADV_DONTNEED).expect("discard");
    // The kernel maps zeros there that nobody has protected, and some behind those.
    (64..128).for_each(|page| assert!(bench.holds(page, 0)));
    (128..130).for_each(|page| bench.fill(page, 0));
    split_by_kernel(&bench, 300);
    let of = |first, count, presence| PageSpan { first: bench.page(first).0, count, presence };
    let found = spans(&mut worker, &bench, Reach::Split);
    assert_eq!(found, [of(64, 64, Presence::Gone), of(128, 2, Presence::Gone)]);
    assert!(spans(&mut worker, &bench, Reach::Split).is_empty());
    bench.space.release().expect("release");
}

#[test]
fn zeros_that_are_merged_are_not_reported_until_they_are_written() {
    let Some((bench, mut worker)) = filled() else { return };
    worker.split(&blocks_of(bench.all()), &mut Vec::new());
    (0..64).for_each(|page| bench.fill(page, 0));
    let _ = written(&mut worker, &bench, Reach::Split);
    let zeros = Run { page: bench.page(0).0, count: 64, slot: 0, target: RunTarget::Zeros };
    let mut outcomes = Vec::new();
    worker.merge(&bench.segments(), &[zeros], &mut outcomes);
    assert_eq!(outcomes, merged(64));
    assert!(written(&mut worker, &bench, Reach::Split).is_empty());
    bench.fill(5, 6);
    assert_eq!(written(&mut worker, &bench, Reach::Split), [5]);
    let (start, bytes) = (bench.address(64), 64 * PAGE_BYTES);
    bench.space.discard(start, bytes, libc::MADV_DONTNEED).expect("discard");
    assert_eq!(written(&mut worker, &bench, Reach::Split).len(), 64);
    // The handler fills in what lies beside it as well.
    bench.fill(70, 71);
    assert!(written(&mut worker, &bench, Reach::Split).contains(&70));
    assert!(written(&mut worker, &bench, Reach::Split).is_empty(), "once");
    bench.space.release().expect("release");
}
