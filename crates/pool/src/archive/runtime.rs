//! Where the store's asynchronous code runs: on one thread of the archive's own, so that callers
//! block and need no runtime of theirs.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread that drives futures until it is dropped.
#[derive(Debug)]
pub(super) struct Runtime {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What a future will give.
#[derive(Debug)]
pub(super) struct Pending<T>(mpsc::Receiver<T>);

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
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Begins a future.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Pending<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // Nobody waits any more where an earlier failure was enough.
            let _ = sender.send(future.await);
        });
        Pending(receiver)
    }

    /// Waits for a future.
    pub(super) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.spawn(future).wait()
    }
}

impl<T> Pending<T> {
    /// Waits for it.
    ///
    /// # Panics
    /// If the future panicked.
    pub(super) fn wait(self) -> T {
        self.0.recv().expect("the archive's thread ends after those who wait for it")
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was already shown, and what it did to a future was met in `wait`.
            let _ = thread.join();
        }
    }
}
