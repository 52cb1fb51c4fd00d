//! Huge pages of a guest that is captured again and again: they stay, and nothing that is written in them is missed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use bindery_sys::mapping::{HUGE_PAGE_BYTES, Mapping};
use bindery_sys::pagemap::{Extent, Pagemap, Query, category};
use bindery_testkit::guest_memory::GuestMemory;
use bindery_transfer::{Limits, Tracker};
use bindery_units::PAGE_BYTES;

use crate::image::Image;
use crate::process::{
    DISK_PAGES, Gate, Process, Random, Scene, address, capture_within, disk, slice,
};

const BLOCKS: usize = 48;
const PAGES: usize = BLOCKS * BLOCK_PAGES;
const BLOCK_PAGES: usize = HUGE_PAGE_BYTES / PAGE_BYTES;

/// Writing threads. Each has as many blocks. The last one has a device read into its pages.
const WRITERS: usize = 3;

const CAPTURES: usize = 20;

/// Returns the number of blocks that are huge pages.
fn huge(memory: &GuestMemory) -> usize {
    let query = Query {
        require: category::HUGE | category::PRESENT,
        report: category::HUGE,
        ..Query::default()
    };
    let mut extents = [Extent::default(); BLOCKS];
    let pagemap = Pagemap::of_self().unwrap();
    let scanned = pagemap.scan(address(memory), PAGES * PAGE_BYTES, query, &mut extents).unwrap();
    extents[..scanned.extents].iter().map(Extent::pages).sum::<usize>() / BLOCK_PAGES
}

/// Memory in huge pages, no two of which pages are alike. Nothing where the kernel makes none.
fn filled() -> Option<GuestMemory> {
    let mut memory = GuestMemory::over(Mapping::huge(PAGES * PAGE_BYTES).unwrap());
    for (number, page) in slice(&mut memory, PAGES).chunks_exact_mut(PAGE_BYTES).enumerate() {
        page.as_chunks_mut::<8>().0.fill((1 << 50 | number as u64).to_le_bytes());
    }
    if huge(&memory) < BLOCKS {
        bindery_testkit::skipped!("the kernel makes no huge pages here");
        return None;
    }
    Some(memory)
}

/// Writes words, or has them read from a disk, in the first `hot` blocks of a part.
fn write_on(gate: &Gate, part: &mut [u8], hot: usize, disk: Option<&File>, seed: u64) {
    let (mut random, mut steps) = (Random(seed), 0_u64);
    while gate.pass(|| {
        let page = random.below(hot * BLOCK_PAGES - 8);
        let bytes = &mut part[page * PAGE_BYTES..(page + 8) * PAGE_BYTES];
        match disk {
            Some(disk) if random.below(3) == 0 => {
                let at = random.below(DISK_PAGES - 8) * PAGE_BYTES;
                disk.read_exact_at(bytes, at as u64).unwrap();
            }
            // Odd, so that no page is like another for long.
            _ => bytes[random.below(8 * PAGE_BYTES)] ^= 1 + 2 * random.below(100) as u8,
        }
    }) {
        steps += 1;
        if steps.is_multiple_of(16) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Captures a guest whose threads write in so many blocks each. Returns how many of all blocks are huge then.
fn captured(hot: usize, pause_max: Duration) -> Option<usize> {
    let scene = Scene::over(filled()?, PAGES, Duration::from_millis(20))?;
    let Scene { mut large, small, space, daemon, agent, directory } = scene;
    // With zeros: where the kernel splits a huge page, it maps its zero page in place of those.
    let disk = disk(directory.path());
    let gate = Arc::<Gate>::default();
    let blocks = vec![Scene::block("large", &large)];
    drop(small);
    let mut vmm = Process { gate: Arc::clone(&gate), blocks, has_saved: false, oracle: Vec::new() };
    let mut image = Image::new(&vmm.blocks);
    let limits = Limits { pause_max, rounds_max: 4, ..Limits::default() };
    thread::scope(|scope| {
        let part = PAGES / WRITERS * PAGE_BYTES;
        for (number, pages) in slice(&mut large, PAGES).chunks_exact_mut(part).enumerate() {
            let disk = disk.as_ref().filter(|_| number == WRITERS - 1);
            let gate = &gate;
            scope.spawn(move || write_on(gate, pages, hot, disk, 1 + number as u64));
        }
        let captured = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut tracker = Tracker::begin(Arc::clone(&daemon.guest)).unwrap();
            for number in 0..CAPTURES {
                let commits = number % 4 != 2;
                let words = capture_within(limits, &mut vmm, &mut tracker, &mut image, commits);
                println!("{number}: {}", words.unwrap_or_else(|error| panic!("{error}")));
                thread::sleep(Duration::from_millis(20));
            }
        }));
        gate.open();
        gate.ends.store(true, Ordering::SeqCst);
        if let Err(panic) = captured {
            std::panic::resume_unwind(panic);
        }
    });
    let kept = huge(&large);
    println!("{kept} of {BLOCKS} blocks are huge; merged, zero, breaks: {:?}", daemon.counts());
    agent.stop();
    space.release().unwrap();
    Some(kept)
}

#[test]
fn huge_pages_stay_while_their_guest_is_captured() {
    let Some(kept) = captured(2, Duration::from_millis(100)) else { return };
    assert!(kept * 100 >= BLOCKS * 95, "{kept} of {BLOCKS}");
}

#[test]
fn huge_pages_that_do_not_fit_a_pause_are_split_and_no_others() {
    let hot = 6;
    let Some(kept) = captured(hot, Duration::from_millis(8)) else { return };
    assert!(kept >= BLOCKS - WRITERS * hot, "{kept} of {BLOCKS}");
}
