//! Threads that write, add, read, discard, do direct I/O and reach in from outside, into memory that
//! is merged, unmerged, moved between slots, swapped out, and made of huge pages and split again at full speed. Every page carries a sequence number
//! in every word, so a lost or torn write shows at the next look.
//!
//! Merging here does not wait for pages to be equal: a merger copies what a page holds at that
//! instant into a fresh slot and asks for the merge. So any page can be merged at any moment, also
//! in the middle of a write. Slots that no page maps any more are punched at once, so that a page
//! that still needs one reads zeros and is caught.
//!
//! `BINDERY_TORTURE_OPERATIONS=100000000 cargo test --release -p bindery-space --test torture` is the
//! long form: so many verified operations, spread over every combination of settings.

mod common;

use std::{
    fs::{File, OpenOptions},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bindery_space::{Reach, Sought};
use bindery_sys::mapping::{self, HUGE_PAGE_BYTES};
use bindery_sys::{huge, memfd};
use bindery_testkit::machine::{HugePagesGuard, SwapGuard};
use bindery_units::{PAGE_BYTES, PageRange, Slot};
use bindery_wire::lane::{BlockOutcome, PageOutcome, Run, RunTarget};
use common::Bench;

const PAGES: u32 = 2048;
/// The last pages hold counters that are added to without any lock.
const COUNTER_PAGES: u32 = 64;
const LOCKED_PAGES: u32 = PAGES - COUNTER_PAGES;
const SLOTS: u32 = 64 * 1024;
const WORDS: usize = PAGE_BYTES / 8;
/// `MADV_COLLAPSE` (Linux 6.1).
const MADV_COLLAPSE: i32 = 25;
/// More than all pages and slots.
const SWAP_MEBIBYTES: u64 = 320;
const NO_SLOT: u32 = u32::MAX;
/// Mergers work on blocks of this many pages, one merger a block at a time.
const BLOCK_PAGES: u32 = 64;

#[derive(Clone, Copy, Debug)]
struct TortureSettings {
    mergers: u32,
    writers: u32,
    run_pages_max: u32,
    unmerge: bool,
    compact: bool,
    direct: bool,
    swap: bool,
    /// Memory is of huge pages, and made so again all the time: by the space, and by the kernel.
    huge: bool,
}

/// xorshift64*: see Vigna, "An experimental exploration of Marsaglia's xorshift generators".
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, limit: u32) -> u32 {
        (self.next() % u64::from(limit)) as u32
    }
}

struct Torture {
    bench: Bench,
    settings: TortureSettings,
    /// What each page holds; its lock is the page's.
    expected: Vec<Mutex<u64>>,
    /// Which slot the daemon believes that each page maps.
    slots: Vec<AtomicU32>,
    free: Mutex<Vec<u32>>,
    blocks: Vec<Mutex<()>>,
    added: AtomicU64,
    operations: AtomicU64,
    merged: AtomicU64,
    /// Blocks that the space has made whole.
    collapsed: AtomicU64,
    stop: AtomicBool,
    file: Option<File>,
}

/// The word that a page of sequence number `sequence` holds everywhere.
const fn pattern(sequence: u64) -> u64 {
    sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Torture {
    fn page_bytes(&self, page: u32) -> &'static mut [u8] {
        // SAFETY: the page is in the mapping, which outlives the threads; the page's lock is held.
        unsafe { std::slice::from_raw_parts_mut(self.bench.words(page).cast(), PAGE_BYTES) }
    }

    fn verify(&self, page: u32, sequence: u64) {
        let word = pattern(sequence);
        for at in 0..WORDS {
            // SAFETY: the page is in the mapping.
            let found = unsafe { self.bench.words(page).add(at).read_volatile() };
            assert_eq!(found, word, "page {page} word {at} of sequence {sequence}: lost or torn");
        }
    }

    fn write(&self, page: u32, sequence: u64) {
        self.bench.fill(page, pattern(sequence));
    }

    /// One verified operation on one page.
    fn operate(&self, random: &mut Random, buffer: &mut Direct) {
        let page = random.below(LOCKED_PAGES);
        let mut expected = self.expected[page as usize].lock().expect("no writer failed");
        self.verify(page, *expected);
        let next = *expected + 1 + u64::from(random.below(1000));
        match random.below(16) {
            0..8 => {}
            8..11 => {
                self.write(page, next);
                *expected = next;
            }
            11 => {
                self.bench
                    .space
                    .discard(self.bench.address(page), PAGE_BYTES, libc::MADV_DONTNEED)
                    .expect("discard");
                *expected = 0;
            }
            12 => {
                self.write_from_outside(page, next);
                *expected = next;
            }
            13 => {
                self.read_pipe(page, next);
                *expected = next;
            }
            _ if self.settings.direct => self.direct(page, next, &mut expected, buffer),
            _ => {}
        }
    }

    /// The kernel writes the page on behalf of another process.
    fn write_from_outside(&self, page: u32, sequence: u64) {
        let words = [pattern(sequence); WORDS];
        let local = libc::iovec { iov_base: words.as_ptr() as *mut _, iov_len: PAGE_BYTES };
        let remote = libc::iovec { iov_base: self.bench.words(page).cast(), iov_len: PAGE_BYTES };
        // SAFETY: both ranges are mapped; the page's lock is held.
        let done = unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        assert_eq!(done, PAGE_BYTES as isize, "{}", std::io::Error::last_os_error());
    }

    /// read(2) straight into the page.
    fn read_pipe(&self, page: u32, sequence: u64) {
        use std::io::{Read, Write};
        let (mut reader, mut writer) = std::io::pipe().expect("pipe");
        let words = pattern(sequence).to_ne_bytes().repeat(WORDS);
        writer.write_all(&words).expect("a pipe holds a page");
        reader.read_exact(self.page_bytes(page)).expect("read");
    }

    /// Direct I/O: the device writes the page, or reads it, while it may be merged.
    fn direct(&self, page: u32, next: u64, expected: &mut u64, buffer: &mut Direct) {
        let Some(file) = &self.file else { return };
        let offset = u64::from(page) * PAGE_BYTES as u64;
        if next.is_multiple_of(2) {
            file.write_all_at(self.page_bytes(page), offset).expect("direct write");
            file.read_exact_at(&mut buffer.0, offset).expect("direct read");
            let word = pattern(*expected).to_ne_bytes();
            assert!(buffer.0.chunks_exact(8).all(|found| found == word), "page {page} on disk");
        } else {
            buffer
                .0
                .chunks_exact_mut(8)
                .for_each(|w| w.copy_from_slice(&pattern(next).to_ne_bytes()));
            file.write_all_at(&buffer.0, offset).expect("direct write");
            file.read_exact_at(self.page_bytes(page), offset).expect("direct read");
            *expected = next;
        }
    }

    fn writer(&self, seed: u64) {
        let mut random = Random(seed);
        let mut buffer = Box::new(Direct([0; PAGE_BYTES]));
        while !self.stop.load(Ordering::Relaxed) {
            self.operate(&mut random, &mut buffer);
            for _ in 0..64 {
                let page = LOCKED_PAGES + random.below(COUNTER_PAGES);
                let word = random.below(WORDS as u32) as usize;
                // SAFETY: the word is in the mapping, aligned, and only ever used atomically.
                let counter = unsafe { &*self.bench.words(page).add(word).cast::<AtomicU64>() };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            self.added.fetch_add(64, Ordering::Relaxed);
            // 64 additions, each verified by the sum, and the page's words.
            self.operations.fetch_add(65, Ordering::Relaxed);
        }
    }

    fn merger(&self, seed: u64) {
        let mut random = Random(seed);
        let mut worker = self.bench.space.worker().expect("worker");
        let mut lost = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let block = random.below(PAGES / BLOCK_PAGES);
            let _block = self.blocks[block as usize].lock().expect("no merger failed");
            let count = 1 + random.below(self.settings.run_pages_max);
            let first =
                block * BLOCK_PAGES + random.below(BLOCK_PAGES - count.min(BLOCK_PAGES - 1));
            let count = count.min((block + 1) * BLOCK_PAGES - first);
            match random.below(16) {
                0 if self.settings.unmerge => {
                    let range = PageRange::new(self.bench.page(first), count);
                    worker.unmerge(range, u32::MAX);
                }
                1 => self.merge_zero(&mut worker, first, count),
                _ => self.merge(&mut worker, first, count),
            }
            worker.lost(&mut lost, 4096);
            for lost in lost.drain(..) {
                let page = lost.page - self.bench.page(0).0;
                let believed = &self.slots[page as usize];
                if believed
                    .compare_exchange(lost.slot, NO_SLOT, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    self.release(&[lost.slot]);
                }
            }
        }
    }

    /// Makes blocks whole and splits them, samples and reads them, and has the kernel make huge pages.
    fn collapser(&self, seed: u64) {
        let mut random = Random(seed);
        let mut worker = self.bench.space.worker().expect("worker");
        let blocks = common::blocks_of(self.bench.all());
        let (mut outcomes, mut samples) = (Vec::new(), Vec::new());
        while !self.stop.load(Ordering::Relaxed) {
            let block = &blocks[random.below(blocks.len() as u32) as usize..][..1];
            let start = self.bench.address(block[0] - self.bench.page(0).0);
            outcomes.clear();
            match random.below(8) {
                0..3 => worker.collapse(block, &mut outcomes),
                3 => worker.split(block, &mut outcomes),
                4 => worker.sample(block, &mut samples),
                5 => {
                    let (mut words, page) = ([0_u64; WORDS], block[0] + random.below(512));
                    // SAFETY: a page of our own.
                    unsafe { worker.copy(&[page], words.as_mut_ptr().cast(), |_| ()) };
                }
                // SAFETY: a huge page has the content of the pages that it is made of.
                6 => drop(unsafe { mapping::advise(start, HUGE_PAGE_BYTES, MADV_COLLAPSE) }),
                _ => {
                    let reach = if random.below(2) == 0 { Reach::All } else { Reach::Split };
                    let (all, mut spans) = (self.bench.all(), Vec::new());
                    // Without a mapping to be had nothing is tracked.
                    let _ = worker.scan_for(Sought::Written, reach, all, &mut spans, 4096);
                }
            }
            let whole = |outcome: &&BlockOutcome| {
                matches!(outcome, BlockOutcome::Whole | BlockOutcome::Huge)
            };
            let count = outcomes.iter().filter(whole).count() as u64;
            self.collapsed.fetch_add(count, Ordering::Relaxed);
            thread::sleep(Duration::from_micros(u64::from(random.below(2000))));
        }
    }

    /// Has the kernel take pages away, the guest's own as well as the store's.
    fn reclaimer(&self, seed: u64) {
        let mut random = Random(seed);
        while !self.stop.load(Ordering::Relaxed) {
            let (first, count) = (random.below(PAGES - BLOCK_PAGES), 1 + random.below(BLOCK_PAGES));
            let bytes = count as usize * PAGE_BYTES;
            // Parts that cannot go stay; a range of several mappings may end early.
            // SAFETY: paging out changes no content.
            let _ =
                unsafe { mapping::advise(self.bench.address(first), bytes, libc::MADV_PAGEOUT) };
        }
    }

    fn merge_zero(&self, worker: &mut bindery_space::Worker, first: u32, count: u32) {
        let mut outcomes = Vec::new();
        let run = Run { page: self.bench.page(first).0, count, slot: 0, target: RunTarget::Zeros };
        worker.merge(&self.bench.segments(), &[run], &mut outcomes);
    }

    fn merge(&self, worker: &mut bindery_space::Worker, first: u32, count: u32) {
        let mapped = |page: u32| self.slots[page as usize].load(Ordering::Acquire) != NO_SLOT;
        if !self.settings.compact && (first..first + count).any(mapped) {
            return;
        }
        let Some(slots) = self.take_slots(count) else { return };
        let pages: Vec<u32> = (first..first + count).map(|page| self.bench.page(page).0).collect();
        for (slot, page) in slots.iter().zip(&pages) {
            let mut words = [0_u64; WORDS];
            // One that is absent in a whole block is zero.
            // SAFETY: a page of our own.
            unsafe { worker.copy(&[*page], words.as_mut_ptr().cast(), |_| ()) };
            let bytes = words.map(u64::to_ne_bytes);
            let at = Slot(*slot).offset_bytes();
            self.bench.store.write_all_at(bytes.as_flattened(), at).expect("store");
        }
        let mut page = pages[0];
        let runs = slots.chunk_by(|a, b| *b == a + 1).map(|slots| {
            let run =
                Run { page, count: slots.len() as u32, slot: slots[0], target: RunTarget::Slots };
            page += run.count;
            run
        });
        let mut outcomes = Vec::new();
        worker.merge(&self.bench.segments(), &runs.collect::<Vec<Run>>(), &mut outcomes);
        let mut unused = Vec::new();
        for ((page, outcome), slot) in (first..).zip(outcomes).zip(slots) {
            if outcome == PageOutcome::Merged {
                let before = self.slots[page as usize].swap(slot, Ordering::AcqRel);
                unused.extend((before != NO_SLOT).then_some(before));
                self.merged.fetch_add(1, Ordering::Relaxed);
            } else {
                unused.push(slot);
            }
        }
        self.release(&unused);
    }

    /// Consecutive slots: the free list is kept in blocks of the longest run.
    /// Slots that are mostly consecutive, and the less so the longer this goes on.
    fn take_slots(&self, count: u32) -> Option<Vec<u32>> {
        let mut free = self.free.lock().expect("no merger failed");
        free.sort_unstable();
        let count = count as usize;
        (count <= free.len()).then(|| free.drain(..count).collect())
    }

    fn release(&self, slots: &[u32]) {
        for &slot in slots {
            memfd::punch(&self.bench.store, Slot(slot).offset_bytes(), PAGE_BYTES as u64)
                .expect("punch");
        }
        self.free.lock().expect("no merger failed").extend_from_slice(slots);
    }

    fn check_counters(&self) {
        let mut sum = 0;
        for page in LOCKED_PAGES..PAGES {
            for word in 0..WORDS {
                // SAFETY: the word is in the mapping, and its writers have ended.
                sum += unsafe { self.bench.words(page).add(word).read_volatile() };
            }
        }
        assert_eq!(sum, self.added.load(Ordering::Relaxed), "additions were lost");
    }
}

#[repr(align(4096))]
struct Direct([u8; PAGE_BYTES]);

fn direct_file(directory: &std::path::Path) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(directory.join("direct"))
        .inspect_err(|error| bindery_testkit::skipped!("direct I/O: {error}"))
        .ok()?;
    file.set_len(u64::from(PAGES) * PAGE_BYTES as u64).expect("length");
    assert!(file.as_raw_fd() >= 0);
    Some(file)
}

fn huge_pages_are_made() -> bool {
    huge::Policy::of_machine().is_ok_and(|policy| policy.allows(huge::Advice::Wanted))
}

/// Runs until so many operations were verified. Returns how many pages were merged, and how many blocks were
/// made whole again.
fn torture(settings: TortureSettings, operations: u64) -> Option<(u64, u64)> {
    let bench = if settings.huge {
        Bench::of_huge_pages(PAGES as usize, SLOTS)?
    } else {
        Bench::new(PAGES as usize, SLOTS)?
    };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    let torture = Arc::new(Torture {
        bench,
        settings,
        expected: (0..LOCKED_PAGES).map(|_| Mutex::new(0)).collect(),
        slots: (0..PAGES).map(|_| AtomicU32::new(NO_SLOT)).collect(),
        free: Mutex::new((0..SLOTS / 8).collect()),
        blocks: (0..PAGES / BLOCK_PAGES).map(|_| Mutex::new(())).collect(),
        added: AtomicU64::new(0),
        operations: AtomicU64::new(0),
        merged: AtomicU64::new(0),
        collapsed: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        file: direct_file(directory.path()),
    });
    let mut threads = Vec::new();
    for seed in 0..settings.writers {
        let torture = Arc::clone(&torture);
        threads.push(thread::spawn(move || torture.writer(u64::from(seed) * 7919 + 1)));
    }
    for seed in 0..settings.mergers {
        let torture = Arc::clone(&torture);
        threads.push(thread::spawn(move || torture.merger(u64::from(seed) * 104_729 + 3)));
    }
    if settings.swap {
        let torture = Arc::clone(&torture);
        threads.push(thread::spawn(move || torture.reclaimer(5)));
    }
    if settings.huge {
        let torture = Arc::clone(&torture);
        threads.push(thread::spawn(move || torture.collapser(7)));
    }
    let start = Instant::now();
    let (mut last, mut last_moved) = (0, Instant::now());
    let merged = || torture.merged.load(Ordering::Relaxed);
    let collapsed = || torture.collapsed.load(Ordering::Relaxed);
    while torture.operations.load(Ordering::Relaxed) < operations || merged() == 0 {
        thread::sleep(Duration::from_millis(20));
        assert!(
            threads.iter().all(|thread| !thread.is_finished()),
            "a thread failed: {settings:?}"
        );
        let now = torture.operations.load(Ordering::Relaxed);
        if now != last {
            (last, last_moved) = (now, Instant::now());
        }
        assert!(last_moved.elapsed() < Duration::from_secs(20), "nothing moves: {settings:?}");
    }
    torture.stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("verified"));
    for (page, expected) in torture.expected.iter().enumerate() {
        torture.verify(page as u32, *expected.lock().expect("ended"));
    }
    torture.check_counters();
    let (done, merged) = (last, merged());
    let breaks = torture.bench.space.breaks();
    println!(
        "{settings:?}: {done} operations, {merged} merges, {breaks} breaks, {} collapses in {:.1} s",
        collapsed(),
        start.elapsed().as_secs_f64()
    );
    // The memory is unmapped by its owner now: said first, as any owner must.
    torture.bench.space.forget(torture.bench.address(0), torture.bench.memory.bytes());
    Some((merged, collapsed()))
}

#[test]
fn nothing_is_lost_or_torn_in_any_combination_of_settings() {
    let operations: u64 = std::env::var("BINDERY_TORTURE_OPERATIONS")
        .map_or(2_000_000, |value| value.parse().expect("a number of operations"));
    let _khugepaged = HugePagesGuard::set(huge::Policy::Madvise)
        .and_then(HugePagesGuard::with_eager_khugepaged)
        .inspect_err(|error| bindery_testkit::skipped!("khugepaged without a pause: {error}"));
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    let swap = SwapGuard::add(directory.path(), SWAP_MEBIBYTES)
        .inspect_err(|error| bindery_testkit::skipped!("memory that is swapped out: {error}"))
        .ok();
    let swaps: &[bool] = if swap.is_some() { &[false, true] } else { &[false] };
    let mut combinations = Vec::new();
    for mergers in [1, 2] {
        for run_pages_max in [1, 8, 64] {
            for unmerge in [false, true] {
                for compact in [false, true] {
                    for direct in [false, true] {
                        let more = swaps.iter().flat_map(|swap| [(*swap, false), (*swap, true)]);
                        combinations.extend(more.map(|(swap, huge)| TortureSettings {
                            mergers,
                            writers: 3,
                            run_pages_max,
                            unmerge,
                            compact,
                            direct,
                            swap,
                            huge,
                        }));
                    }
                }
            }
        }
    }
    let share = operations / combinations.len() as u64;
    let mut all_collapsed = 0;
    for settings in combinations {
        let Some((merged, collapsed)) = torture(settings, share) else { return };
        assert!(merged > 0, "merging went on: {settings:?}");
        all_collapsed += collapsed;
    }
    if huge_pages_are_made() {
        assert!(all_collapsed > 0, "blocks were made whole again");
    }
}
