//! One thread of the archive's own for the store's asynchronous code, so that callers
//! block and need no runtime of theirs.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use bindery_sys::process::Origin;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::Fault;
use crate::process;

/// A thread that drives futures until it is dropped.
#[derive(Debug)]
pub(super) struct Runtime {
    origin: Origin,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Result of a future that runs on the archive's thread.
#[derive(Debug)]
pub(super) struct Pending<T>(mpsc::Receiver<Result<T, Fault>>);

impl Runtime {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("archive".into()).spawn(move || {
            // Whether it was sent or its sender dropped: it is over.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { origin: Origin::here(), handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Begins a future. A child of fork has not the thread that drives it, and is refused.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Pending<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        if let Err(error) = process::check(self.origin) {
            let _ = sender.send(Err(error.into()));
            return Pending(receiver);
        }
        self.handle.spawn(async move {
            // Nobody waits any more where an earlier failure was enough.
            let _ = sender.send(future.await);
        });
        Pending(receiver)
    }

    /// Waits for a future.
    pub(super) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        self.spawn(future).wait()
    }
}

impl<T> Pending<T> {
    /// Waits for it.
    ///
    /// # Panics
    /// If the future panicked.
    pub(super) fn wait(self) -> Result<T, Fault> {
        self.0.recv().expect("the archive's thread ends after those who wait for it")
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // Both ends are the parent's.
            std::mem::forget(self.stop.take());
            return std::mem::forget(self.thread.take());
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was already shown, and what it did to a future was met in `wait`.
            let _ = thread.join();
        }
    }
}
