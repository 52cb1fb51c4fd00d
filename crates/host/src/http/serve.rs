//! The server's thread: connections, how many, and for how long.
//!
//! What a client can make the daemon hold is bounded: [`CONNECTIONS_MAX`] connections, each with a
//! buffer of [`REQUEST_BYTES_MAX`] and one answer at a time, for [`CONNECTION_TIME_MAX`] at most. One
//! more is taken and waits for a seat: then the one that has been silent for longest, and for
//! [`CROWDED_PATIENCE`] at least, gives its seat up. All others wait in the kernel's queue.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bindery_merge::Troubles;
use bindery_sys::thread::spawn_without_signals;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::access::Access;
use super::history::INTERVAL;
use super::peer::Ends;
use super::routes;
use super::site::Site;
use super::{HttpConfig, HttpError, Source};

/// Connections served at a time.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// The longest request that is read, its header lines included, in bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// Header lines of a request.
const HEADERS_MAX: usize = 64;

/// How long a request may take to arrive, and how long a connection may ask nothing.
pub(super) const HEADER_PATIENCE: Duration = Duration::from_secs(5);

/// How long a connection may ask nothing, or not yet all of a request, while another wants its seat.
pub(super) const CROWDED_PATIENCE: Duration = Duration::from_secs(1);

/// How long a connection is used. Clients open another.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);

/// How long the last answer of a connection may take to be read.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait when descriptors are short, before the next connection is taken.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(200);

/// A server that listens and does not answer yet.
pub(crate) struct Server {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    access: Access,
}

/// A server that answers, until this is dropped.
pub(crate) struct Serving {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// [`HttpError`]
    pub(crate) fn bind(config: &HttpConfig) -> Result<Self, HttpError> {
        let access = Access::new(config)?;
        let failed = |source| HttpError::Listen { address: config.address, source };
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(failed)?;
        let listener = StdListener::bind(config.address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = {
            let _context = runtime.enter();
            TcpListener::from_std(listener).map_err(failed)?
        };
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { runtime, listener, address, access })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from `source`, in a thread of its own.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub(crate) fn start(self, source: Arc<dyn Source>) -> io::Result<Serving> {
        let Self { runtime, listener, access, .. } = self;
        let site = Arc::new(Site::new(source, access, Instant::now()));
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = spawn_without_signals("http", move || {
            runtime.spawn(remember(Arc::clone(&site)));
            runtime.spawn(accept_all(listener, site));
            // Told to, or whoever could tell is gone. What is under way ends with the runtime.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Serving { stop: Some(stop), thread: Some(thread) })
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the HTTP server has failed (a bug); merging went on without it");
        }
    }
}

/// Takes samples for the history.
async fn remember(site: Arc<Site>) {
    let mut ticks = interval(INTERVAL);
    // A machine that was suspended, or short of CPU, has no samples to make up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        site.sample(Instant::now());
    }
}

/// Room for [`CONNECTIONS_MAX`] connections.
struct Seats {
    free: Arc<Semaphore>,
    /// Each notice has one connection give its seat up: those that are silent wait for it, and notices
    /// go to who waits longest.
    wanted: Arc<Notify>,
}

impl Seats {
    /// A seat, once there is one.
    async fn take(&self) -> OwnedSemaphorePermit {
        if let Ok(seat) = Arc::clone(&self.free).try_acquire_owned() {
            return seat;
        }
        self.wanted.notify_one();
        Arc::clone(&self.free).acquire_owned().await.expect("nobody closes it")
    }
}

async fn accept_all(listener: TcpListener, site: Arc<Site>) {
    let seats =
        Seats { free: Arc::new(Semaphore::new(CONNECTIONS_MAX)), wanted: Arc::new(Notify::new()) };
    let troubles = Troubles::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if troubles.is_over("connections") {
                    tracing::info!("connections are taken over HTTP again");
                }
                // Answers are small, and written in one piece.
                let _ = stream.set_nodelay(true);
                let ends = stream.local_addr().ok().map(|local| Ends { local, peer });
                let seat = seats.take().await;
                let (site, wanted) = (Arc::clone(&site), Arc::clone(&seats.wanted));
                tokio::spawn(async move {
                    attend(stream, site, &wanted, ends).await;
                    drop(seat);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if troubles.note("connections", &error) {
                    tracing::error!("cannot take a connection over HTTP: {error}");
                }
                sleep(SHORTAGE_PAUSE).await;
            }
        }
    }
}

/// Serves one connection to its end, or until it is silent and its seat is wanted. `ends` are its addresses, if it
/// has some.
pub(super) async fn attend<S>(stream: S, site: Arc<Site>, wanted: &Notify, ends: Option<Ends>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let asked = Notify::new();
    let service = service_fn(|request: Request<Incoming>| {
        asked.notify_one();
        // What comes with it is not read: nothing that is asked for has a body.
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let answer = routes::answer(&site, method, uri, headers, ends);
        async { Ok::<_, Infallible>(answer) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Who has said all that it will say waits for the answer still.
        .half_close(true)
        .header_read_timeout(HEADER_PATIENCE)
        .max_buf_size(REQUEST_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = async {
        match timeout(CONNECTION_TIME_MAX, connection.as_mut()).await {
            Ok(ended) => ended,
            Err(_) => {
                connection.as_mut().graceful_shutdown();
                timeout(FAREWELL_PATIENCE, connection).await.unwrap_or(Ok(()))
            }
        }
    };
    match first(pin!(served), pin!(give_way(&asked, wanted))).await {
        First::Left(Ok(())) => {}
        First::Left(Err(error)) => tracing::debug!("a connection over HTTP ended: {error}"),
        First::Right(()) => tracing::debug!("a silent connection over HTTP gave its seat up"),
    }
}

/// Waits until the connection has been silent for [`CROWDED_PATIENCE`] and its seat is wanted.
async fn give_way(asked: &Notify, wanted: &Notify) {
    loop {
        if timeout(CROWDED_PATIENCE, asked.notified()).await.is_ok() {
            continue;
        }
        if let First::Left(()) = first(pin!(wanted.notified()), pin!(asked.notified())).await {
            return;
        }
    }
}

/// What was there first.
enum First<A, B> {
    Left(A),
    Right(B),
}

/// Waits for one of both: for the left one if both are there.
async fn first<A: Future, B: Future>(
    mut left: Pin<&mut A>,
    mut right: Pin<&mut B>,
) -> First<A::Output, B::Output> {
    poll_fn(|context| {
        if let Poll::Ready(output) = left.as_mut().poll(context) {
            return Poll::Ready(First::Left(output));
        }
        right.as_mut().poll(context).map(First::Right)
    })
    .await
}
