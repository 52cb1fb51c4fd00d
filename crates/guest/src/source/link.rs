//! The daemon's end of a source's connection.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bindery_sys::memfd;
use bindery_sys::socket::{
    receive, refuse_descriptors, send_now, seqpacket_pair, shutdown, wait_readable,
};
use bindery_units::PageRange;
use bindery_wire::control::PAGES_MAX;
use bindery_wire::source::{FromGuest, GuestWord, WINDOW_BYTES};

use super::wanted::Wanted;
use crate::accept::stalled;
use crate::{GuestError, LaneEnds};

/// Time that a guest may take to bind memory: it gives back what is managed of it, and discards it.
const BIND_PATIENCE: Duration = Duration::from_secs(30);

/// Number of runs that a guest may say it lacks.
const LACKS_MAX: usize = 1 << 22;

/// A connection over which a guest asks for its memory.
#[derive(Debug)]
pub struct SourceLink {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) window: File,
    pub(super) wanted: Wanted,
    pub(super) unsent: Arc<AtomicU64>,
}

/// Look at a source that is served by another thread.
#[derive(Clone, Debug)]
pub struct SourceHandle {
    socket: Arc<OwnedFd>,
    unsent: Arc<AtomicU64>,
}

impl SourceHandle {
    /// Returns the number of pages that were not sent yet.
    #[must_use]
    pub fn unsent_pages(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Ends the connection: [`SourceLink::serve`] returns, and the guest looks for another source.
    pub fn hang_up(&self) {
        // It fails if the guest has gone: then there is nothing to end.
        let _ = shutdown(&*self.socket);
    }
}

impl SourceLink {
    /// Makes a connection; whoever gets the other end is the guest.
    ///
    /// # Errors
    /// [`GuestError::Daemon`] when descriptors or memory are short.
    pub(super) fn open() -> Result<(Self, LaneEnds), GuestError> {
        let open = || {
            let (socket, theirs) = seqpacket_pair()?;
            refuse_descriptors(&socket)?;
            let window = memfd::create("bindery-source", WINDOW_BYTES as u64)?;
            let ends = LaneEnds { socket: theirs, window: window.try_clone()? };
            let (socket, wanted, unsent) = (Arc::new(socket), Wanted::default(), Arc::default());
            Ok((Self { socket, window, wanted, unsent }, ends))
        };
        let doing = "opening a source (is RLIMIT_NOFILE too low?)";
        open().map_err(|error| GuestError::Daemon { doing, error })
    }

    /// Takes a socket that another process made, to ask for pages in the place of a guest. Sends the window over it,
    /// and waits for what is missing, half a minute at most.
    ///
    /// # Errors
    /// [`GuestError`] if the other end does not speak as it should, or has gone; when descriptors or memory are short.
    pub fn over(socket: OwnedFd) -> Result<Self, GuestError> {
        let open = || {
            refuse_descriptors(&socket)?;
            memfd::create("bindery-source", WINDOW_BYTES as u64)
        };
        let doing = "opening a source (is RLIMIT_NOFILE too low?)";
        let window = open().map_err(|error| GuestError::Daemon { doing, error })?;
        send_now(&socket, &[1], &[window.as_fd()])
            .map_err(|error| GuestError::of_socket("sending a source's window", error))?;
        let socket = Arc::new(socket);
        let mut link = Self { socket, window, wanted: Wanted::default(), unsent: Arc::default() };
        link.await_bound()?;
        Ok(link)
    }

    /// Returns a look at it for other threads.
    #[must_use]
    pub fn handle(&self) -> SourceHandle {
        SourceHandle { socket: Arc::clone(&self.socket), unsent: Arc::clone(&self.unsent) }
    }

    pub(super) fn want(&mut self, pages: PageRange) -> bool {
        let is_new = self.wanted.add(pages);
        if is_new {
            self.unsent.fetch_add(u64::from(pages.count), Ordering::Relaxed);
        }
        is_new
    }

    /// Waits until the guest says that its memory is bound. Takes in what it lacks.
    pub(super) fn await_bound(&mut self) -> Result<(), GuestError> {
        let deadline = Instant::now() + BIND_PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let comes = wait_readable(&*self.socket, left);
            let doing = "waiting for a guest";
            if !comes.map_err(|error| GuestError::Daemon { doing, error })? {
                return Err(stalled("to bind memory", BIND_PATIENCE));
            }
            let frame = read_frame(&self.socket)?;
            match frame.word {
                GuestWord::Bound => return Ok(()),
                GuestWord::Failed => {
                    let error = std::io::Error::from_raw_os_error(frame.value.cast_signed());
                    return Err(GuestError::Failed { request: "binding memory", error });
                }
                GuestWord::Lacks => {
                    let pages = frame.pages().filter(|pages| pages.end().0 <= PAGES_MAX);
                    let is_new = pages.is_some_and(|pages| self.want(pages));
                    if !is_new || self.wanted.len() > LACKS_MAX {
                        return Err(GuestError::nonsense(
                            "missing pages that are none, or too many",
                        ));
                    }
                }
                _ => return Err(GuestError::nonsense("a source that is used before it is bound")),
            }
        }
    }
}

/// Reads one frame, waiting for it.
pub(super) fn read_frame(socket: &OwnedFd) -> Result<FromGuest, GuestError> {
    let mut bytes = [0; size_of::<FromGuest>() + 1];
    let count = receive(socket, &mut bytes, &mut Vec::new())
        .map_err(|error| GuestError::of_socket("reading from a source's guest", error))?;
    match count {
        0 => Err(GuestError::Gone),
        count => FromGuest::read(&bytes[..count])
            .ok_or_else(|| GuestError::nonsense(format!("a frame of {count} bytes to a source"))),
    }
}
