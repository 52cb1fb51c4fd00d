//! One end of a control connection: messages and descriptors over a stream socket.
//!
//! Not shared between threads: one thread owns an end, waits for it (it is [`AsFd`]) and speaks.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use bindery_sys::socket::{receive, send_all, wait_readable};

use super::frame::{Decoder, FrameError, Message, encode};

/// How much is read at once, in bytes: a `Hello` fits.
const READ_BYTES: usize = 4096;

/// Sends `S`, receives `R`.
#[derive(Debug)]
pub struct Channel<S, R> {
    socket: OwnedFd,
    decoder: Decoder,
    direction: PhantomData<fn(S) -> R>,
}

/// What [`Channel::receive`] found.
#[derive(Debug)]
pub enum Received<R> {
    /// A message, with its descriptors: as many as it says.
    Message(R, Vec<OwnedFd>),
    /// No message, or only part of one, came in time.
    Nothing,
    /// The peer closed the connection.
    Closed,
}

/// Why nothing more can be received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The peer's bytes are no message.
    #[error(transparent)]
    Nonsense(#[from] FrameError),
    /// The kernel's error.
    #[error("the control connection failed: {0}")]
    Io(#[from] io::Error),
}

impl<S: Message, R: Message> Channel<S, R> {
    /// The end that `socket` is.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, decoder: Decoder::default(), direction: PhantomData }
    }

    /// Sends `message` and its descriptors. Blocks while the peer does not read, for at most
    /// `patience` at a time.
    ///
    /// # Errors
    /// Those of [`send_all`]: the connection is then of no further use.
    ///
    /// # Panics
    /// If `fds` are not as many as the message says, or the message is too long for a frame.
    pub fn send(
        &mut self,
        message: &S,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> io::Result<()> {
        assert_eq!(message.descriptors(), fds.len(), "a message goes with its descriptors");
        send_all(&self.socket, &encode(message), fds, patience)
    }

    /// The next message of what was read already; never blocks.
    ///
    /// # Errors
    /// [`FrameError`] if the peer sent nonsense: the connection is then of no further use.
    pub fn pop(&mut self) -> Result<Option<(R, Vec<OwnedFd>)>, FrameError> {
        self.decoder.pop()
    }

    /// Whether descriptors were read that no message read so far needs.
    #[must_use]
    pub fn holds_descriptors(&self) -> bool {
        self.decoder.holds_descriptors()
    }

    /// Reads once; false at the end of the connection. Blocks if there is nothing to read: call it
    /// when the socket is readable, then [`Channel::pop`] until `None`.
    ///
    /// # Errors
    /// [`ChannelError`]: the connection is then of no further use.
    pub fn fill(&mut self) -> Result<bool, ChannelError> {
        let (mut bytes, mut fds) = ([0; READ_BYTES], Vec::new());
        let count = receive(&self.socket, &mut bytes, &mut fds)?;
        self.decoder.push(&bytes[..count], fds)?;
        Ok(count > 0)
    }

    /// The next message, waiting for it at most `patience`.
    ///
    /// # Errors
    /// [`ChannelError`]: the connection is then of no further use.
    pub fn receive(&mut self, patience: Duration) -> Result<Received<R>, ChannelError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some((message, fds)) = self.decoder.pop()? {
                return Ok(Received::Message(message, fds));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !wait_readable(&self.socket, left)? {
                return Ok(Received::Nothing);
            }
            if !self.fill()? {
                return Ok(Received::Closed);
            }
        }
    }
}

impl<S, R> AsFd for Channel<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{FromDaemon, FromShim, StoreId};
    use bindery_sys::socket::{send, stream_pair};

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn messages_and_descriptors_cross() {
        let (a, b) = stream_pair().unwrap();
        let mut shim = Channel::<FromShim, FromDaemon>::new(a);
        let mut daemon = Channel::<FromDaemon, FromShim>::new(b);
        assert!(matches!(daemon.receive(Duration::ZERO).unwrap(), Received::Nothing));

        let (reader, writer) = std::io::pipe().unwrap();
        let welcome = FromDaemon::Welcome {
            guest: 1,
            digest_key: [3; 32],
            store: StoreId(1),
            slots: 9,
            segment_slots: 4,
        };
        daemon.send(&welcome, &[], SOON).unwrap();
        daemon.send(&FromDaemon::OpenLane, &[reader.as_fd(), writer.as_fd()], SOON).unwrap();
        daemon.send(&FromDaemon::Release, &[], SOON).unwrap();
        for expected in [welcome, FromDaemon::OpenLane, FromDaemon::Release] {
            let Received::Message(got, fds) = shim.receive(SOON).unwrap() else {
                panic!("three messages were sent");
            };
            assert_eq!(fds.len(), got.descriptors());
            assert_eq!(got, expected);
        }

        shim.send(&FromShim::Released, &[], SOON).unwrap();
        drop(shim);
        assert!(matches!(daemon.receive(SOON).unwrap(), Received::Message(FromShim::Released, _)));
        assert!(matches!(daemon.receive(SOON).unwrap(), Received::Closed));
    }

    #[test]
    fn nonsense_is_an_error() {
        let (a, b) = stream_pair().unwrap();
        let mut daemon = Channel::<FromDaemon, FromShim>::new(b);
        send(&a, b"{\"op\": \"status\"}", &[]).unwrap();
        let error = daemon.receive(SOON).unwrap_err();
        assert!(matches!(error, ChannelError::Nonsense(FrameError::Length { .. })), "{error}");
    }
}
