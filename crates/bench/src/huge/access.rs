//! Random accesses of eight bytes, timed.

use std::time::Duration;

use super::{
    layout::BLOCK_PAGES,
    memory::{Memory, scattered},
    stopwatch::Stopwatch,
};
use crate::merge::dataset::Mix;

/// Words of a block.
const BLOCK_WORDS: u64 = BLOCK_PAGES as u64 * 512;

/// Accesses between two looks at the clock.
const BATCH: u32 = 4096;

/// Reads words of `blocks` for so long, each at a position that the one before decides, so that
/// nothing is fetched ahead. Returns nanoseconds a read.
///
/// # Panics
/// If there are no blocks.
pub(super) fn read(memory: &Memory, blocks: &[u32], time: Duration) -> f64 {
    let (words, mut random, mut value) = (memory.words(), Mix(3), 0);
    time_batches(time, || {
        let at = word(blocks, random.next() ^ value);
        // SAFETY: the word is in the mapping, which lives as long as `memory`.
        value = unsafe { words.add(at).read_volatile() };
    })
}

/// Writes words of `blocks` for so long. Returns nanoseconds a write.
///
/// # Panics
/// If there are no blocks.
pub(super) fn write(memory: &Memory, blocks: &[u32], time: Duration) -> f64 {
    let (words, mut random) = (memory.words(), Mix(4));
    time_batches(time, || {
        let at = word(blocks, random.next());
        // SAFETY: as above; nobody else writes meanwhile.
        unsafe { words.add(at).write_volatile(scattered(at)) };
    })
}

fn time_batches(time: Duration, mut access: impl FnMut()) -> f64 {
    let (watch, mut accesses) = (Stopwatch::start(), 0.0);
    loop {
        for _ in 0..BATCH {
            access();
        }
        accesses += f64::from(BATCH);
        if watch.elapsed() >= time {
            return watch.stop().as_secs_f64() * 1e9 / accesses;
        }
    }
}

/// Index of the word of `blocks` that a random number stands for.
fn word(blocks: &[u32], random: u64) -> usize {
    let (high, low) = (random >> 32, random & 0xffff_ffff);
    let block = blocks[((high * blocks.len() as u64) >> 32) as usize];
    (u64::from(block) * BLOCK_WORDS + low % BLOCK_WORDS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_stay_in_their_blocks() {
        let mut random = Mix(1);
        let words: Vec<usize> = (0..10_000).map(|_| word(&[3, 7], random.next())).collect();
        let blocks = words.iter().map(|word| word / BLOCK_WORDS as usize);
        assert!(blocks.clone().all(|block| block == 3 || block == 7));
        let third = blocks.filter(|&block| block == 3).count();
        assert!((4_000..6_000).contains(&third), "{third}");
        assert_eq!(word(&[5], u64::MAX), 6 * BLOCK_WORDS as usize - 1);
    }
}
