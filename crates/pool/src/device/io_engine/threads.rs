//! Threads that each do one transfer at a time.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::thread;

use bindery_sys::direct::Transfer;

/// More threads wait for a device no better.
const MOST_THREADS: usize = 32;

/// Does all transfers by up to `depth` threads, of which the caller's is one. If threads are short, by
/// those that there are.
pub(super) fn run(
    file: BorrowedFd<'_>,
    depth: usize,
    transfers: &mut [Transfer<'_>],
) -> Result<(), (usize, io::Error)> {
    let threads = depth.min(transfers.len()).min(MOST_THREADS);
    let queue = Mutex::new(transfers.iter_mut().enumerate());
    let failed = Mutex::new(None);
    // Lets the queue go before the transfer is done.
    let take = || lock(&queue).next();
    let work = || {
        while let Some((index, transfer)) = take() {
            if let Err(error) = transfer.run(file) {
                // The others find nothing more to do.
                lock(&queue).by_ref().for_each(drop);
                lock(&failed).get_or_insert((index, error));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            if thread::Builder::new().name("pool-io".into()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while it has one of them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
