//! A child that runs until it is asked to end, and puts things back then.

use std::io;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const POLL: Duration = Duration::from_millis(20);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A running child. Dropping it sends `SIGTERM` and waits; a child that still runs after 20 seconds is
/// killed.
#[derive(Debug)]
pub struct BackgroundProcess(Child);

impl BackgroundProcess {
    /// Starts a command.
    ///
    /// # Errors
    /// When the child cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Pid of the child.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns false once the child has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Kills the child, as `kill -9` does.
    pub fn kill(mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        if self.is_running() {
            // Not waited for yet, so the pid is still the child's own.
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
