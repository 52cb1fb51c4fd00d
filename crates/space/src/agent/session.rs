//! One connection to a daemon, from `Hello` to whatever ends it.
//!
//! Runs on the control thread alone. Lanes are other threads; they end before the session does, so
//! that between sessions nobody merges and the stores in use stay as the next `Hello` names them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bindery_page::DigestKey;
use bindery_sys::{mapping, socket, table};

use super::announce::changes;
use super::lane::{Lane, Parts};
use super::source::{self, Ends};
use super::{Shared, log};
use crate::{AttachError, ReleaseError};
use bindery_wire::channel::{Channel, ChannelError};
use bindery_wire::control::{FromDaemon, FromShim, MAGIC, Offered, Region, VERSION};
use bindery_wire::frame::FrameError;

/// How long the daemon may leave a message of ours unread.
const PATIENCE: Duration = Duration::from_secs(1);

/// Offers that were taken, and an announcement, are each followed by a rest of so many times as long: a
/// program that maps and unmaps without end keeps the control thread busy for a fraction of the time only.
const REST_TIMES: u32 = 20;

/// The most lanes of one session: a daemon has one for each of its workers, of which there are 256 at
/// most, and one for each operator who watches the guest.
const LANES_MAX: usize = 272;

/// How a session ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The agent is to stop.
    Stopped,
    /// The daemon does not want this guest.
    Refused { reason: String },
    /// Everything was given back, as the daemon asked.
    Released,
    /// The daemon asked for everything back, and that could not be done: what is left is still
    /// managed.
    Kept(ReleaseError),
    /// The daemon closed the connection.
    Gone,
}

/// Why a session broke.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// Nobody listens, or the connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The daemon speaks nonsense.
    #[error("the daemon speaks nonsense: {0}")]
    Nonsense(#[from] FrameError),
    /// The daemon says things that do not belong here.
    #[error("the daemon sent {0}: restart it with the build that this shim is of")]
    Unexpected(&'static str),
    /// Its store cannot be used.
    #[error(transparent)]
    Store(#[from] AttachError),
}

impl From<ChannelError> for SessionError {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Nonsense(error) => Self::Nonsense(error),
            ChannelError::Io(error) => Self::Io(error),
        }
    }
}

pub(super) struct Session<'a> {
    shared: &'a Arc<Shared>,
    channel: Channel<FromShim, FromDaemon>,
    /// The domain's secret, once the daemon has welcomed us.
    key: Option<DigestKey>,
    /// The regions that the daemon knows of.
    announced: Vec<Region>,
    /// Ranges that it knows the VMM to have offered.
    offered: Vec<Offered>,
    /// Loss of a source that it was told of last, counted by the source.
    told_loss: Option<u32>,
    /// Regions may have come or gone since it was told.
    stale: bool,
    /// When it may be told again.
    next_announcement: Instant,
    next_taking: Instant,
    lanes: Lanes,
}

impl<'a> Session<'a> {
    /// Connects and says who we are.
    ///
    /// # Errors
    /// [`SessionError::Io`] if nobody listens.
    pub(super) fn open(shared: &'a Arc<Shared>) -> Result<Self, SessionError> {
        let stream = socket::connect(&shared.config.socket)?;
        socket::send_all(&stream, &MAGIC, &[], PATIENCE)?;
        let mut channel = Channel::new(stream);
        let hello = FromShim::Hello {
            version: VERSION,
            instance: shared.instance,
            name: shared.config.name.clone(),
            domain: shared.config.domain.clone(),
            command: shared.config.command.clone(),
            stores: shared.space.stores_in_use(),
        };
        channel.send(&hello, &[], PATIENCE)?;
        Ok(Self {
            shared,
            channel,
            key: None,
            announced: Vec::new(),
            offered: Vec::new(),
            told_loss: None,
            stale: false,
            next_announcement: Instant::now(),
            next_taking: Instant::now(),
            lanes: Lanes::default(),
        })
    }

    /// Whether the daemon has taken this guest.
    pub(super) const fn is_welcome(&self) -> bool {
        self.key.is_some()
    }

    /// Serves the daemon until the session ends.
    ///
    /// # Errors
    /// [`SessionError`].
    pub(super) fn run(&mut self) -> Result<Ended, SessionError> {
        loop {
            let mut ready = [false; 2];
            let waited = [self.channel.as_fd(), self.shared.wake.event().as_fd()];
            socket::wait_any_readable(&waited, &mut ready, self.patience())?;
            if ready[1] {
                self.shared.wake.clear();
                if self.shared.is_stopping() {
                    return Ok(Ended::Stopped);
                }
                self.stale = true;
            }
            if self.is_welcome() {
                if Instant::now() >= self.next_taking {
                    self.stale |= self.take_offers();
                }
                if self.stale && Instant::now() >= self.next_announcement {
                    self.announce()?;
                }
            }
            if ready[0] {
                if !self.channel.fill()? {
                    return Ok(Ended::Gone);
                }
                while let Some((message, fds)) = self.channel.pop()? {
                    if let Some(ended) = self.take(message, fds)? {
                        return Ok(ended);
                    }
                }
            }
        }
    }

    /// Returns how long to wait for a message or a wake.
    fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let offers = self.is_welcome().then(|| self.shared.next_offer()).flatten();
        let offers = offers.map(|rested| rested.max(self.next_taking));
        let announcement = self.stale.then_some(self.next_announcement);
        let times = [offers, announcement].into_iter().flatten();
        times.map(|time| time.saturating_duration_since(now)).min()
    }

    /// Takes what was offered and has rested. What cannot be taken is left to KSM. Returns true if
    /// regions came.
    fn take_offers(&mut self) -> bool {
        let started = Instant::now();
        let any = self.shared.space.take_offers(|address, bytes, error| {
            self.shared.note_refusal(&error);
            // Its owner may have unmapped it meanwhile, and kernels can be without KSM.
            // SAFETY: its owner has asked for this advice, which keeps content.
            let _ = unsafe { mapping::advise(address, bytes, libc::MADV_MERGEABLE) };
        });
        self.next_taking = Instant::now() + started.elapsed() * REST_TIMES;
        any
    }

    fn take(
        &mut self,
        message: FromDaemon,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<Ended>, SessionError> {
        match (message, self.key.as_ref()) {
            (FromDaemon::Welcome { digest_key, store, slots, segment_slots, .. }, None) => {
                self.shared.space.attach_store(store, slots, segment_slots)?;
                self.key = Some(DigestKey::from_secret(&digest_key));
                self.announce()?;
            }
            (FromDaemon::OpenLane, Some(key)) => {
                let [socket, window] = exactly(fds);
                self.lanes.open(self.shared, key.clone(), socket, window)?;
            }
            (FromDaemon::Bind { ranges, token }, Some(_)) => {
                let [socket, window] = exactly(fds);
                source::bind(self.shared, Ends::new(socket, window), &ranges, token);
                self.stale = true;
            }
            (FromDaemon::Rebind { token }, Some(_)) => {
                let [socket, window] = exactly(fds);
                source::rebind(self.shared, Ends::new(socket, window), &token);
            }
            (FromDaemon::Release, Some(_)) => return Ok(Some(self.release())),
            (FromDaemon::Refused { reason }, None) => return Ok(Some(Ended::Refused { reason })),
            (FromDaemon::Welcome { .. }, Some(_)) => {
                return Err(SessionError::Unexpected("Welcome twice"));
            }
            (FromDaemon::Refused { .. }, Some(_)) => {
                return Err(SessionError::Unexpected("Refused after Welcome"));
            }
            (
                FromDaemon::OpenLane
                | FromDaemon::Bind { .. }
                | FromDaemon::Rebind { .. }
                | FromDaemon::Release,
                None,
            ) => {
                return Err(SessionError::Unexpected("a request before Welcome"));
            }
        }
        Ok(None)
    }

    /// Tells the daemon which regions came and went since it was told last.
    fn announce(&mut self) -> Result<(), SessionError> {
        let begun = Instant::now();
        let current = self.shared.space.regions();
        let changes = changes(&self.announced, &current);
        for range in changes.removed {
            self.channel.send(&FromShim::RegionRemoved(range), &[], PATIENCE)?;
        }
        for region in changes.added {
            self.channel.send(&FromShim::RegionAdded(region), &[], PATIENCE)?;
        }
        self.announced = current;
        self.announce_offered()?;
        self.announce_loss()?;
        self.stale = false;
        self.next_announcement = begun + begun.elapsed() * REST_TIMES;
        Ok(())
    }

    /// Tells the daemon which ranges the VMM offered, and unmapped, since it was told last.
    fn announce_offered(&mut self) -> Result<(), SessionError> {
        let current = self.shared.space.offered();
        // Both ascend by number, and a number is never used again.
        let has = |ranges: &[Offered], number| {
            ranges.binary_search_by_key(&number, |range| range.number).is_ok()
        };
        for Offered { number, .. } in &self.offered {
            if !has(&current, *number) {
                self.channel.send(&FromShim::Withdrawn { number: *number }, &[], PATIENCE)?;
            }
        }
        for range in current.iter().filter(|range| !has(&self.offered, range.number)) {
            self.channel.send(&FromShim::Offered(*range), &[], PATIENCE)?;
        }
        self.offered = current;
        Ok(())
    }

    /// Tells the daemon that bound memory has lost its source, once for each time.
    fn announce_loss(&mut self) -> Result<(), SessionError> {
        let Some(source) = self.shared.space.bound_source() else { return Ok(()) };
        let Some((loss, missing_pages)) = source.loss() else { return Ok(()) };
        if self.told_loss.replace(loss) != Some(loss) {
            log::say(format_args!(
                "the source of {missing_pages} missing pages is lost; whoever touches them waits for the daemon \
                 to bring another"
            ));
            let lost = FromShim::SourceLost { token: source.token.clone(), missing_pages };
            self.channel.send(&lost, &[], PATIENCE)?;
        }
        Ok(())
    }

    /// Gives everything back, and says so. If that cannot be done the session ends: the daemon sees
    /// it, takes the guest again when it connects anew, and may ask again.
    fn release(&mut self) -> Ended {
        if let Some(pages) = self.shared.space.missing_pages() {
            return Ended::Kept(ReleaseError::Bound { pages });
        }
        self.lanes.end();
        if let Err(error) = self.shared.give_everything_back() {
            return Ended::Kept(error);
        }
        self.shared.note_end();
        let announced = self
            .announce()
            .and_then(|()| Ok(self.channel.send(&FromShim::Released, &[], PATIENCE)?));
        if let Err(error) = announced {
            // It is done all the same: there is nothing left for another session.
            log::say(format_args!("the daemon went away before it learned of that: {error}"));
        }
        Ended::Released
    }
}

impl Shared {
    /// Makes all memory private and unwatched.
    pub(super) fn give_everything_back(&self) -> Result<(), ReleaseError> {
        self.space.release().map(drop)
    }
}

/// The descriptors of a message: [`Channel`] gives each message as many as it needs.
fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> [OwnedFd; N] {
    fds.try_into().expect("a message comes with the descriptors that it says")
}

/// The lanes of a session.
#[derive(Default)]
struct Lanes {
    stopping: Arc<AtomicBool>,
    running: Vec<RunningLane>,
}

struct RunningLane {
    socket: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Lanes {
    /// Starts a lane. If memory or threads are short the lane is closed again, which the daemon
    /// sees; the session goes on.
    fn open(
        &mut self,
        shared: &Arc<Shared>,
        key: DigestKey,
        socket: OwnedFd,
        window: OwnedFd,
    ) -> Result<(), SessionError> {
        self.running.retain(|lane| !lane.thread.is_finished());
        if self.running.len() >= LANES_MAX {
            return Err(SessionError::Unexpected("more lanes than any daemon needs"));
        }
        let socket = Arc::new(socket);
        let parts = Parts {
            space: Arc::clone(&shared.space),
            key,
            socket: Arc::clone(&socket),
            window: File::from(window),
            stopping: Arc::clone(&self.stopping),
        };
        let started = Lane::new(parts).and_then(|mut lane| {
            table::spawn("bindery-lane", move || {
                if let Err(error) = lane.serve() {
                    log::say(format_args!(
                        "a lane to the daemon broke: {error}; the guest goes on"
                    ));
                }
                lane.close();
            })
        });
        match started {
            Ok(thread) => self.running.push(RunningLane { socket, thread }),
            Err(error) => log::say(format_args!(
                "no thread or memory for merging this guest: {error}; it goes on as it is"
            )),
        }
        Ok(())
    }

    /// Ends all lanes and waits for them: as long as the longest request under way, which looks
    /// whether it is to stop between runs of pages.
    fn end(&mut self) {
        // A flag alone: the socket's end is what wakes a lane.
        self.stopping.store(true, Ordering::Relaxed);
        for lane in &self.running {
            // A socket that has no other end any more needs no shutting down.
            let _ = socket::shutdown(&lane.socket);
        }
        for lane in self.running.drain(..) {
            if lane.thread.join().is_err() {
                log::say(format_args!("a lane ended by a bug of ours; the guest goes on"));
            }
        }
        self.stopping = Arc::default();
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.end();
    }
}
