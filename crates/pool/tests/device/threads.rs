//! Many threads on one device.

use std::thread;

use bindery_pool::device::{Device, Write};
use bindery_sys::direct::Buffer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{all_options, create, offset, pattern, read_blocks};

const THREADS: u64 = 6;
const BLOCKS_EACH: u64 = 64;

/// Blocks of a thread lie between those of others. Each thread knows what its own hold.
fn torment(device: &dyn Device, thread: u64, rounds: u64) {
    let mut random = SmallRng::seed_from_u64(thread);
    let mut versions = vec![None; BLOCKS_EACH as usize];
    let place = |at: u64| at * THREADS + thread;
    for version in 0..rounds {
        let chosen: Vec<u64> = (0..BLOCKS_EACH).filter(|_| random.random_ratio(1, 3)).collect();
        let buffers: Vec<Buffer> =
            chosen.iter().map(|&at| pattern(place(at), 1, version)).collect();
        let writes: Vec<Write<'_>> = chosen
            .iter()
            .zip(&buffers)
            .map(|(&at, from)| Write { offset_bytes: offset(place(at)), from })
            .collect();
        device.write_many(&writes).unwrap();
        chosen.iter().for_each(|&at| versions[at as usize] = Some(version));
        if version % 8 == thread {
            device.sync().unwrap();
        }
        let found = read_blocks(device, 0..THREADS * BLOCKS_EACH).unwrap();
        for (at, version) in versions.iter().enumerate() {
            let block = place(at as u64);
            let Some(version) = version else { continue };
            assert!(*found[block as usize] == *pattern(block, 1, *version), "block {block}");
        }
    }
}

#[test]
fn threads_do_not_disturb_each_other() {
    for options in all_options() {
        let directory = tempfile::tempdir().unwrap();
        let device = create(directory.path(), THREADS * BLOCKS_EACH, &options);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let device = &device;
                scope.spawn(move || torment(device, thread, 12));
            }
        });
    }
}
