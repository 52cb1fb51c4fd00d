//! What merging and breaking cost on this machine, for runs of several lengths: runs that lie apart,
//! with pages of the guest's own between them, and runs that follow one another.
//!
//! `cargo run --release -p bindery-space --example costs`

use std::{
    error::Error,
    fs::File,
    os::unix::fs::FileExt,
    sync::Arc,
    time::{Duration, Instant},
};

use bindery_space::{Segments, Space};
use bindery_sys::{mapping::Mapping, memfd, thread};
use bindery_units::PAGE_BYTES;
use bindery_wire::{
    control::StoreId,
    lane::{PageOutcome, Run, RunTarget},
};

const PAGES: u32 = 16 * 1024;

const STORE: StoreId = StoreId(1);
const RUN_PAGES: [u32; 6] = [1, 2, 4, 8, 16, 64];

/// First writes that are timed, one each so often.
const BREAKS: usize = 300;
const BREAK_INTERVAL: Duration = Duration::from_micros(300);

fn main() -> Result<(), Box<dyn Error>> {
    let space = Space::start()?;
    let store: File = memfd::create("costs", u64::from(PAGES) * PAGE_BYTES as u64)?;
    for slot in 0..PAGES {
        store.write_all_at(&content(slot), u64::from(slot) * PAGE_BYTES as u64)?;
    }
    space.attach_store(STORE, PAGES, PAGES)?;
    let segments = space.pin(STORE, [(0, memfd::reopen_read_only(&store)?.into())])?;
    println!("{:>9} {:>4} {:>12} {:>14}", "runs", "of", "merge µs/pg", "break µs p50");
    for (name, step) in [("apart", 2), ("adjacent", 1)] {
        for run_pages in RUN_PAGES {
            let (merge_us, break_us) = measure(&space, &segments, run_pages, step)?;
            println!("{name:>9} {run_pages:>4} {merge_us:>12.2} {break_us:>14.1}");
        }
    }
    Ok(())
}

fn content(slot: u32) -> [u8; PAGE_BYTES] {
    [(slot % 251) as u8 + 1; PAGE_BYTES]
}

/// CPU time to merge a page, and the median of first writes, when every `step`th run is merged.
fn measure(
    space: &Arc<Space>,
    segments: &Segments,
    run_pages: u32,
    step: usize,
) -> Result<(f64, f64), Box<dyn Error>> {
    let memory = Mapping::anonymous(PAGES as usize * PAGE_BYTES)?;
    let region = space.manage(memory.address(), memory.bytes())?;
    // Slots in the opposite order, so that runs do not join.
    let slot_of = |page: u32| PAGES - (page / run_pages + 1) * run_pages + page % run_pages;
    for page in 0..PAGES {
        // SAFETY: the page is in the mapping.
        unsafe {
            let target = memory.as_ptr().add(page as usize * PAGE_BYTES);
            std::ptr::copy_nonoverlapping(content(slot_of(page)).as_ptr(), target, PAGE_BYTES);
        }
    }
    let starts = (0..PAGES / run_pages).step_by(step).map(|run| run * run_pages);
    let runs: Vec<Run> = starts
        .map(|start| Run {
            page: region.pages.first.0 + start,
            count: run_pages,
            slot: slot_of(start),
            target: RunTarget::Slots,
        })
        .collect();
    let mut worker = space.worker()?;
    let mut outcomes = Vec::new();
    let before = thread::cpu_time();
    runs.chunks(64).for_each(|runs| worker.merge(segments, runs, &mut outcomes));
    let merging = thread::cpu_time() - before;
    assert!(outcomes.iter().all(|&outcome| outcome == PageOutcome::Merged));

    let mut breaks: Vec<Duration> = runs
        .iter()
        .step_by((runs.len() / BREAKS).max(1))
        .map(|run| {
            let at = (run.page - region.pages.first.0) as usize * PAGE_BYTES;
            let before = Instant::now();
            // SAFETY: the page is in the mapping.
            unsafe { memory.as_ptr().add(at).write_volatile(0xff) };
            let took = before.elapsed();
            std::thread::sleep(BREAK_INTERVAL);
            took
        })
        .collect();
    breaks.sort_unstable();
    space.release()?;
    let merge_us = merging.as_secs_f64() * 1e6 / outcomes.len() as f64;
    Ok((merge_us, breaks[breaks.len() / 2].as_secs_f64() * 1e6))
}
