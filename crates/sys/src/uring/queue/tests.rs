use super::*;

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::direct::Buffer;

const BLOCK: usize = 4096;

/// None, told loudly, where io_uring is refused.
fn queue(depth: usize) -> Option<Queue> {
    Queue::new(depth).inspect_err(|error| bindery_testkit::skipped!("io_uring: {error}")).ok()
}

fn block(seed: u64) -> Buffer {
    let mut block = Buffer::zeroed(2 * BLOCK);
    block.fill(seed as u8 ^ 0x5a);
    block[..8].copy_from_slice(&seed.to_le_bytes());
    block
}

fn offset(seed: u64) -> u64 {
    seed * 2 * BLOCK as u64
}

fn assert_written(file: &File, count: u64) {
    for seed in 0..count {
        let mut found = vec![0; 2 * BLOCK];
        file.read_exact_at(&mut found, offset(seed)).unwrap();
        assert_eq!(found, block(seed)[..], "block {seed}");
    }
}

#[test]
fn what_is_begun_is_written_whoever_waits_for_it() {
    let Some(mut queue) = queue(3) else { return };
    let file = tempfile::tempfile().unwrap();
    for seed in 0..100 {
        if queue.under_way() == queue.depth() {
            let written = queue.wait(file.as_fd()).unwrap();
            written.outcome.unwrap();
            assert_eq!(written.source[..], block(written.offset_bytes / offset(1))[..]);
        }
        assert!(queue.begin(file.as_fd(), offset(seed), block(seed).into()).is_none());
    }
    assert_eq!(queue.under_way(), 3);
    // Its end waits for the rest.
    drop(queue);
    assert_written(&file, 100);
}

#[test]
fn what_is_shared_is_written_many_times_and_given_back() {
    let Some(mut queue) = queue(3) else { return };
    let file = tempfile::tempfile().unwrap();
    let shared = Arc::new(block(0));
    for at in 0..3 {
        let source = Arc::clone(&shared).into();
        assert!(queue.begin(file.as_fd(), offset(at), source).is_none());
    }
    assert_eq!(Arc::strong_count(&shared), 4);
    while let Some(written) = queue.wait(file.as_fd()) {
        written.outcome.unwrap();
    }
    assert_eq!(Arc::strong_count(&shared), 1);
    for at in 0..3 {
        let mut found = vec![0; 2 * BLOCK];
        file.read_exact_at(&mut found, offset(at)).unwrap();
        assert_eq!(found, shared[..]);
    }
}

#[test]
fn a_thread_that_ends_takes_no_write_with_it() {
    let Some(mut queue) = queue(8) else { return };
    let file = tempfile::tempfile().unwrap();
    for seed in 0..40 {
        if queue.under_way() == 8 {
            queue.wait(file.as_fd()).unwrap().outcome.unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(queue.begin(file.as_fd(), offset(seed), block(seed).into()).is_none())
            });
        });
    }
    while let Some(written) = queue.wait(file.as_fd()) {
        written.outcome.unwrap();
    }
    assert_written(&file, 40);
}

#[test]
fn a_write_that_fails_is_named() {
    let Some(mut queue) = queue(4) else { return };
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let file = tempfile::tempfile().unwrap();
    assert!(queue.begin(full.as_fd(), offset(7), block(7).into()).is_none());
    assert!(queue.begin(file.as_fd(), offset(0), block(0).into()).is_none());
    let outcomes = [(); 2].map(|()| queue.wait(file.as_fd()).unwrap());
    assert!(queue.wait(file.as_fd()).is_none());
    for written in outcomes {
        assert_eq!(written.outcome.is_err(), written.offset_bytes == offset(7));
    }
    assert_written(&file, 1);
}

#[test]
fn what_the_kernel_does_not_take_is_written_at_once() {
    let Some(mut queue) = queue(2) else { return };
    let file = tempfile::tempfile().unwrap();
    assert!(queue.begin(file.as_fd(), offset(0), block(0).into()).is_none());
    queue.is_refused = true;
    let written = queue.begin(file.as_fd(), offset(1), block(1).into()).unwrap();
    written.outcome.unwrap();
    assert_eq!(queue.under_way(), 1);
    queue.wait(file.as_fd()).unwrap().outcome.unwrap();
    assert_written(&file, 2);
}

#[test]
fn what_the_kernel_has_left_is_finished() {
    let file = tempfile::tempfile().unwrap();
    let slot = Slot { offset_bytes: offset(0), source: block(0).into() };
    file.write_all_at(&block(0)[..BLOCK + 512], 0).unwrap();
    slot.finish(file.as_fd(), BLOCK + 512).outcome.unwrap();
    assert_written(&file, 1);
}
