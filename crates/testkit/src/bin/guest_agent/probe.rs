//! How fast the guest is, as it sees it itself: a CPU-bound loop, a loop that writes memory, and
//! how late a one-millisecond timer comes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::content::{PAGE, Page, PageState};
use crate::options::Options;

pub(crate) fn run(options: &Options) -> Result<String, String> {
    let seconds = Duration::from_secs_f64(options.get("seconds", 2.0_f64)?);
    let mut memory = mergeable_memory(options.get("mib", 32_usize)?);
    // Time for the host to merge what was just written: the writes below then break it.
    std::thread::sleep(Duration::from_secs_f64(options.get("settle", 0.0_f64)?));
    let first_pass_us = write_pass(&mut memory, 1).as_secs_f64() * 1e6 / memory.len() as f64;
    let cpu = cpu_rate(seconds);
    let pages = write_rate(&mut memory, seconds);
    let mut late = timer_lateness_us(options.get("samples", 2_000_usize)?);
    late.sort_by(f64::total_cmp);
    Ok(format!(
        "{{\"cpu_loops_per_s\":{cpu:.0},\"pages_written_per_s\":{pages:.0},\
         \"first_write_us\":{first_pass_us:.3},\"timer_late_p50_us\":{:.1},\
         \"timer_late_p99_us\":{:.1},\"timer_late_p999_us\":{:.1},\"timer_late_max_us\":{:.1}}}",
        quantile(&late, 0.5),
        quantile(&late, 0.99),
        quantile(&late, 0.999),
        quantile(&late, 1.0),
    ))
}

/// Pages that are the same in every guest that runs the probe.
fn mergeable_memory(mib: usize) -> Vec<Page> {
    let mut memory = vec![Page::zeroed(); (mib << 20) / PAGE];
    for (number, page) in memory.iter_mut().enumerate() {
        PageState { version: 1, stamp: 0 }.fill(0, number as u64, &mut page.0);
    }
    memory
}

fn write_pass(memory: &mut [Page], value: u8) -> Duration {
    let start = Instant::now();
    for page in memory.iter_mut() {
        page.0[PAGE / 2] = page.0[PAGE / 2].wrapping_add(value);
        black_box(&page.0);
    }
    start.elapsed()
}

/// Steps of a chain in which each needs the one before. They take as long as a multiplication does, and
/// leave most of a core idle: a neighbour on the core's other hardware thread takes little from them. A
/// loop that filled the core would measure that neighbour.
fn cpu_rate(duration: Duration) -> f64 {
    let start = Instant::now();
    let (mut loops, mut state) = (0_u64, 1_u64);
    while start.elapsed() < duration {
        for _ in 0..10_000 {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).rotate_left(13) ^ state;
        }
        state = black_box(state);
        loops += 10_000;
    }
    loops as f64 / start.elapsed().as_secs_f64()
}

/// Whole pages written each second, over and over the same memory.
fn write_rate(memory: &mut [Page], duration: Duration) -> f64 {
    let start = Instant::now();
    let (mut pages, mut value) = (0_usize, 0_u8);
    while start.elapsed() < duration {
        value = value.wrapping_add(1);
        for page in memory.iter_mut() {
            page.0.fill(value);
            black_box(&page.0);
        }
        pages += memory.len();
    }
    pages as f64 / start.elapsed().as_secs_f64()
}

fn timer_lateness_us(samples: usize) -> Vec<f64> {
    let period = Duration::from_millis(1);
    (0..samples)
        .map(|_| {
            let start = Instant::now();
            std::thread::sleep(period);
            (start.elapsed().saturating_sub(period)).as_secs_f64() * 1e6
        })
        .collect()
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
}
