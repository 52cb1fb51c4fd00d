//! Free memory that is at hand.
//!
//! On a machine that is a guest itself, a page that its host has taken back costs whoever takes it next
//! a fault there, of 5 to 10 µs, and hosts take free memory at any time. Whoever is measured would be
//! charged with what ran before.

use std::{
    hint::black_box,
    io::Write as _,
    time::{Duration, Instant},
};

use bindery_sys::tmpfs::PrivateTmpfs;
use bindery_units::{ByteCount, PAGE_BYTES};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// No more passes are begun after that time: on a machine of many CPUs not all have their turn.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is written at once.
const WRITE_BYTES: usize = 64 * PAGE_BYTES;

/// Touches so much free memory, and gives it back, from each CPU that the caller may run on, until that
/// costs no less than the time before. Each CPU hands out first what was freed on it last
/// (`zone_highsize` in the kernel's mm/page_alloc.c), so what one of them has touched the next may never
/// get; and what was freed in single pages is kept for single pages, so large folios are touched as well,
/// of the two lengths that they have in a file which grows and in one that is filled.
/// Holds twice the memory for a moment, beside all that is in use; seconds where the host has taken it.
pub fn back_free_memory(bytes: ByteCount) {
    let deadline = Instant::now() + PATIENCE;
    let Ok(allowed) = sched_getaffinity(None) else { return touch_until_at_hand(bytes, deadline) };
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)) {
        let mut own = CpuSet::new();
        own.set(cpu);
        // Where it cannot be chosen, the scheduler chooses.
        let _ = sched_setaffinity(None, &own);
        touch_until_at_hand(bytes, deadline);
    }
    let _ = sched_setaffinity(None, &allowed);
}

fn touch_until_at_hand(bytes: ByteCount, deadline: Instant) {
    let mut before = Duration::MAX;
    while Instant::now() < deadline {
        let time = touch(bytes);
        // Passes over memory that is at hand differ by less.
        if time > before.mul_f64(0.8) {
            return;
        }
        before = time;
    }
}

fn touch(bytes: ByteCount) -> Duration {
    let start = Instant::now();
    let pages = black_box(vec![1_u8; bytes.0 as usize]);
    // As long as a write where it ends the file, 2 MiB where it is within.
    for length in [0, bytes.0] {
        // Who may not mount gets none: neither does who is measured.
        let file = PrivateTmpfs::mount(bytes.0).and_then(|tmpfs| tmpfs.create("bindery-touch"));
        let Ok(mut file) = file else { continue };
        let written = file
            .set_len(length)
            .and_then(|()| pages.chunks(WRITE_BYTES).try_for_each(|chunk| file.write_all(chunk)));
        written.expect("there is memory for as much again");
    }
    drop(pages);
    start.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_runs_where_it_ran_before() {
        let before = sched_getaffinity(None).unwrap();
        back_free_memory(ByteCount(16 << 20));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
