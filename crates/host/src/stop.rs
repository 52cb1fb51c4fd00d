//! How the daemon is told to end: by `SIGTERM`, `SIGINT`, an operator, or its own program; and, the
//! same way, by `SIGHUP` to read its settings again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

/// Flag of the daemon's end. Shared by all of its threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopping(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    is_set: AtomicBool,
    /// Held while the flag is set, so that nobody begins to wait then.
    setting: Mutex<()>,
    was_set: Condvar,
}

impl Stopping {
    /// Returns true if threads are to finish.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }

    /// Tells all threads to finish. The flag alone is passed: nothing is published with it.
    pub(crate) fn set(&self) {
        let _setting = self.0.setting.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.is_set.store(true, Ordering::Relaxed);
        self.0.was_set.notify_all();
    }

    /// Sleeps until threads are to finish, or for `most`.
    pub(crate) fn sleep(&self, most: Duration) {
        let setting = self.0.setting.lock().unwrap_or_else(PoisonError::into_inner);
        // Whether the time is over or the flag was set, the caller looks.
        drop(self.0.was_set.wait_timeout_while(setting, most, |()| !self.is_set()));
    }
}

/// Ends a daemon from another thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    sender: Arc<UnixStream>,
    /// `SIGTERM` or `SIGINT` came, or the daemon is to end for another reason.
    is_signalled: Arc<AtomicBool>,
}

impl Stopper {
    /// Makes [`Daemon::run`](crate::Daemon::run) return. May be called any number of times.
    pub fn stop(&self) {
        // Before the byte: any byte that is there already will do. Gone: the daemon has ended.
        self.is_signalled.store(true, Ordering::Relaxed);
        let _ = io::Write::write(&mut &*self.sender, b"s");
    }
}

/// What the daemon is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// To end.
    Stop,
    /// To read its settings again.
    Reload,
}

/// The daemon's end of all the ways to tell it something: readable once one was used.
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
        let stopper = Stopper { sender: Arc::new(sender), is_signalled: Arc::default() };
        Ok(Self { receiver, stopper })
    }

    /// What was told first of what was not taken yet. Blocks until something was.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take(&self) -> io::Result<Order> {
        let mut byte = [0];
        io::Read::read_exact(&mut &self.receiver, &mut byte)?;
        // The flag is set before a byte is written; without it the byte is a SIGHUP's.
        let is_end = self.stopper.is_signalled.load(Ordering::Relaxed);
        Ok(if is_end { Order::Stop } else { Order::Reload })
    }

    /// Takes `SIGTERM` and `SIGINT`, which would otherwise kill the process, as orders to stop, and
    /// `SIGHUP` as one to reload.
    ///
    /// # Errors
    /// The kernel's, when descriptors are short.
    pub(crate) fn take_signals(&self) -> io::Result<()> {
        for signal in [SIGTERM, SIGINT] {
            flag::register(signal, Arc::clone(&self.stopper.is_signalled))?;
        }
        for signal in [SIGTERM, SIGINT, SIGHUP] {
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
