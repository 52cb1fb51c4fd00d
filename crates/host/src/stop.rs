//! How the daemon is told to end: by `SIGTERM`, `SIGINT`, an operator, or its own program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// Whether the daemon ends. Shared by all of its threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopping(Arc<AtomicBool>);

impl Stopping {
    /// Whether threads are to finish.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Tells all threads to finish. The flag alone is passed: nothing is published with it.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends a daemon from another thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    sender: Arc<UnixStream>,
}

impl Stopper {
    /// Makes [`Daemon::run`](crate::Daemon::run) return. May be called any number of times.
    pub fn stop(&self) {
        // Full means that the daemon was told often enough; gone, that it ended.
        let _ = io::Write::write(&mut &*self.sender, b"s");
    }
}

/// The daemon's end of all the ways to stop it: readable once one was used.
#[derive(Debug)]
pub(crate) struct StopReceiver {
    receiver: UnixStream,
    stopper: Stopper,
}

impl StopReceiver {
    /// # Errors
    /// The kernel's, when descriptors are short.
    pub(crate) fn new() -> io::Result<Self> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        Ok(Self { receiver, stopper: Stopper { sender: Arc::new(sender) } })
    }

    /// Takes `SIGTERM` and `SIGINT`, which would otherwise kill the process, as orders to stop.
    ///
    /// # Errors
    /// The kernel's, when descriptors are short.
    pub(crate) fn take_signals(&self) -> io::Result<()> {
        for signal in [SIGTERM, SIGINT] {
            pipe::register(signal, self.stopper.sender.try_clone()?)?;
        }
        Ok(())
    }

    /// A way to stop the daemon.
    pub(crate) fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl AsFd for StopReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}
