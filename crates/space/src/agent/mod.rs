//! The part of the daemon's work that every guest process does for itself.
//!
//! An [`Agent`] is one thread that keeps a control connection to the daemon, and the lanes that the
//! daemon asks for. It tells the daemon which regions there are, and looks for a new daemon when
//! the old one goes away: the guest's memory stays as it is meanwhile, merged pages included, and
//! everything that a guest waits for is served by [`Space`]'s own threads.
//!
//! # Concurrency
//! [`Agent::regions_changed`] may be called from any thread, also in the middle of the VMM's
//! `munmap`: it waits for nobody but who links work into a queue, for some loads. The agent's threads
//! block all signals and never touch guest memory but through a [`Worker`](crate::Worker).
//!
//! # Ends
//! The agent ends when a daemon refuses the guest before any has taken it, when one asks for everything
//! back (`bindery unmanage`), and on [`Agent::stop`]. [`Agent::has_ended`] then tells callers that memory
//! advised from now on is the kernel's. A guest that a daemon took may have pages that are merged, which
//! only a daemon can merge anew or unmerge: when the next one refuses it, it asks again.

mod announce;
pub mod config;
mod lane;
pub mod log;
mod repeats;
mod request;
mod session;
mod source;

use std::fmt::Display;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use self::config::AgentConfig;
use bindery_sys::table::Bell;
use bindery_sys::{socket, table};

use self::repeats::Repeats;
use self::session::{Ended, Session, SessionError};
use crate::{ManageError, Space};

/// How soon a new connection is tried after one that worked, and how rarely in the end.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How rarely a guest asks again in the end that was taken before and is refused now: that may pass, and
/// each try is a line in the daemon's log.
const REFUSED_BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The agent of this process.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the control thread shares with everybody else.
#[derive(Debug)]
struct Shared {
    space: Arc<Space>,
    config: AgentConfig,
    /// Tells one process from the next that has its number.
    instance: u64,
    wake: &'static Bell,
    stopping: AtomicBool,
    ended: AtomicBool,
    /// The control thread will look for offers by itself, no later than the next one has rested.
    awaits_offers: AtomicBool,
    repeats: Mutex<Repeats>,
}

impl Agent {
    /// Starts the control thread, which looks for the daemon for as long as the process lives.
    ///
    /// # Errors
    /// When threads or descriptors are short.
    pub fn start(space: Arc<Space>, config: AgentConfig) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            space,
            config: config.bounded(),
            // Keyed from the kernel's random source.
            instance: RandomState::new().build_hasher().finish(),
            wake: Bell::new()?,
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            awaits_offers: AtomicBool::new(false),
            repeats: Mutex::default(),
        });
        let control = Arc::clone(&shared);
        let thread = table::spawn("bindery-ctl", move || control.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Says that memory came under management, or went: the daemon is told soon after. Never blocks.
    pub fn regions_changed(&self) {
        self.shared.wake.ring();
    }

    /// Says that a range is to be reported as offered, or no more. Never blocks.
    pub fn offered_ranges_changed(&self) {
        self.shared.wake.ring();
    }

    /// Says that memory was offered. Never blocks, and mostly does nothing: of offers that rest, the first
    /// has rested first.
    pub fn offered(&self) {
        // SeqCst, with the store and load of `next_offer`: either the offer is found there, or this finds
        // that it was not.
        if !self.shared.awaits_offers.swap(true, Ordering::SeqCst) {
            self.shared.wake.ring();
        }
    }

    /// Logs that offered memory cannot be taken, unless much like it was logged before.
    pub fn note_refusal(&self, error: &ManageError) {
        self.shared.note_refusal(error);
    }

    /// Logs a message, unless ones of its kind were logged often before.
    pub fn say_rarely(&self, kind: &str, message: impl Display) {
        self.shared.say_rarely(kind.to_owned(), message);
    }

    /// Whether no daemon will merge this guest any more: it was refused from the start, or told to step
    /// aside.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Relaxed)
    }

    /// Call before `fork`, in the thread that forks: waits until no page is in transit, and keeps it
    /// so until [`after_fork_in_parent`](Self::after_fork_in_parent). The child may call nothing of
    /// its copy of the agent or the space: its memory is its own, unmanaged. What it still has merged
    /// stays what it is.
    pub fn before_fork(&self) {
        self.shared.space.pause();
    }

    /// Call after `fork`, in the parent.
    pub fn after_fork_in_parent(&self) {
        self.shared.space.resume();
    }

    /// Ends the agent and waits for its threads. Managed memory stays managed and merged.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.wake.ring();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.join().expect("the control thread handles every error that it meets");
        }
    }
}

impl Shared {
    fn note_refusal(&self, error: &ManageError) {
        self.say_rarely(error.kind(), format_args!("{error}; left to KSM"));
    }

    fn say_rarely(&self, kind: String, message: impl Display) {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner).note(kind, message);
    }

    /// Returns when the next offer will have rested. If there is none, whoever offers any wakes the control
    /// thread.
    fn next_offer(&self) -> Option<Instant> {
        self.awaits_offers.store(false, Ordering::SeqCst);
        let next = self.space.next_offer();
        if next.is_some() {
            self.awaits_offers.store(true, Ordering::SeqCst);
        }
        next
    }

    fn is_stopping(&self) -> bool {
        // A flag alone; the wake that comes with it orders the two.
        self.stopping.load(Ordering::Relaxed)
    }

    /// The control thread: session after session.
    fn run(self: Arc<Self>) {
        let mut backoff = BACKOFF_MIN;
        let mut complaint = Complaint::default();
        // A daemon has taken this guest.
        let mut is_known = false;
        while !self.is_stopping() {
            let (was_welcome, result) = match Session::open(&self) {
                Ok(mut session) => {
                    let result = session.run();
                    (session.is_welcome(), result)
                }
                Err(error) => (false, Err(error)),
            };
            if was_welcome {
                is_known = true;
                backoff = BACKOFF_MIN;
                complaint = Complaint::default();
            }
            let mut backoff_max = BACKOFF_MAX;
            match result {
                Ok(Ended::Stopped) => return,
                Ok(Ended::Refused { reason }) if !is_known => return self.end_refused(&reason),
                Ok(Ended::Refused { reason }) => {
                    complaint.turned_away(&self.config, &reason);
                    backoff_max = REFUSED_BACKOFF_MAX;
                }
                Ok(Ended::Released) => return self.end_released(),
                Ok(Ended::Kept(error)) => log::say(format_args!(
                    "cannot step aside: {error}; this guest stays managed, and can be asked again"
                )),
                Ok(Ended::Gone) => complaint.gone(&self.config, was_welcome),
                Err(error) => complaint.failed(&self.config, &error),
            }
            self.rest(backoff.min(backoff_max));
            backoff = (backoff * 2).min(backoff_max);
        }
    }

    /// From here on memory that is offered is the kernel's. Before the daemon hears of the end.
    fn note_end(&self) {
        // A flag alone: nothing is published with it.
        self.ended.store(true, Ordering::Relaxed);
    }

    fn end_refused(&self, reason: &str) {
        self.note_end();
        let socket = self.config.socket.display();
        log::say(format_args!("the daemon at {socket} refuses this guest: {reason}"));
        // Nothing is merged, and there is nothing to gain from watching the memory.
        if let Err(error) = self.give_everything_back() {
            log::say(format_args!("this guest's memory stays watched for nothing: {error}"));
        }
    }

    fn end_released(&self) {
        log::say(format_args!(
            "this guest has stepped aside: all its memory is private; restart it to merge it again"
        ));
    }

    /// Waits before the next try, unless the agent is to stop.
    fn rest(&self, pause: Duration) {
        let deadline = Instant::now() + pause;
        while !self.is_stopping() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            match socket::wait_readable(self.wake.event(), left) {
                Ok(true) => self.wake.clear(),
                Ok(false) => return,
                // Waiting needs kernel memory; without any, time passes all the same.
                Err(_) => std::thread::sleep(left),
            }
        }
    }
}

/// What was complained of last: the same is not said again at every try.
#[derive(Default)]
struct Complaint {
    said: String,
}

impl Complaint {
    fn gone(&mut self, config: &AgentConfig, was_welcome: bool) {
        let socket = config.socket.display();
        if was_welcome {
            self.say(format!(
                "the daemon at {socket} went away; this guest goes on as it is, and waits for the \
                 next one"
            ));
        } else {
            self.say(format!("the daemon at {socket} hung up on this guest; trying again"));
        }
    }

    fn turned_away(&mut self, config: &AgentConfig, reason: &str) {
        let socket = config.socket.display();
        self.say(format!(
            "the daemon at {socket} refuses this guest: {reason}; it goes on as it is, and asks again"
        ));
    }

    fn failed(&mut self, config: &AgentConfig, error: &SessionError) {
        let socket = config.socket.display();
        let nobody = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        match error {
            SessionError::Io(error) if nobody.contains(&error.kind()) => self.say(format!(
                "no daemon at {socket} yet: start one with `bindery daemon`; merging begins when it \
                 is there"
            )),
            error => self.say(format!("no daemon at {socket} to work with: {error}; trying again")),
        }
    }

    fn say(&mut self, text: String) {
        if text != self.said {
            log::say(format_args!("{text}"));
            self.said = text;
        }
    }
}
