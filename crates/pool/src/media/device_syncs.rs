//! DeviceSyncs of one device, shared: whoever asks while one is under way waits for the next, which covers
//! all that asked.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::device::Device;

/// The syncs of one device.
#[derive(Debug, Default)]
pub(crate) struct DeviceSyncs {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    ended: u64,
    /// After one error nobody knows what the device holds (fsync(2)): nothing is durable any more.
    failed: Option<Arc<io::Error>>,
}

impl DeviceSyncs {
    /// Returns once a sync that began after the call has ended. How many syncs there were before it
    /// shows how many were shared.
    ///
    /// # Errors
    /// The device's, and the same ever after.
    pub(crate) fn sync(&self, device: &dyn Device) -> Result<(), Arc<io::Error>> {
        let mut state = self.state();
        let mine = state.begun + 1;
        loop {
            if let Some(error) = &state.failed {
                return Err(Arc::clone(error));
            }
            if state.ended >= mine {
                return Ok(());
            }
            if state.begun > state.ended {
                state = self.ended.wait(state).expect("its numbers are whole at any time");
                continue;
            }
            state.begun += 1;
            let number = state.begun;
            drop(state);
            // Whoever waits for it must hear of its end, whatever ended it.
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| device.sync()));
            let (synced, panicked) = match outcome {
                Ok(synced) => (synced, None),
                Err(payload) => {
                    (Err(io::Error::other("a sync of the device panicked")), Some(payload))
                }
            };
            state = self.state();
            state.ended = number;
            state.failed = synced.err().map(Arc::new);
            self.ended.notify_all();
            if let Some(payload) = panicked {
                drop(state);
                panic::resume_unwind(payload);
            }
        }
    }

    /// Returns the number of syncs.
    pub(crate) fn count(&self) -> u64 {
        self.state().ended
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("its numbers are whole at any time")
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use bindery_sys::direct::Buffer;

    use super::*;

    /// A device whose syncs panic after a while.
    #[derive(Debug, Default)]
    struct Panicking {
        syncs: AtomicBool,
    }

    impl Device for Panicking {
        fn bytes(&self) -> u64 {
            0
        }

        fn read(&self, _: u64, _: &mut Buffer) -> io::Result<()> {
            unreachable!("nothing is read")
        }

        fn write(&self, _: u64, _: &Buffer) -> io::Result<()> {
            unreachable!("nothing is written")
        }

        fn sync(&self) -> io::Result<()> {
            self.syncs.store(true, Ordering::Release);
            // Time for the other to wait; with less it begins later, and is told as well.
            thread::sleep(Duration::from_millis(50));
            panic!("as a device may");
        }

        fn discard(&self, _: u64, _: u64) -> io::Result<()> {
            unreachable!("nothing is discarded")
        }

        fn grow(&self, _: u64) -> io::Result<u64> {
            unreachable!("it does not grow")
        }

        fn file(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    #[test]
    fn whoever_waits_for_a_sync_that_panics_is_told() {
        let (device, syncs) = (Arc::new(Panicking::default()), Arc::new(DeviceSyncs::default()));
        let theirs = (Arc::clone(&device), Arc::clone(&syncs));
        let first = thread::spawn(move || theirs.1.sync(&*theirs.0));
        while !device.syncs.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let error = syncs.sync(&*device).unwrap_err();
        assert_eq!(error.to_string(), "a sync of the device panicked");
        assert!(first.join().is_err(), "the panic goes on where it began");
    }
}
