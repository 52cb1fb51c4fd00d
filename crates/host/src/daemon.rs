//! The daemon: takes connections and shares them out.
//!
//! One thread takes connections. Each connection has a thread of its own: an operator's for as
//! long as it asks, a guest's for as long as the guest lives. Merging has its thread and workers
//! in [`HostEngine`], and each job its own ([`Jobs`]). All share [`Shared`], which locks inside.
//!
//! Ending takes nothing from guests: their shims serve their faults, and keep merged pages mapped
//! until the next daemon.

mod captures;
mod checkpoints;
mod control;
mod guests;
mod look;
mod pressure;
mod reload;
mod seats;
mod streams;
mod watch;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bindery_checkpoint::KeyError;
use bindery_sys::process;
use bindery_sys::socket::{self, Peer};
use bindery_sys::thread::spawn_without_signals;
use bindery_wire::control::MAGIC;

use crate::access::{Access, Group, Rights};
use crate::daemon_settings::{DaemonSettings, Refused};
use crate::endpoint::{Endpoint, EndpointError};
use crate::engine::HostEngine;
use crate::http::{HttpConfig, HttpError, Server};
use crate::jobs::Jobs;
use crate::keeper::Keeper;
use crate::keeper::keys::{CheckpointKeys, Keyring};
use crate::keeper::memory_pools::MemoryPools;
use crate::keeper::pauses::Pauses;
use crate::keeper::sources::Sources;
use crate::keeper::trackers::Trackers;
use crate::monitors::Monitors;
use crate::notify::{Notifier, Progress};
use crate::operator;
use crate::protocol::FailureKind;
use crate::registry::Registry;
use crate::stop::{Order, StopReceiver, Stopper, Stopping};
use control::Desk;
pub use reload::Reload;
use seats::Seats;

/// How long a new connection may take to say what it is.
const GREETING_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait when descriptors or threads are short, before the next connection is taken.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(200);

/// The subject of troubles with taking connections.
const CONNECTIONS: &str = "connections";

/// How long answers under way may take once the daemon ends.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(2);

/// How a daemon is to be run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub socket: PathBuf,
    /// Whose members may use the daemon, too: see [`access`](crate::access).
    pub group: Option<Group>,
    /// What can be changed later.
    pub settings: DaemonSettings,
    /// The most memory that the canonical pages of a domain may take; `None`: the most that shims can
    /// tell apart. Rounded down to whole pages, at least one.
    pub store_bytes_max: Option<u64>,
    /// Whether guests get private pages back before the daemon ends.
    pub unmerge_at_exit: bool,
    /// Where settings come from on `SIGHUP` and `bindery reload`.
    pub reload: Option<Reload>,
    /// Where it can be looked at over HTTP, if it can.
    pub http: Option<HttpConfig>,
    /// Pool of checkpoints, where an operator names no other: a directory with its files, or its device.
    pub checkpoint_pool: Option<PathBuf>,
    /// Key files of domains whose checkpoints are encrypted in their pools.
    pub checkpoint_keys: CheckpointKeys,
}

/// Why a daemon could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The socket cannot be had.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A setting cannot be.
    #[error(transparent)]
    Settings(#[from] Refused),
    /// A key file of checkpoints cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There is no HTTP server as asked for.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// Descriptors, threads or memory are short.
    #[error("cannot set up the daemon: {0}")]
    Resources(#[from] io::Error),
}

/// Ends the daemon when the engine does, however that ends: without it nothing would merge, and a
/// new daemon would be kept out.
struct StopAtEnd(Stopper);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Daemon {
    endpoint: Endpoint,
    http: Option<Server>,
    stop: StopReceiver,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: HostEngine,
    guests: Registry,
    http: Option<SocketAddr>,
    access: Access,
    notifier: Notifier,
    started: Instant,
    seats: Seats,
    /// Set while connections cannot be taken.
    is_short: AtomicBool,
    unmerge_at_exit: AtomicBool,
    reload: Option<Reload>,
    reloading: Mutex<()>,
    keeper: Arc<Keeper>,
    memory_pools: Arc<MemoryPools>,
    jobs: Arc<Jobs>,
    monitors: Monitors,
    trackers: Trackers,
    pauses: Arc<Pauses>,
    sources: Arc<Sources>,
    stopper: Stopper,
    stopping: Stopping,
}

/// Descriptors that the daemon has room for from the beginning: those of some thousand guests with a few lanes each.
const DESCRIPTORS: u32 = 8192;

impl Daemon {
    /// Takes the socket and listens. Guests that connect wait until [`Daemon::run`].
    ///
    /// # Errors
    /// [`BindError`]
    pub fn bind(config: Config) -> Result<Self, BindError> {
        config.settings.check()?;
        let keys = Keyring::read(&config.checkpoint_keys)?;
        let endpoint = Endpoint::claim(&config.socket, config.group.as_ref())?;
        let http = config.http.as_ref().map(Server::bind).transpose()?;
        if let Err(error) = process::raise_file_limits() {
            tracing::warn!("cannot raise the limits of files: {error}");
        }
        if let Err(error) = process::reserve_descriptors(DESCRIPTORS) {
            tracing::debug!("connections of many guests will take longer: {error}");
        }
        let monitors = Monitors::prepare(&config.socket, config.group.as_ref())?;
        let pauses = Pauses::prepare(&config.socket)?;
        let memory_pools = Arc::new(MemoryPools::prepare(&config.socket));
        let stop = StopReceiver::new()?;
        let shared = Shared {
            engine: HostEngine::new(config.settings, config.store_bytes_max),
            guests: Registry::default(),
            http: http.as_ref().map(Server::address),
            access: Access::new(config.group),
            notifier: Notifier::from_environment(),
            started: Instant::now(),
            seats: Seats::default(),
            is_short: AtomicBool::new(false),
            unmerge_at_exit: AtomicBool::new(config.unmerge_at_exit),
            reload: config.reload,
            reloading: Mutex::default(),
            keeper: Arc::new(
                Keeper::new(config.checkpoint_pool, keys).with_memory(Arc::clone(&memory_pools)),
            ),
            memory_pools: Arc::clone(&memory_pools),
            jobs: Arc::default(),
            monitors,
            trackers: Trackers::default(),
            pauses: Arc::new(pauses),
            sources: Arc::new(Sources::new(memory_pools)),
            stopper: stop.stopper(),
            stopping: Stopping::default(),
        };
        Ok(Self { endpoint, http, stop, shared: Arc::new(shared) })
    }

    /// Where it can be looked at over HTTP.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.shared.http
    }

    /// A way to end the daemon from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stop.stopper()
    }

    /// Has `SIGTERM` and `SIGINT` end the daemon, not the process, and `SIGHUP` read settings again.
    ///
    /// # Errors
    /// The kernel's, when descriptors are short.
    pub fn take_signals(&self) -> io::Result<()> {
        self.stop.take_signals()
    }

    /// Serves guests and operators until told to stop.
    ///
    /// # Errors
    /// The kernel's, if threads are short from the start, or waiting fails.
    pub fn run(mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let engine = thread::Builder::new().name("engine".into()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let _stop_at_end = StopAtEnd(shared.stopper.clone());
                shared.engine.run();
            }
        })?;
        thread::Builder::new().name("memory".into()).spawn({
            let shared = Arc::clone(&self.shared);
            move || pressure::watch_memory(&shared)
        })?;
        tracing::info!("listening on {}", self.endpoint.path().display());
        let http = self.http.take().map(|server| {
            tracing::info!("to be looked at on http://{}/", server.address());
            shared.keeper.read_ahead();
            server.start(Arc::<Shared>::clone(&self.shared))
        });
        let http = http.transpose()?;
        shared.notifier.say(Progress::Ready);
        let served = self.accept_all();
        shared.notifier.say(Progress::Stopping);
        // No period is waited for from here on.
        shared.engine.stop();
        // While the guests' threads still listen to them.
        if shared.unmerge_at_exit.load(Ordering::Relaxed) {
            shared.unmerge_all();
        }
        shared.stopping.set();
        shared.jobs.end_all(FAREWELL_PATIENCE);
        shared.sources.end_all();
        drop(http);
        let engine = engine.join();
        shared.engine.close_guests();
        let deadline = Instant::now() + FAREWELL_PATIENCE;
        while !shared.seats.are_free() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        tracing::info!("ended");
        if engine.is_err() {
            let message = "merging has failed (a bug: see the log); guests go on, start it again";
            return Err(io::Error::other(message));
        }
        served
    }

    /// Takes connections until told to stop.
    fn accept_all(&self) -> io::Result<()> {
        let mut reserve = Reserve::default();
        loop {
            let mut ready = [false; 2];
            let fds = [self.endpoint.as_fd(), self.stop.as_fd()];
            socket::wait_any_readable(&fds, &mut ready, None)?;
            if ready[1] {
                match self.stop.take()? {
                    Order::Stop => return Ok(()),
                    Order::Reload => self.shared.reload_aside(),
                }
                continue;
            }
            reserve.fill();
            match socket::accept(&self.endpoint).and_then(|stream| self.shared.attend(stream)) {
                Ok(()) => {
                    self.shared.is_short.store(false, Ordering::Relaxed);
                    if self.shared.engine.troubles().is_over(CONNECTIONS) {
                        tracing::info!("connections are taken again");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // The connection waits, or is lost and tried again by the shim.
                    self.shared.is_short.store(true, Ordering::Relaxed);
                    if self.shared.engine.troubles().note(CONNECTIONS, &error) {
                        tracing::error!("cannot take a connection: {error}");
                    }
                    if reserve.spend()
                        && let Ok(stream) = socket::accept(&self.endpoint)
                    {
                        self.shared.attend_in_need(stream);
                    }
                    thread::sleep(SHORTAGE_PAUSE);
                }
            }
        }
    }
}

/// One descriptor kept for the operator who asks why guests are turned away.
#[derive(Default)]
struct Reserve(Option<File>);

impl Reserve {
    fn fill(&mut self) {
        if self.0.is_none() {
            // None to be had: it is tried again with the next connection.
            self.0 = File::open("/dev/null").ok();
        }
    }

    /// Frees the descriptor. False if there is none.
    fn spend(&mut self) -> bool {
        self.0.take().is_some()
    }
}

impl Shared {
    /// Reloads in a thread of its own: looking up a group may take as long as the machine's directory.
    fn reload_aside(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let reloading = spawn_without_signals("reload", move || {
            if let Err(message) = shared.reload() {
                tracing::error!("nothing is changed: {message}");
            }
        });
        if let Err(error) = reloading {
            tracing::error!("nothing is changed: {error}");
        }
    }

    /// Gives a connection its thread.
    fn attend(self: &Arc<Self>, stream: OwnedFd) -> io::Result<()> {
        let shared = Arc::clone(self);
        spawn_without_signals("connection", move || shared.greet(stream)).map(drop)
    }

    /// Serves an operator with the last descriptor that there is. A guest needs more, and tries
    /// again.
    fn attend_in_need(self: &Arc<Self>, stream: OwnedFd) {
        let shared = Arc::clone(self);
        let served = spawn_without_signals("connection", move || {
            if let Some((peer, first)) = introduce(&stream)
                && first != MAGIC[0]
            {
                shared.serve_operator(&stream, peer);
            }
        });
        if let Err(error) = served
            && self.engine.troubles().note("operators", &error)
        {
            tracing::error!("cannot serve an operator: {error}");
        }
    }

    /// Finds out what a connection is, and serves it.
    fn greet(&self, stream: OwnedFd) {
        let Some((peer, first)) = introduce(&stream) else { return };
        if first != MAGIC[0] {
            return self.serve_operator(&stream, peer);
        }
        // The shim sends its magic in one piece, and no descriptor with it.
        let mut magic = [0; MAGIC.len()];
        let taken = socket::receive(&stream, &mut magic, &mut Vec::new());
        if taken.is_ok_and(|taken| taken == MAGIC.len()) && magic == MAGIC {
            self.serve_guest(stream, peer);
        }
    }

    fn serve_operator(&self, stream: &OwnedFd, peer: Peer) {
        let rights = self.access.rights(stream, peer);
        if rights == Rights::None {
            let reason = self.access.refusal_of_operator(peer);
            return operator::refuse(stream, FailureKind::Refused, &reason);
        }
        match self.seats.take(rights) {
            Ok(_seat) => {
                let desk = Desk { shared: self, rights, uid: peer.uid };
                operator::serve(stream, &desk, &self.stopping);
            }
            Err(served) => {
                let reason = format!("{served} operators are served already; try again");
                operator::refuse(stream, FailureKind::Busy, &reason);
            }
        }
    }
}

/// Who a peer is, and the first byte that it sends; `None` if it sends nothing.
fn introduce(stream: &OwnedFd) -> Option<(Peer, u8)> {
    let peer = socket::peer(stream).ok()?;
    if !socket::wait_readable(stream, GREETING_PATIENCE).ok()? {
        return None;
    }
    let mut first = [0];
    let count = socket::peek(stream, &mut first).ok()?;
    (count > 0).then_some((peer, first[0]))
}
