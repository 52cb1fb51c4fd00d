//! The merge primitive, one transition at a time, looked at through the kernel's eyes.
mod common;

use std::{
    fs::File,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    slice,
    time::{Duration, Instant},
};

use bindery_page::DigestKey;
use bindery_space::{LastingAdvice, Reach, Sought, Worker};
use bindery_sys::{
    huge,
    mapping::{self, Mapping},
    maps, memfd,
};
use bindery_units::{HostAddress, PAGE_BYTES, PageRange, Slot};
use bindery_wire::{
    control::StoreId,
    lane::{DigestKind, LossCause, Lost, PageOutcome, Presence, Run, RunTarget},
};
use common::{Bench, STORE, merged};

/// How the kernel backs a page: (file's page, zero page, frame).
fn backing(address: HostAddress) -> (bool, bool, u64) {
    use bindery_sys::pagemap::{Extent, Pagemap, Query, category};
    let mut extents = [Extent::default()];
    let query = Query {
        require: category::PRESENT,
        report: category::FILE | category::ZERO,
        ..Query::default()
    };
    let pagemap = Pagemap::of_self().expect("pagemap");
    let found = pagemap.scan(address, PAGE_BYTES, query, &mut extents).expect("scan").extents;
    assert_eq!(found, 1, "the page is present");
    let mut entry = [0; 8];
    let file = std::fs::File::open("/proc/self/pagemap").expect("pagemap");
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut entry, address.0 as u64 / 4096 * 8)
        .expect("entry");
    let frame = u64::from_ne_bytes(entry) & ((1 << 55) - 1);
    let categories = extents[0].categories;
    (categories & category::FILE != 0, categories & category::ZERO != 0, frame)
}

#[test]
fn merged_pages_share_a_frame_and_part_when_written() {
    let Some(bench) = Bench::new(256, 64) else { return };
    let mut worker = bench.space.worker().expect("worker");
    for page in 0..128 {
        bench.fill(page, u64::from(page % 64) + 1);
    }
    for slot in 0..64 {
        bench.fill_slot(Slot(slot), u64::from(slot) + 1);
    }
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64));
    assert_eq!(bench.merge(&mut worker, 64, 64, Slot(0)), merged(64));
    let (file, _, frame) = backing(bench.address(5));
    assert!(file && frame == backing(bench.address(69)).2, "one frame for both");
    assert!((0..128).all(|page| bench.holds(page, u64::from(page % 64) + 1)));

    bench.fill(5, 77);
    assert!(bench.holds(5, 77) && bench.holds(69, 6) && bench.holds(4, 5) && bench.holds(6, 7));
    assert!(!backing(bench.address(5)).0, "a written page is anonymous again");
    assert!(backing(bench.address(69)).0);
    let lost = await_loss(&mut worker);
    let pages: Vec<_> = lost.iter().map(|l| (l.page, l.slot, l.store, l.cause)).collect();
    assert_eq!(pages, [(bench.page(5).0, 5, 1, LossCause::Write)]);
    // Counted last.
    let deadline = Instant::now() + Duration::from_secs(20);
    while bench.space.breaks() == 0 {
        assert!(Instant::now() < deadline, "no break is counted");
    }

    // It can be merged again once it holds the slot's bytes again, and not before.
    assert_eq!(bench.merge(&mut worker, 5, 1, Slot(5)), [PageOutcome::Different]);
    bench.fill(5, 6);
    assert_eq!(bench.merge(&mut worker, 5, 1, Slot(5)), merged(1));
    assert_eq!(bench.merge(&mut worker, 5, 1, Slot(5)), [PageOutcome::Already]);
}

/// A page that was moved and moved back is told by the next scan, whether it was written or not: who asked to
/// merge it looks at it again because of that.
#[test]
fn a_page_that_proves_different_counts_as_written() {
    let Some(bench) = Bench::new(64, 64) else { return };
    let mut worker = bench.space.worker().expect("worker");
    (0..8).for_each(|page| bench.fill(page, u64::from(page) + 1));
    (0..8).for_each(|slot| bench.fill_slot(Slot(slot), u64::from(slot) + 1));
    bench.fill(3, 99);
    let range = PageRange::new(bench.page(0), 64);
    let mut scan = || {
        let mut written = Vec::new();
        assert_eq!(worker.scan(range, &mut written, 64).expect("a scan"), None);
        written.iter().map(|span| (span.first, span.count)).collect::<Vec<_>>()
    };
    // Zeros were filled in behind them.
    assert_eq!(scan(), [(bench.page(0).0, 8), (bench.page(8).0, 56)]);
    assert_eq!(scan(), []);
    let mut merger = bench.space.worker().expect("worker");
    let outcomes = bench.merge(&mut merger, 0, 8, Slot(0));
    let expected = |page| if page == 3 { PageOutcome::Different } else { PageOutcome::Merged };
    assert_eq!(outcomes, (0..8).map(expected).collect::<Vec<PageOutcome>>());
    assert_eq!(scan(), [(bench.page(3).0, 1)]);
}

/// Losses, once there are any: a writer goes on before its page is noted as lost.
fn await_loss(worker: &mut Worker) -> Vec<Lost> {
    let mut lost = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while lost.is_empty() && Instant::now() < deadline {
        assert!(!worker.lost(&mut lost, 1000));
    }
    lost
}

/// Runs whose pages follow one another are merged together, each with its own slots, and one that
/// makes no sense or holds something else takes nothing from the others.
#[test]
fn runs_that_follow_one_another_are_merged_each_with_its_slots() {
    let Some(bench) = Bench::new(200, 256) else { return };
    let mut worker = bench.space.worker().expect("worker");
    let run =
        |page: u32, count, slot, target| Run { page: bench.page(page).0, count, slot, target };
    let mut runs: Vec<Run> =
        (0..70).map(|page| run(page, 1, 200 - page, RunTarget::Slots)).collect();
    runs.push(run(70, 3, 255, RunTarget::Slots));
    runs.push(run(73, 4, 0, RunTarget::Zeros));
    runs.push(run(77, 60, 50, RunTarget::Slots));
    runs.push(run(140, 2, 30, RunTarget::Slots));
    for run in runs.iter().filter(|run| run.target == RunTarget::Slots && run.slot < 255) {
        for at in 0..run.count {
            let page = run.page - bench.page(0).0 + at;
            bench.fill(page, u64::from(run.slot + at + 1));
            bench.fill_slot(Slot(run.slot + at), u64::from(run.slot + at + 1));
        }
    }
    bench.fill(20, 999);
    bench.fill(75, 999);
    let mut outcomes = Vec::new();
    worker.merge(&bench.segments(), &runs, &mut outcomes);
    let mut at = 0;
    for run in &runs {
        for page in run.page - bench.page(0).0..run.page - bench.page(0).0 + run.count {
            let expected = match page {
                20 | 75 => PageOutcome::Different,
                70..73 => PageOutcome::Never,
                _ => PageOutcome::Merged,
            };
            assert_eq!(outcomes[at], expected, "page {page}");
            at += 1;
        }
    }
    assert_eq!(at, outcomes.len());
    assert!(
        (0..70).all(|page| bench.holds(page, if page == 20 { 999 } else { 201 - u64::from(page) }))
    );
    assert!((77..137).all(|page| bench.holds(page, u64::from(page) - 26)));
    // Each page is its own: a write changes one.
    bench.fill(10, 7);
    assert!(bench.holds(9, 192) && bench.holds(10, 7) && bench.holds(11, 190));
    outcomes.clear();
    assert_eq!(await_loss(&mut worker).len(), 1);
    worker.merge(&bench.segments(), &runs[..20], &mut outcomes);
    let again = |page| if page == 10 { PageOutcome::Different } else { PageOutcome::Already };
    assert_eq!(outcomes, (0..20).map(again).collect::<Vec<PageOutcome>>());
}

#[test]
fn zero_pages_become_the_kernels_in_place() {
    let Some(bench) = Bench::new(64, 1) else { return };
    let mut worker = bench.space.worker().expect("worker");
    (0..64).for_each(|page| bench.fill(page, 0));
    bench.fill(7, 1);
    let mut outcomes = Vec::new();
    let run = Run { page: bench.page(0).0, count: 64, slot: 0, target: RunTarget::Zeros };
    worker.merge(&bench.segments(), &[run], &mut outcomes);
    assert!((0..64).all(|page| outcomes[page]
        == if page == 7 { PageOutcome::Different } else { PageOutcome::Merged }));
    assert!(backing(bench.address(6)).1 && !backing(bench.address(7)).1);
    assert!(bench.holds(6, 0) && bench.holds(7, 1));
    bench.fill(6, 3);
    assert!(bench.holds(6, 3) && bench.holds(8, 0));
}

/// A VMM looks what is managed, and then it is given back: the discard comes after that.
#[test]
fn what_is_not_managed_any_more_is_discarded_as_well() {
    let Some(bench) = Bench::full_of(64, 7) else { return };
    let (address, bytes) = (bench.address(0), 64 * PAGE_BYTES);
    bench.space.release_range(address.plus_pages(16), 8 * PAGE_BYTES).expect("release");
    bench.space.discard(address, bytes, libc::MADV_DONTNEED).expect("discard");
    assert!((0..64).all(|page| bench.holds(page, 0)));
}

#[test]
fn a_discarded_page_reads_zero_even_where_it_was_merged() {
    let Some(bench) = Bench::full_of(64, 9) else { return };
    let mut worker = bench.space.worker().expect("worker");
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64));
    bench.space.discard(bench.address(10), 20 * PAGE_BYTES, libc::MADV_DONTNEED).expect("discard");
    assert!((10..30).all(|page| bench.holds(page, 0)));
    assert!(bench.holds(9, 9) && bench.holds(30, 9));
    let mut lost = Vec::new();
    worker.lost(&mut lost, 1000);
    assert_eq!(lost.len(), 20);
    assert!(lost.iter().all(|lost| lost.cause == LossCause::Discard));
    bench.fill(12, 4);
    assert!(bench.holds(12, 4));
}

#[test]
fn a_scan_finds_what_was_written_and_nothing_else() {
    let Some(bench) = Bench::new(2048, 1) else { return };
    let mut worker = bench.space.worker().expect("worker");
    (0..1024).for_each(|page| bench.fill(page, 1));
    let mut written = Vec::new();
    assert_eq!(worker.scan(bench.all(), &mut written, 4096).expect("scan"), None);
    assert_eq!(written.iter().map(|span| span.count).sum::<u32>(), 1024);
    written.clear();
    worker.scan(bench.all(), &mut written, 4096).expect("scan");
    assert_eq!(written, []);
    // Every other page: more spans than one call to the kernel may return.
    (0..1024).step_by(2).chain([2000]).for_each(|page| bench.fill(page, 2));
    let mut resume = Some(bench.page(0));
    while let Some(first) = resume {
        let range = bindery_units::PageRange::new(first, bench.all().end().0 - first.0);
        let room = written.len() + 100;
        resume = worker.scan(range, &mut written, room).expect("scan");
    }
    // Zeros were filled in behind the last one.
    assert_eq!(written.pop().map(|span| (span.count, span.presence)), Some((47, Presence::Gone)));
    let pages: Vec<_> = written.iter().flat_map(|s| s.first..s.first + s.count).collect();
    let expected: Vec<_> =
        (0..1024).step_by(2).chain([2000]).map(|page| bench.page(page).0).collect();
    assert_eq!(pages, expected);
}

#[test]
fn a_survey_finds_what_is_there_written_or_not_but_neither_zero_nor_merged() {
    let Some(bench) = Bench::new(64, 64) else { return };
    let mut worker = bench.space.worker().expect("worker");
    (0..30).for_each(|page| bench.fill(page, 1 + u64::from(page)));
    (0..5).for_each(|page| bench.fill(page, 0));
    (10..15).for_each(|page| bench.fill_slot(Slot(page), 1 + u64::from(page)));
    let mut outcomes = Vec::new();
    let zeros = Run { page: bench.page(0).0, count: 5, slot: 0, target: RunTarget::Zeros };
    worker.merge(&bench.segments(), &[zeros], &mut outcomes);
    assert_eq!(bench.merge(&mut worker, 10, 5, Slot(10)), merged(5));
    let mut found = Vec::new();
    // Everything has been told; then one page is written.
    worker.scan(bench.all(), &mut found, 100).expect("scan");
    bench.fill(20, 77);
    found.clear();
    worker.scan_for(Sought::Present, Reach::Split, bench.all(), &mut found, 100).expect("survey");
    let spans: Vec<_> = found.iter().map(|span| (span.first, span.count)).collect();
    assert_eq!(spans, [(bench.page(5).0, 5), (bench.page(15).0, 15)]);
    // A survey protects what was written, as a scan does.
    found.clear();
    worker.scan(bench.all(), &mut found, 100).expect("scan");
    assert_eq!(found, []);
    bench.fill(21, 78);
    worker.scan(bench.all(), &mut found, 100).expect("scan");
    assert_eq!(found.iter().map(|span| span.first).collect::<Vec<_>>(), [bench.page(21).0]);
}

#[test]
fn digests_tell_zero_from_content_and_equal_from_different() {
    let Some(bench) = Bench::new(16, 1) else { return };
    let mut worker = bench.space.worker().expect("worker");
    let key = DigestKey::from_secret(&[7; 32]);
    bench.fill(1, 5);
    bench.fill(2, 5);
    bench.fill(3, 6);
    let pages: Vec<u32> = (0..4).map(|page| bench.page(page).0).chain([u32::MAX]).collect();
    let mut digests = Vec::new();
    worker.digest(&pages, &key, &mut digests);
    let kinds: Vec<_> = digests.iter().map(|digest| digest.kind).collect();
    let content = DigestKind::Content;
    assert_eq!(kinds, [DigestKind::Zeros, content, content, content, DigestKind::Nothing]);
    assert!(digests[1] == digests[2] && digests[2] != digests[3]);
}

#[test]
fn unmerging_and_releasing_leave_ordinary_memory() {
    let Some(bench) = Bench::new(300, 300) else { return };
    let mut worker = bench.space.worker().expect("worker");
    for page in 0..300 {
        bench.fill(page, u64::from(page) + 1);
        bench.fill_slot(Slot(page), u64::from(page) + 1);
    }
    assert_eq!(bench.merge(&mut worker, 0, 300, Slot(0)), merged(300));
    let some = worker.unmerge(bench.all(), 100);
    assert!(some.pages >= 100 && some.pages < 300 && some.resume_at.is_some());
    bench.space.release().expect("release");
    assert!(bench.space.regions().is_empty());
    assert!((0..300).all(|page| bench.holds(page, u64::from(page) + 1)));
    assert!(!backing(bench.address(299)).0);
    // Managed anew, it merges as before.
    let again = common::manage(&bench.space, bench.memory.address(), bench.memory.bytes());
    assert_ne!(again.pages.first, bench.region.pages.first);
}

#[test]
fn a_page_moves_to_another_slot_with_the_same_bytes_only() {
    let Some(bench) = Bench::new(64, 128) else { return };
    let mut worker = bench.space.worker().expect("worker");
    for page in 0..64 {
        bench.fill(page, 3);
        bench.fill_slot(Slot(page), 3);
        bench.fill_slot(Slot(64 + page), if page == 20 { 4 } else { 3 });
    }
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64));
    let outcomes = bench.merge(&mut worker, 0, 64, Slot(64));
    assert!(
        (0..64)
            .all(|p| outcomes[p]
                == if p == 20 { PageOutcome::Different } else { PageOutcome::Merged })
    );
    bindery_sys::memfd::punch(&bench.store, 0, 20 * PAGE_BYTES as u64).expect("punch");
    assert!((0..64).all(|page| bench.holds(page, 3)));
    let mut spans = Vec::new();
    assert_eq!(worker.report(bench.all(), &mut spans, 100), None);
    let slots: Vec<_> = spans.iter().map(|s| (s.slot, s.count)).collect();
    assert_eq!(slots, [(64, 20), (20, 1), (85, 43)]);
}

#[test]
fn locked_and_pinned_pages_are_left_alone() {
    let Some(bench) = Bench::new(8, 8) else { return };
    let mut worker = bench.space.worker().expect("worker");
    for page in 0..8 {
        bench.fill(page, 2);
        bench.fill_slot(Slot(page), 2);
    }
    // SAFETY: locking changes no content.
    assert_eq!(unsafe { libc::mlock(bench.words(2).cast(), PAGE_BYTES) }, 0);
    let outcomes = bench.merge(&mut worker, 0, 8, Slot(0));
    assert_eq!(outcomes[2], PageOutcome::Busy);
    assert_eq!(outcomes.iter().filter(|&&o| o == PageOutcome::Merged).count(), 7);
    assert!((0..8).all(|page| bench.holds(page, 2)));
}

#[test]
fn memory_that_is_unmapped_is_forgotten() {
    let Some(bench) = Bench::full_of(64, 2) else { return };
    let mut worker = bench.space.worker().expect("worker");
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64));
    let gone = bench.space.forget(bench.address(16), 16 * PAGE_BYTES);
    assert_eq!(gone.iter().map(|range| range.count).sum::<u32>(), 16);
    // SAFETY: the memory is this test's; nothing of it is used again.
    unsafe { mapping::replace_with_anonymous(bench.address(16), 16 * PAGE_BYTES) }
        .expect("replace");
    assert!(bench.holds(16, 0) && bench.holds(15, 2) && bench.holds(32, 2));
    assert_eq!(bench.merge(&mut worker, 20, 1, Slot(20)), [PageOutcome::Never]);
    bench.fill(40, 1);
    assert!(bench.holds(40, 1));
}

#[test]
fn shared_memory_is_left_as_it_is() {
    use std::os::{fd::AsFd, unix::fs::FileExt};
    let Some(space) = common::start() else { return };
    let bytes = 128 * PAGE_BYTES;
    let memfd = bindery_sys::memfd::create("ram", bytes as u64).expect("memfd");
    let file = tempfile::tempfile().expect("file");
    file.set_len(bytes as u64).expect("file");
    for file in [memfd, file] {
        let memory = mapping::Mapping::shared(file.as_fd(), bytes, true).expect("map");
        let refused = space.manage(memory.address(), bytes).expect_err("shared");
        assert!(refused.to_string().contains("is shared memory ("), "{refused}");
        file.write_all_at(&[8], 0).expect("write");
        // SAFETY: the page is in the mapping.
        assert_eq!(unsafe { memory.as_ptr().read_volatile() }, 8, "the file is mapped");
    }
    assert!(space.regions().is_empty());
}

/// Mappings that begin in a range. Not all of the process's: other tests run beside this one.
fn mappings_between(first: HostAddress, last: HostAddress) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let starts = maps.lines().filter_map(|line| {
        usize::from_str_radix(line.split_once('-')?.0, 16).ok().map(HostAddress)
    });
    starts.filter(|start| (first..=last).contains(start)).count()
}

#[test]
fn mending_joins_what_breaks_left_apart() {
    let Some(bench) = Bench::new(512, 512) else { return };
    let mut worker = bench.space.worker().expect("worker");
    for page in 0..512 {
        bench.fill(page, u64::from(page) + 1);
        bench.fill_slot(Slot(page), u64::from(page) + 1);
    }
    assert_eq!(bench.merge(&mut worker, 0, 512, Slot(0)), merged(512));
    // So that each comes back alone, and not in an order that the kernel can join by itself.
    let scattered = (0..400).step_by(2).chain((1..400).step_by(2));
    scattered.for_each(|page| bench.fill(page, 7000 + u64::from(page)));
    let torn = mappings_between(bench.address(0), bench.address(511));
    assert!(worker.mend(bench.all()) > 0);
    let joined = mappings_between(bench.address(0), bench.address(511));
    assert!(joined + 300 < torn, "{torn} mappings, and then {joined}");
    assert!((0..400).all(|page| bench.holds(page, 7000 + u64::from(page))));
    assert!((400..512).all(|page| bench.holds(page, u64::from(page) + 1)));
    assert!(backing(bench.address(450)).0, "what is merged stays merged");
    worker.mend(bench.all());
    // But where one chunk of spare pages ended and the next began.
    let again = mappings_between(bench.address(0), bench.address(511));
    assert!(again < joined + 5, "{joined} mappings, and then {again}");
    bench.fill(450, 9);
    assert!(bench.holds(450, 9));
}

#[test]
fn an_old_store_is_forgotten_with_its_last_page() {
    let Some(bench) = Bench::new(64, 64) else { return };
    let mut worker = bench.space.worker().expect("worker");
    for page in 0..2 {
        bench.fill(page, 7);
        bench.fill_slot(Slot(page), 7);
    }
    assert_eq!(bench.merge(&mut worker, 0, 2, Slot(0)), merged(2));
    bench.space.attach_store(StoreId(2), 1, 1).expect("attach");

    let mut known = |written: u32| {
        bench.fill(written, 8);
        assert_eq!(await_loss(&mut worker).len(), 1);
        // Stores are forgotten when losses are asked for.
        assert!(!worker.lost(&mut Vec::new(), 100));
        (is_mapped(&bench.store), bench.space.stores_in_use())
    };
    assert_eq!(known(0), (true, vec![STORE]), "a page is still merged with the old one");
    assert_eq!(known(1), (false, vec![]), "nobody knows the old one");
}

/// Whether this process maps a file. Other tests of it have stores of the same name.
fn is_mapped(file: &File) -> bool {
    let inode = format!(" {} ", file.metadata().expect("memfd").ino());
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().any(|line| line.contains(&inode))
}

#[test]
fn runs_cross_segments_which_go_one_by_one() {
    const SLOTS: u32 = 16;
    let Some(bench) = Bench::new(64, 64) else { return };
    let (space, id) = (&bench.space, StoreId(2));
    space.attach_store(id, 3 * SLOTS, SLOTS).expect("attach");
    let files: Vec<File> = (0..3)
        .map(|_| memfd::create("segment", u64::from(SLOTS) * PAGE_BYTES as u64).expect("memfd"))
        .collect();
    for slot in 0..3 * SLOTS {
        bench.fill(slot, u64::from(slot) + 1);
        let bytes = (u64::from(slot) + 1).to_ne_bytes().repeat(PAGE_BYTES / 8);
        let file = &files[(slot / SLOTS) as usize];
        file.write_all_at(&bytes, Slot(slot % SLOTS).offset_bytes()).expect("segment");
    }
    let pin = |numbers: std::ops::Range<u32>| {
        let reopened = |number: u32| {
            let file = memfd::reopen_read_only(&files[number as usize]).expect("reopen");
            (number, file.into())
        };
        space.pin(id, numbers.map(reopened)).expect("pin")
    };
    let mut worker = space.worker().expect("worker");
    let run = |first, count| Run {
        page: bench.page(first).0,
        count,
        slot: first,
        target: RunTarget::Slots,
    };
    let mut outcomes = Vec::new();
    worker.merge(&pin(0..1), &[run(10, 10)], &mut outcomes);
    assert_eq!(outcomes, [PageOutcome::Never; 10], "half of it is in a segment that did not come");
    outcomes.clear();
    worker.merge(&pin(0..3), &[run(0, 48)], &mut outcomes);
    assert_eq!(outcomes, merged(48));
    assert_eq!(space.stores_in_use(), [id]);
    // One write brings neighbours back, across segments.
    bench.fill(16, 99);
    let holds = |page: u32| bench.holds(page, if page == 16 { 99 } else { u64::from(page) + 1 });
    assert!((0..48).all(holds));
    worker.unmerge(PageRange::new(bench.page(0), 32), 100);
    let mut lost = Vec::new();
    for _ in 0..3 {
        while worker.lost(&mut lost, 100) {}
    }
    let mapped = [0, 1, 2].map(|number: usize| is_mapped(&files[number]));
    assert_eq!(mapped, [false, false, true], "{} were lost", lost.len());
    assert!((0..48).all(holds));
}

/// What pages of merged runs are anonymous again after one write each to `written`, in this order.
fn brought_back(runs: &[Range<u32>], written: &[u32]) -> Option<Vec<u32>> {
    let bench = Bench::new(64, 64)?;
    let mut worker = bench.space.worker().expect("worker");
    (0..64).for_each(|page| bench.fill(page, u64::from(page) + 1));
    (0..64).for_each(|slot| bench.fill_slot(Slot(slot), u64::from(slot) + 1));
    for run in runs.iter().cloned() {
        let outcomes = bench.merge(&mut worker, run.start, run.len() as u32, Slot(run.start));
        assert_eq!(outcomes, merged(run.len()));
    }
    for &page in written {
        // SAFETY: the page is in the mapping, and its first word is this.
        unsafe { bench.words(page).write_volatile(u64::from(page) + 1) };
    }
    assert!(
        (0..64).all(|page| bench.holds(page, u64::from(page) + 1)),
        "content came back changed"
    );
    let pages = runs.iter().cloned().flatten();
    let back = pages.filter(|&page| !backing(bench.address(page)).0).collect();
    // Whoever brought the last ones back is done with them before the memory goes.
    bench.space.release().expect("release");
    Some(back)
}

#[test]
fn writes_that_go_up_or_down_bring_back_what_lies_ahead() {
    let run = 0..64;
    let whole = slice::from_ref(&run);
    let Some(up) = brought_back(whole, &[20, 21, 23]) else { return };
    assert_eq!(up, (20..27).collect::<Vec<_>>());
    let down = brought_back(whole, &[40, 39, 37]).expect("as above");
    assert_eq!(down, (34..41).collect::<Vec<_>>());
    let first = brought_back(whole, &[4, 3, 1]).expect("as above");
    assert_eq!(first, [0, 1, 2, 3, 4], "nothing lies ahead of the first page");
    let apart = brought_back(whole, &[10, 12, 50, 8]).expect("as above");
    assert_eq!(apart, [8, 10, 12, 50]);
}

#[test]
fn writes_that_go_through_pages_of_the_guests_own_bring_back_what_lies_ahead_of_those() {
    let runs = [0..16, 20..64];
    let Some(up) = brought_back(&runs, &[13, 14, 20]) else { return };
    assert_eq!(up, (13..16).chain(20..24).collect::<Vec<_>>());
    let down = brought_back(&runs, &[22, 21, 15]).expect("as above");
    assert_eq!(down, (12..16).chain(20..23).collect::<Vec<_>>());
    let elsewhere = brought_back(&runs, &[13, 14, 22]).expect("as above");
    assert_eq!(elsewhere, [13, 14, 15, 22], "two merged pages were not written");
}

/// Two parts of memory, of which one is not to be in a child of fork or in a core dump: what is merged
/// and what comes back is as its part is, whichever came back before.
#[test]
fn what_comes_back_is_in_children_of_fork_and_in_dumps_where_its_memory_is() {
    let Some(bench) = Bench::new(16, 64) else { return };
    let other = Mapping::anonymous(16 * PAGE_BYTES).expect("memory");
    let region = common::manage(&bench.space, other.address(), other.bytes());
    // All but the first four pages.
    let (start, bytes) = (other.address().plus_pages(4), other.bytes() - 4 * PAGE_BYTES);
    for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
        let lasting = LastingAdvice::of(advice).expect("it lasts");
        bench.space.note_advice(start, bytes, lasting);
        // SAFETY: the memory is ours.
        unsafe { mapping::advise(start, bytes, advice) }.expect("advice");
    }
    let dont = maps::Advised { dont_fork: true, dont_dump: true, ..maps::Advised::default() };
    let wanted = |address| {
        let keeps = (start.0..start.0 + bytes).contains(&address);
        if keeps { dont } else { maps::Advised::default() }
    };
    let advised = |address| {
        let advised = maps::AdvisedMappings::of_self().expect("smaps").at(address);
        // What comes back stays small.
        maps::Advised { huge: huge::Advice::None, ..advised }
    };
    let mut worker = bench.space.worker().expect("worker");
    for page in 0..16 {
        bench.fill(page, u64::from(page) + 1);
        bench.fill_slot(Slot(page), u64::from(page) + 1);
        let other = other.address().plus_pages(page);
        // SAFETY: both pages are mapped, and nobody else's.
        unsafe { mapping::copy_page(bench.address(page).0 as *const u8, other.0 as *mut u8) };
    }
    assert_eq!(bench.merge(&mut worker, 0, 16, Slot(0)), merged(16));
    let run = Run { page: region.pages.first.0, count: 16, slot: 0, target: RunTarget::Slots };
    let mut outcomes = Vec::new();
    worker.merge(&bench.segments(), &[run], &mut outcomes);
    assert_eq!(outcomes, merged(16));
    for page in [1, 3, 4, 7, 10] {
        for start in [other.address(), bench.address(0)] {
            let address = start.plus_pages(page);
            assert_eq!(advised(address), wanted(address.0), "page {page} is merged");
            // SAFETY: the page is mapped; its first word is this.
            unsafe { (address.0 as *mut u64).write_volatile(u64::from(page) + 1) };
            assert!(!backing(address).0, "a written page is anonymous again");
            assert_eq!(advised(address), wanted(address.0), "page {page} is back");
        }
    }
    bench.space.release().expect("release");
}
