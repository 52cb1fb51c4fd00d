//! Syncs of one device, shared: whoever asks while one is under way waits for the next, which covers
//! all that asked.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::device::Device;

/// The syncs of one device.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
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

impl Syncs {
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
            let outcome = device.sync();
            state = self.state();
            state.ended = number;
            state.failed = outcome.err().map(Arc::new);
            self.ended.notify_all();
        }
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.state().ended
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("its numbers are whole at any time")
    }
}
