use super::*;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use crate::direct::Buffer;

const BLOCK: usize = 4096;

/// None, told loudly, where io_uring is refused.
fn ring(depth: usize) -> Option<Ring> {
    match Ring::new(depth) {
        Ok(ring) => Some(ring),
        Err(error) => {
            bindery_testkit::skipped!("io_uring: {error}");
            None
        }
    }
}

fn block(seed: usize) -> Buffer {
    let mut block = Buffer::zeroed(BLOCK);
    block.fill(seed as u8 ^ 0x5a);
    block[..8].copy_from_slice(&seed.to_le_bytes());
    block
}

fn write_all(ring: &mut Ring, file: &File, blocks: &[Buffer]) {
    let mut writes: Vec<Transfer<'_>> = blocks
        .iter()
        .enumerate()
        .map(|(at, block)| Transfer::write((at * BLOCK) as u64, block))
        .collect();
    ring.run(file.as_fd(), &mut writes).unwrap();
}

fn read_all(ring: &mut Ring, file: &File, count: usize) -> Result<Vec<Buffer>, RunError> {
    let mut blocks: Vec<Buffer> = (0..count).map(|_| Buffer::zeroed(BLOCK)).collect();
    let mut reads: Vec<Transfer<'_>> = blocks
        .iter_mut()
        .enumerate()
        .map(|(at, block)| Transfer::read((at * BLOCK) as u64, block))
        .collect();
    ring.run(file.as_fd(), &mut reads)?;
    Ok(blocks)
}

#[test]
fn more_transfers_than_the_ring_is_deep() {
    let file = tempfile::tempfile().unwrap();
    for depth in [1, 3, 64] {
        let Some(mut ring) = ring(depth) else { return };
        let blocks: Vec<Buffer> = (0..200).map(|at| block(at * depth)).collect();
        write_all(&mut ring, &file, &blocks);
        let found = read_all(&mut ring, &file, blocks.len()).unwrap();
        assert!(found.iter().zip(&blocks).all(|(found, block)| **found == **block));
        ring.run(file.as_fd(), &mut []).unwrap();
    }
}

/// The end is met by some of many; the ring serves on afterwards.
#[test]
fn the_first_failure_is_told_when_none_is_under_way() {
    let Some(mut ring) = ring(16) else { return };
    let file = tempfile::tempfile().unwrap();
    write_all(&mut ring, &file, &(0..100).map(block).collect::<Vec<_>>());
    let Err(RunError::Transfer { index, error }) = read_all(&mut ring, &file, 300) else {
        panic!("there are no 300 blocks")
    };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!((100..300).contains(&index), "{index}");
    assert_eq!(ring.ring.ring.completion().len(), 0, "a completion was left behind");
    assert!(read_all(&mut ring, &file, 100).is_ok());

    let read_only = File::open("/proc/self/exe").unwrap();
    let from = block(1);
    let refused = ring.run(read_only.as_fd(), &mut [Transfer::write(0, &from)]);
    let Err(RunError::Transfer { index: 0, error }) = refused else { panic!("{refused:?}") };
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
}

/// A panic between asking and reaping waits for the kernel, as an error does.
#[test]
fn a_panic_waits_for_what_is_under_way() {
    let Some(mut ring) = ring(32) else { return };
    let file = tempfile::tempfile().unwrap();
    write_all(&mut ring, &file, &(0..32).map(block).collect::<Vec<_>>());
    let mut blocks: Vec<Buffer> = (0..32).map(|_| Buffer::zeroed(BLOCK)).collect();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut flight = Flight::new(&mut ring.ring).unwrap();
        for (at, block) in blocks.iter_mut().enumerate() {
            flight.push(file.as_fd(), at, &Transfer::read((at * BLOCK) as u64, block));
        }
        flight.submit_and_wait().unwrap();
        panic!("with most of them not reaped");
    }));
    assert!(panicked.is_err());
    assert!(blocks.iter().enumerate().all(|(at, found)| **found == *block(at)));
    assert!(read_all(&mut ring, &file, 32).is_ok());
}

/// What was pushed and never taken speaks of memory that is gone.
#[test]
fn entries_left_behind_are_never_submitted() {
    let Some(mut ring) = ring(4) else { return };
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[1; BLOCK], 0).unwrap();
    let mut gone = Buffer::zeroed(BLOCK);
    Flight::new(&mut ring.ring).unwrap().push(file.as_fd(), 0, &Transfer::read(0, &mut gone));
    let refused = read_all(&mut ring, &file, 1);
    assert!(matches!(refused, Err(RunError::Ring(_))));
    assert_eq!(gone[0], 0);
}

extern "C" fn do_nothing(_: libc::c_int) {}

/// Signals interrupt the wait (`EINTR`), never a transfer.
#[test]
fn signals_do_not_end_a_run() {
    let Some(mut ring) = ring(8) else { return };
    // SAFETY: needs a handler that does nothing unsafe in a signal; it does nothing. SIGURG is ignored
    // by default and used by no other test.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as *const () as usize;
        libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut());
    }
    // SAFETY: only asks who this thread is.
    let us = unsafe { libc::pthread_self() };
    let file = tempfile::tempfile().unwrap();
    let blocks: Vec<Buffer> = (0..64).map(block).collect();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: needs a thread that lives; it waits for this one at the scope's end.
                unsafe { libc::pthread_kill(us, libc::SIGURG) };
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        });
        for _ in 0..50 {
            write_all(&mut ring, &file, &blocks);
            file.sync_data().unwrap();
            assert!(read_all(&mut ring, &file, 64).is_ok());
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
