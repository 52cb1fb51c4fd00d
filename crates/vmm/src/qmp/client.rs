//! The connection itself: commands, their answers, and events in between.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bindery_sys::socket;
use serde_json::{Value, json};

use super::lines::{LINE_BYTES_MAX, LineBuffer};
use super::message::{Message, parse};
use super::{Event, QmpError};

/// Number of events that are kept for [`Qmp::wait_event`]. Older ones are dropped.
const EVENTS_MAX: usize = 1024;

/// Number of bytes read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// A connection to one QEMU's monitor.
#[derive(Debug)]
pub struct Qmp {
    socket: OwnedFd,
    lines: LineBuffer,
    events: VecDeque<Event>,
    last_id: u64,
    version: String,
    patience: Duration,
    is_closed: bool,
}

impl Qmp {
    /// Connects to the monitor at `path` and leaves the negotiation mode. No command takes longer than
    /// `patience` unless it is given a limit of its own.
    ///
    /// # Errors
    /// [`QmpError`] if nobody listens there, greets in time, or speaks QMP.
    pub fn connect(path: &Path, patience: Duration) -> Result<Self, QmpError> {
        let unreachable = |error| QmpError::Unreachable { path: path.to_owned(), error };
        let socket = socket::connect_within(path, patience).map_err(unreachable)?;
        let mut qmp = Self {
            socket,
            lines: LineBuffer::new(LINE_BYTES_MAX),
            events: VecDeque::new(),
            last_id: 0,
            version: String::new(),
            patience,
            is_closed: false,
        };
        qmp.version = match qmp.receive(deadline(patience))? {
            Some(Message::Greeting(version)) => version,
            Some(other) => return Err(QmpError::malformed(format!("greeted with {other:?}"))),
            None => return Err(QmpError::NoGreeting { limit: patience }),
        };
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Returns QEMU's version, as `major.minor.micro`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the process that listens on the socket, as of the connection: QEMU's, unless another made
    /// the socket for it, as libvirt does.
    ///
    /// # Errors
    /// [`QmpError::Io`] with the kernel's error.
    pub fn peer_pid(&self) -> Result<i32, QmpError> {
        socket::peer(&self.socket).map(|peer| peer.pid).map_err(QmpError::Io)
    }

    /// Runs a command and returns what QEMU answers.
    ///
    /// # Errors
    /// [`QmpError::Refused`] with QEMU's words, or the failures of the connection.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.execute_within(command, arguments, &[], self.patience)
    }

    /// [`Self::execute`] with descriptors for QEMU and a time limit for all of it.
    ///
    /// # Errors
    /// As [`Self::execute`]. After [`QmpError::Silent`], QEMU may still do the command later.
    pub fn execute_within(
        &mut self,
        command: &str,
        arguments: Value,
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<Value, QmpError> {
        let deadline = deadline(limit);
        let silent = || QmpError::Silent { command: command.to_owned(), limit };
        let id = self.send(command, arguments, descriptors, limit)?;
        loop {
            let message = self.receive(deadline)?.ok_or_else(silent)?;
            let answered = match &message {
                Message::Return { id, .. } => Some(*id),
                Message::Error { id, .. } => *id,
                _ => None,
            };
            match message {
                Message::Event(event) => self.keep(event),
                // The answer to a command that was given up.
                _ if answered.is_some_and(|answered| answered < id) => {}
                Message::Return { value, .. } if answered == Some(id) => return Ok(value),
                Message::Error { description, .. } if answered == Some(id) => {
                    return Err(QmpError::Refused { command: command.to_owned(), description });
                }
                other => return Err(self.close(QmpError::malformed(format!("sent {other:?}")))),
            }
        }
    }

    /// Waits for an event that is `wanted`, among those that came before, too, and were neither returned nor
    /// forgotten. Returns `None` after `limit`. Others are kept.
    ///
    /// # Errors
    /// [`QmpError`] if the connection failed.
    pub fn wait_event(
        &mut self,
        wanted: impl Fn(&Event) -> bool,
        limit: Duration,
    ) -> Result<Option<Event>, QmpError> {
        if let Some(event) = self.take_event(&wanted) {
            return Ok(Some(event));
        }
        let deadline = deadline(limit);
        loop {
            match self.receive(deadline)? {
                Some(Message::Event(event)) if wanted(&event) => return Ok(Some(event)),
                Some(Message::Event(event)) => self.keep(event),
                // The answer to a command that was given up.
                Some(Message::Return { .. } | Message::Error { id: Some(_), .. }) => {}
                Some(other) => {
                    return Err(self.close(QmpError::malformed(format!("sent {other:?}"))));
                }
                None => return Ok(None),
            }
        }
    }

    /// Returns the first event that is `wanted` among those that came before the last answer, without waiting.
    pub fn take_event(&mut self, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
        let at = self.events.iter().position(wanted)?;
        self.events.remove(at)
    }

    /// Returns true if an event of this name came and was neither returned nor forgotten.
    #[must_use]
    pub fn has_event(&self, name: &str) -> bool {
        self.events.iter().any(|event| event.name == name)
    }

    /// Drops the events of this name that came before the last answer, so that the next one waited for is a
    /// later one.
    pub fn forget_events(&mut self, name: &str) {
        self.events.retain(|event| event.name != name);
    }

    fn keep(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Sends a command and returns its number.
    fn send(
        &mut self,
        command: &str,
        arguments: Value,
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<u64, QmpError> {
        if self.is_closed {
            return Err(QmpError::Ended);
        }
        self.last_id += 1;
        let request = json!({ "execute": command, "arguments": arguments, "id": self.last_id });
        let line = format!("{request}\n");
        let sent = socket::send_all(&self.socket, line.as_bytes(), descriptors, limit);
        sent.map(|()| self.last_id).map_err(|error| {
            // A part of the line may have gone.
            self.is_closed = true;
            if error.kind() == std::io::ErrorKind::TimedOut {
                return QmpError::Silent { command: command.to_owned(), limit };
            }
            QmpError::of_socket(error)
        })
    }

    /// Reads the next message; `None` at the deadline. What came of a line by then stays for later.
    fn receive(&mut self, deadline: Instant) -> Result<Option<Message>, QmpError> {
        loop {
            if self.is_closed {
                return Err(QmpError::Ended);
            }
            let line = match self.lines.next_line() {
                Ok(line) => line,
                Err(error) => return Err(self.close(QmpError::malformed(error))),
            };
            if let Some(line) = line {
                let message = parse(&line);
                return message.map(Some).map_err(|what| self.close(QmpError::Malformed { what }));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if let Err(error) = self.fill(left) {
                return Err(self.close(error));
            }
        }
    }

    /// Reads what is there, or comes within `patience`, into the line buffer.
    fn fill(&mut self, patience: Duration) -> Result<(), QmpError> {
        if !socket::wait_readable(&self.socket, patience).map_err(QmpError::Io)? {
            return Ok(());
        }
        let mut chunk = [0; CHUNK_BYTES];
        let mut uninvited = Vec::new();
        match socket::receive(&self.socket, &mut chunk, &mut uninvited) {
            Ok(0) => Err(QmpError::Ended),
            Ok(count) => {
                self.lines.push(&chunk[..count]);
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(QmpError::of_socket(error)),
        }
    }

    const fn close(&mut self, error: QmpError) -> QmpError {
        self.is_closed = true;
        error
    }
}

/// Returns the time at which `limit` is over. One that no clock reaches is a year.
fn deadline(limit: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + YEAR)
}
