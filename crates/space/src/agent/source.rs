//! The connection to a [source](crate::source): the thread that serves bound memory.
//!
//! The control thread binds memory and opens connections; the thread `bindery-source` reads faults, asks for
//! pages, and fills in what comes. It uses no heap, writes no log and waits for nothing but its three
//! descriptors: guest threads, the VMM's main thread among them, wait for it. What cannot be sent at once waits
//! in a ring, and no fault is read while that is full.
//!
//! Without a connection the faults stay noted. With the next one all who wait ask again.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bindery_sys::mapping::Mapping;
use bindery_sys::userfault::Fault;
use bindery_sys::{memfd, socket, table};
use bindery_units::PageRange;
use bindery_wire::control::{BoundRange, TOKEN_BYTES_MAX};
use bindery_wire::source::{
    FromGuest, FromSource, GuestWord, SLOT_BYTES, SLOTS, SourceWord, WINDOW_BYTES,
};
use zerocopy::IntoBytes;

use super::{Shared, log};
use crate::{
    descriptors::Userfault,
    handlers::Lifeline,
    source::{BindError, Content, Link, Source, Step},
};

/// Time for which the daemon may leave a frame unread that the control thread sends.
const PATIENCE: Duration = Duration::from_secs(1);

/// Frames that wait to be sent at most.
const OUTGOING_MAX: usize = 1024;

/// Frames up to which faults are read. The rest of the room is for slots that were taken: the daemon's frames are
/// read whatever it leaves unread itself, or both sides could wait for each other.
const FAULTS_MAX: usize = OUTGOING_MAX - SLOTS as usize - Userfault::READ_MAX;

/// Time until frames that could not be sent are tried again.
const RETRY: Duration = Duration::from_millis(1);

/// Time until the end of a source is tried again that the kernel had no room for.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Descriptors of a `Bind` or `Rebind`.
pub(super) struct Ends {
    socket: OwnedFd,
    window: File,
}

impl Ends {
    pub(super) fn new(socket: OwnedFd, window: OwnedFd) -> Self {
        Self { socket, window: File::from(window) }
    }

    /// # Errors
    /// For a window that can become shorter, or without memory.
    fn open(self) -> io::Result<Link> {
        if !memfd::is_fixed(&self.window, WINDOW_BYTES as u64) {
            let what = "a window of a source that is not sealed at its length";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        // Whoever sends us any keeps this thread from what it is for.
        socket::refuse_descriptors(&self.socket)?;
        let window = Mapping::shared(self.window.as_fd(), WINDOW_BYTES, false)?;
        window.keep_from_children()?;
        Ok(Link { socket: self.socket, window })
    }
}

/// Binds ranges to a source, and says how that went to the log and to the daemon.
pub(super) fn bind(shared: &Arc<Shared>, ends: Ends, ranges: &[BoundRange], token: Vec<u8>) {
    let told = ends.socket.try_clone();
    if let Err(error) = try_bind(shared, ends, ranges, token) {
        log::say(format_args!("no memory is bound to a source: {error}"));
        let failed = FromGuest::of(GuestWord::Failed, error.errno().unsigned_abs());
        // A daemon that is gone needs no answer.
        let _ = told.and_then(|told| socket::send_all(told, failed.as_bytes(), &[], PATIENCE));
    }
}

fn try_bind(
    shared: &Arc<Shared>,
    ends: Ends,
    ranges: &[BoundRange],
    token: Vec<u8>,
) -> Result<(), BindError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(BindError::Nonsense);
    }
    let link = ends.open()?;
    let source = shared.space.prepare_source(token)?;
    // The thread first: without one the memory may not be bound.
    let server = Server::new(Arc::clone(shared), Arc::clone(&source));
    let started = table::spawn("bindery-source", move || server.serve());
    if let Err(error) = started {
        shared.space.cancel_source(&source);
        return Err(error.into());
    }
    shared.space.bind_to_source(&source, ranges)?;
    if socket::send_all(&link.socket, FromGuest::of(GuestWord::Bound, 0).as_bytes(), &[], PATIENCE)
        .is_err()
    {
        // Bound it is: another source may come.
        source.note_loss();
        shared.wake.ring();
        return Ok(());
    }
    give(&source, link);
    Ok(())
}

/// Gives the serving thread a connection, or ends it if nothing is missing any more.
fn give(source: &Source, link: Link) {
    if let Some(link) = source.give_link(link) {
        complete(&link);
    }
}

fn complete(link: &Link) {
    let complete = FromGuest::of(GuestWord::Complete, 0);
    // The daemon sees the end of the connection anyway.
    let _ = socket::send_all(&link.socket, complete.as_bytes(), &[], PATIENCE);
}

/// Gives bound memory that has lost its source another, if it was bound with this token.
pub(super) fn rebind(shared: &Arc<Shared>, ends: Ends, token: &[u8]) {
    let told = ends.socket.try_clone();
    let source = shared.space.bound_source();
    let source = source.filter(|source| source.token == token && source.loss().is_some());
    let rebound = match source {
        Some(source) => try_rebind(&source, ends),
        None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
    };
    if let Err(error) = rebound {
        log::say(format_args!("bound memory has no other source: {error}"));
        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
        let failed = FromGuest::of(GuestWord::Failed, errno.unsigned_abs());
        let _ = told.and_then(|told| socket::send_all(told, failed.as_bytes(), &[], PATIENCE));
    }
}

fn try_rebind(source: &Source, ends: Ends) -> io::Result<()> {
    let link = ends.open()?;
    let lacks = source.lacks();
    let frames = lacks.into_iter().map(|run| FromGuest::about(GuestWord::Lacks, run));
    for frame in frames.chain([FromGuest::of(GuestWord::Bound, 0)]) {
        socket::send_all(&link.socket, frame.as_bytes(), &[], PATIENCE)?;
    }
    give(source, link);
    Ok(())
}

/// The serving thread's own.
struct Server {
    shared: Arc<Shared>,
    source: Arc<Source>,
    link: Option<Link>,
    outgoing: VecDeque<FromGuest>,
}

impl Server {
    fn new(shared: Arc<Shared>, source: Arc<Source>) -> Self {
        Self { shared, source, link: None, outgoing: VecDeque::with_capacity(OUTGOING_MAX) }
    }

    /// Serves until every page is there.
    fn serve(mut self) {
        let lifeline = Lifeline;
        loop {
            match self.source.step() {
                Step::Serve => {}
                Step::Relink(link) => {
                    self.outgoing.clear();
                    self.link = Some(link);
                }
                Step::Complete if self.shared.space.end_source(&self.source) => break,
                Step::Complete => {
                    self.work(Some(AGAIN_AFTER));
                    continue;
                }
                Step::Cancelled => break,
            }
            self.work(None);
        }
        // Nobody waits for this thread any more.
        std::mem::forget(lifeline);
        if let Some(link) = self.link.take().or_else(|| self.source.take_link()) {
            complete(&link);
        }
        // For what is offered now.
        self.shared.wake.ring();
    }

    /// Waits for something to do, for a time at most, and does it.
    fn work(&mut self, most: Option<Duration>) {
        self.flush();
        let faults = self.source.faults().inside();
        let bell = self.source.bell;
        let mut ready = [false; 3];
        let patience = if self.outgoing.is_empty() { most } else { Some(RETRY) };
        let waited = match &self.link {
            Some(link) if self.outgoing.len() > FAULTS_MAX => {
                let mut one = [false; 2];
                let fds = [bell.event().as_fd(), link.socket.as_fd()];
                let waited = socket::wait_any_readable(&fds, &mut one, patience);
                (ready[0], ready[2]) = (one[0], one[1]);
                waited
            }
            Some(link) => {
                let fds = [bell.event().as_fd(), faults.as_fd(), link.socket.as_fd()];
                socket::wait_any_readable(&fds, &mut ready, patience)
            }
            None => {
                let fds = [bell.event().as_fd(), faults.as_fd()];
                socket::wait_any_readable(&fds, &mut ready[..2], patience)
            }
        };
        if waited.is_err() {
            // Waiting needs kernel memory; without any, time passes all the same.
            std::thread::sleep(RETRY);
        }
        if ready[0] {
            bell.clear();
        }
        if ready[1] {
            self.take_faults();
        }
        if ready[2] && self.link.is_some() {
            self.take_frame();
        }
    }

    fn take_faults(&mut self) {
        let mut buffer = [Fault::default(); Userfault::READ_MAX];
        // A fault may be gone that was there a moment ago.
        let Ok(faults) = self.source.faults().read(&mut buffer) else { return };
        for fault in faults {
            let asked = self.source.answer(fault.address);
            if let Some(page) = asked.filter(|_| self.link.is_some()) {
                let fault = FromGuest::about(GuestWord::Fault, PageRange::new(page, 1));
                self.outgoing.push_back(fault);
            }
        }
        self.flush();
    }

    /// Takes one frame of the daemon's. One that makes no sense ends the connection.
    fn take_frame(&mut self) {
        let Some(link) = &self.link else { return };
        let mut bytes = [0; size_of::<FromSource>() + 1];
        let received = socket::receive(&link.socket, &mut bytes, &mut Vec::new());
        let frame = received.ok().and_then(|count| FromSource::read(&bytes[..count]));
        let Some((frame, pages)) = frame else { return self.lose() };
        match frame.word {
            // More than there are slots: the daemon fills some that were not given back.
            SourceWord::Pages if self.outgoing.len() == OUTGOING_MAX => self.lose(),
            SourceWord::Pages => {
                let slot = link.window.address().plus(frame.slot as usize * SLOT_BYTES);
                self.source.fill(pages, Content::Copy(slot));
                self.outgoing.push_back(FromGuest::of(GuestWord::Taken, frame.slot));
            }
            SourceWord::Zeros => self.source.fill_with_zeros(pages),
            SourceWord::Damaged => self.source.fill(pages, Content::Damaged),
        }
    }

    fn flush(&mut self) {
        let Some(link) = &self.link else { return self.outgoing.clear() };
        while let Some(frame) = self.outgoing.front() {
            match socket::send_now(&link.socket, frame.as_bytes(), &[]) {
                Ok(_) => drop(self.outgoing.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.lose(),
            }
        }
    }

    /// Ends the connection. The control thread asks for another.
    fn lose(&mut self) {
        self.link = None;
        self.outgoing.clear();
        self.source.note_loss();
        self.shared.wake.ring();
    }
}
