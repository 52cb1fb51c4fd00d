//! What merging and breaking cost on this machine, for runs of several lengths.
//!
//! `cargo run --release -p bindery-space --example costs`

use std::{
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use bindery_space::{
    Space,
    wire::{
        control::StoreId,
        lane::{Run, outcome},
    },
};
use bindery_sys::{mapping::Mapping, memfd, thread};
use bindery_units::PAGE_BYTES;

const PAGES: u32 = 16 * 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let space = Space::start()?;
    let store: File = memfd::create("costs", u64::from(PAGES) * PAGE_BYTES as u64)?;
    let view = memfd::reopen_read_only(&store)?;
    space.attach_store(StoreId(1), view.into(), PAGES)?;
    let mut worker = space.worker()?;
    println!(
        "{:>4} {:>12} {:>12} {:>14} {:>14}",
        "run", "merge µs/pg", "cpu µs/pg", "break µs p50", "break µs mean"
    );
    for run_pages in [1u32, 2, 4, 16, 64] {
        let memory = Mapping::anonymous(PAGES as usize * PAGE_BYTES)?;
        let region = space.manage(memory.address(), memory.bytes())?;
        for page in 0..PAGES {
            let content = [(page % 251) as u8 + 1; PAGE_BYTES];
            store.write_all_at(&content, u64::from(page) * PAGE_BYTES as u64)?;
            // SAFETY: the page is in the mapping.
            unsafe {
                let target = memory.as_ptr().add(page as usize * PAGE_BYTES);
                std::ptr::copy_nonoverlapping(content.as_ptr(), target, PAGE_BYTES);
            }
        }
        let mut outcomes = Vec::new();
        let (wall, cpu) = (Instant::now(), thread::cpu_time());
        // Every other run, so that runs do not join.
        let starts = (0..PAGES / run_pages).step_by(2).map(|run| run * run_pages);
        for start in starts.clone() {
            let page = region.pages.first.0 + start;
            worker.merge(
                StoreId(1),
                Run { page, count: run_pages, slot: start, zero: 0 },
                &mut outcomes,
            );
        }
        let pages = outcomes.len() as f64;
        assert!(outcomes.iter().all(|&outcome| outcome == outcome::MERGED));
        let (wall, cpu) = (wall.elapsed(), thread::cpu_time() - cpu);
        let mut breaks: Vec<Duration> = starts
            .step_by((512 / run_pages.min(64)) as usize / 2 + 1)
            .map(|start| {
                let before = Instant::now();
                // SAFETY: the page is in the mapping.
                unsafe {
                    memory.as_ptr().add(start as usize * PAGE_BYTES).write_volatile(0xff);
                }
                let took = before.elapsed();
                std::thread::sleep(Duration::from_micros(300));
                took
            })
            .collect();
        breaks.sort();
        let mean = breaks.iter().sum::<Duration>() / breaks.len() as u32;
        println!(
            "{run_pages:>4} {:>12.2} {:>12.2} {:>14.1} {:>14.1}",
            wall.as_secs_f64() * 1e6 / pages,
            cpu.as_secs_f64() * 1e6 / pages,
            breaks[breaks.len() / 2].as_secs_f64() * 1e6,
            mean.as_secs_f64() * 1e6
        );
        space.release()?;
    }
    Ok(())
}
