//! Syncs of one open file, of which the kernel reports a lost write to one alone.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Result of earlier syncs, which holds for the syncs and writes that come after it.
#[derive(Debug, Default)]
pub(super) struct SyncGate {
    /// Set once.
    failed: AtomicBool,
    alone: Mutex<()>,
}

/// An earlier sync failed.
#[derive(Debug)]
pub(super) struct Closed;

impl SyncGate {
    /// Refuses to go on after a sync that failed. Relaxed: who does not see it yet writes beside the sync that fails.
    pub(super) fn check(&self) -> Result<(), Closed> {
        if self.failed.load(Ordering::Relaxed) { Err(Closed) } else { Ok(()) }
    }

    /// Syncs, and notes whether that failed.
    ///
    /// What was lost on the way from the page cache is told once for each open file (kernel:
    /// `file_check_and_advance_wb_err`): of two syncs at once both wait for the write that fails, and
    /// one of them succeeds. So through the cache there is one at a time. Past it, a write tells
    /// of its own error, and flushes of the disk are told apart.
    pub(super) fn sync(
        &self,
        is_cached: bool,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> Result<io::Result<()>, Closed> {
        let _alone = is_cached.then(|| self.alone.lock().unwrap_or_else(PoisonError::into_inner));
        self.check()?;
        let outcome = sync();
        self.failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_sync_beside_one_that_fails_does_not_succeed() {
        let gate = SyncGate::default();
        let (begun, has_begun) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        std::thread::scope(|scope| {
            let gate = &gate;
            scope.spawn(move || {
                let failing = gate.sync(true, || {
                    begun.send(()).unwrap();
                    // The other one, were it let in.
                    let _ = has_ended.recv_timeout(Duration::from_millis(100));
                    Err(io::Error::from_raw_os_error(5))
                });
                assert!(failing.unwrap().is_err());
            });
            has_begun.recv().unwrap();
            let beside = gate.sync(true, || {
                let _ = ended.send(());
                Ok(())
            });
            assert!(beside.is_err(), "it is said to have made durable what was lost");
        });
        assert!(gate.check().is_err());
    }
}
