//! A listener on a thread of its own, for as long as its owner wants.

use std::future::Future;
use std::net::SocketAddr;
use std::thread::JoinHandle;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Ends its thread and closes its connections when it is dropped.
pub(crate) struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Serves each connection to a fresh port of this machine.
    pub(crate) fn serve<Serving>(
        serve: impl Fn(TcpStream) -> Serving + Send + 'static,
    ) -> (Self, SocketAddr)
    where
        Serving: Future<Output = ()> + Send + 'static,
    {
        let (stop, mut stopped) = oneshot::channel();
        let (told, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                loop {
                    tokio::select! {
                        _ = &mut stopped => break,
                        accepted = listener.accept() => {
                            tokio::spawn(serve(accepted.unwrap().0));
                        }
                    }
                }
            });
        });
        let address = address.recv().unwrap();
        (Self { stop: Some(stop), thread: Some(thread) }, address)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
