//! How long a guest's process waits for its own memory: the first write to a page that is merged,
//! and reads of pages while they are being merged.
//!
//! Concurrency: a `Watch` only reads; whoever writes meanwhile races with it by intent, and so
//! all accesses here are volatile accesses of one byte.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    dataset::{Mix, is_image},
    memory::Memory,
};

/// Pages between two that are written to: as many as are ever brought back together.
const WRITE_SPACING_PAGES: usize = 32;

/// The rest between two accesses: what serves them has come to rest too, and the CPU is free for
/// whoever merges.
const WRITE_REST: Duration = Duration::from_micros(200);
const READ_REST: Duration = Duration::from_micros(20);

/// Reads kept of a watch, which is more than a minute of them.
const READS_MAX: usize = 1 << 20;

/// The distribution of some waits, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Latencies {
    /// How many.
    pub count: usize,
    /// Half took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// 999 of 1000 took no longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latencies {
    fn of(mut waits_ns: Vec<u64>) -> Self {
        waits_ns.sort_unstable();
        let last = waits_ns.len().saturating_sub(1);
        let quantile = |share: f64| {
            let at = (last as f64 * share).round() as usize;
            waits_ns.get(at).map_or(f64::NAN, |&ns| ns as f64 / 1e3)
        };
        Self {
            count: waits_ns.len(),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: quantile(1.0),
        }
    }
}

/// First writes to pages that other processes have too.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FirstWrites {
    /// Far apart and in random order, one at a time, with rests.
    pub alone: Latencies,
    /// The same, one after the other.
    pub burst: Latencies,
    /// All pages from one to another, upwards: microseconds for each that others have too.
    pub up_us: f64,
    /// The same, downwards.
    pub down_us: f64,
}

impl FirstWrites {
    /// Times them. What the pages hold stays as it is.
    pub(super) fn time(memory: &Memory) -> Self {
        let pages = memory.seeds.len();
        let (apart, half) = (pages / 4 * 3, pages / 8 * 7);
        let mut targets: Vec<usize> = (0..apart)
            .step_by(WRITE_SPACING_PAGES)
            .filter(|&at| is_image(memory.seeds[at]))
            .collect();
        let mut random = Mix(1);
        for left in (2..=targets.len()).rev() {
            targets.swap(left - 1, (random.next() % left as u64) as usize);
        }
        let burst = targets.split_off(targets.len() / 2);
        Self {
            alone: time_writes(memory, &targets, WRITE_REST),
            burst: time_writes(memory, &burst, Duration::ZERO),
            up_us: time_stream(memory, apart..half),
            down_us: time_stream(memory, (half..pages).rev()),
        }
    }
}

fn time_stream(memory: &Memory, pages: impl Iterator<Item = usize>) -> f64 {
    let mut shared = 0;
    let start = Instant::now();
    for at in pages {
        let byte = memory.pages.page(at).cast::<u8>();
        // SAFETY: the page is in the mapping, which this process alone writes to, here.
        unsafe { byte.write_volatile(byte.read_volatile()) };
        shared += u32::from(is_image(memory.seeds[at]));
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(shared)
}

fn time_writes(memory: &Memory, targets: &[usize], rest: Duration) -> Latencies {
    let waits = targets.iter().map(|&at| {
        if !rest.is_zero() {
            thread::sleep(rest);
        }
        let byte = memory.pages.page(at).cast::<u8>();
        // SAFETY: the page is in the mapping, which this process alone writes to, here.
        let value = unsafe { byte.read_volatile() };
        let start = Instant::now();
        // SAFETY: as above.
        unsafe { byte.write_volatile(value) };
        start.elapsed().as_nanos() as u64
    });
    Latencies::of(waits.collect())
}

/// A thread that reads one page after the other, at random.
pub(super) struct Watch {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u64>>,
}

impl Watch {
    pub(super) fn start(memory: &Arc<Memory>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (memory, heard) = (Arc::clone(memory), Arc::clone(&ended));
        let thread = thread::spawn(move || {
            let mut waits = Vec::with_capacity(READS_MAX);
            let mut random = Mix(2);
            // Relaxed: the flag stands for itself.
            while !heard.load(Ordering::Relaxed) && waits.len() < READS_MAX {
                let at = (random.next() % memory.seeds.len() as u64) as usize;
                let byte = memory.pages.page(at).cast::<u8>();
                let start = Instant::now();
                // SAFETY: the page is in the mapping, which lives as long as `memory`.
                let _ = unsafe { byte.read_volatile() };
                waits.push(start.elapsed().as_nanos() as u64);
                thread::sleep(READ_REST);
            }
            waits
        });
        Self { ended, thread }
    }

    /// Ends it and says how long its reads took.
    pub(super) fn end(self) -> Latencies {
        // Relaxed: the flag stands for itself; the waits come through `join`.
        self.ended.store(true, Ordering::Relaxed);
        Latencies::of(self.thread.join().expect("reading memory does not panic"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_waits() {
        let latencies = Latencies::of((0..=1000).rev().map(|us| us * 1000).collect());
        assert_eq!((latencies.count, latencies.p50_us), (1001, 500.0));
        assert_eq!((latencies.p99_us, latencies.p999_us, latencies.max_us), (990.0, 999.0, 1000.0));
        assert!(Latencies::of(Vec::new()).p50_us.is_nan());
    }
}
