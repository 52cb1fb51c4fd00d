//! A connection's two ends: one that reads, one that writes.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use super::rate::RateLimit;
use super::socket::{TimedSocket, write_all_vectored};
use super::tls::{TlsLink, TlsReader};
use crate::encode::Outlet;

/// Bytes that are sent at once under a limit.
const LIMITED_BYTES: usize = 64 << 10;

/// Connection that is plain, or TLS.
#[derive(Clone)]
pub(crate) enum Link {
    Plain(TimedSocket),
    Tls(TlsLink, TimedSocket),
}

impl Link {
    pub(crate) const fn socket(&self) -> &TimedSocket {
        match self {
            Self::Plain(socket) | Self::Tls(_, socket) => socket,
        }
    }

    pub(crate) fn reader(&self) -> StreamReader {
        StreamReader(match self {
            Self::Plain(socket) => Reader::Plain(socket.clone()),
            Self::Tls(link, socket) => Reader::Tls(TlsReader::new(link.clone()), socket.clone()),
        })
    }

    pub(crate) fn writer(&self) -> StreamWriter {
        StreamWriter { link: self.clone(), limit: Arc::default() }
    }
}

enum Reader {
    Plain(TimedSocket),
    Tls(TlsReader, TimedSocket),
}

/// Reading end of a connection. Fails with [`io::ErrorKind::TimedOut`] or [`io::ErrorKind::WouldBlock`] if nothing
/// comes for as long as the connection allows.
pub struct StreamReader(Reader);

impl StreamReader {
    /// Ends the connection for both ends; whoever waits in it fails.
    pub fn shut_down(&self) {
        self.socket().shut_down();
    }

    /// Sets the longest time without a byte.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_silence(&self, silence: Duration) -> io::Result<()> {
        self.socket().set_silence(silence)
    }

    const fn socket(&self) -> &TimedSocket {
        match &self.0 {
            Reader::Plain(socket) | Reader::Tls(_, socket) => socket,
        }
    }
}

impl Read for StreamReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Reader::Plain(socket) => socket.read(into),
            Reader::Tls(tls, _) => tls.read(into),
        }
    }
}

/// Writing end of a connection.
#[derive(Clone)]
pub struct StreamWriter {
    link: Link,
    limit: Arc<RateLimit>,
}

impl StreamWriter {
    /// Shares a limit of the bytes a second with other streams.
    #[must_use]
    pub fn limited(mut self, limit: Arc<RateLimit>) -> Self {
        self.limit = limit;
        self
    }

    fn send_now(&self, parts: &[&[u8]]) -> io::Result<()> {
        self.limit.wait(parts.iter().map(|part| part.len() as u64).sum());
        match &self.link {
            Link::Plain(socket) => write_all_vectored(&mut socket.clone(), parts),
            Link::Tls(tls, _) => tls.send(parts),
        }
    }
}

impl Outlet for StreamWriter {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes <= 2 * LIMITED_BYTES {
            return self.send_now(parts);
        }
        // In pieces, so that a limit does not become bursts.
        let mut pieces = parts.iter().flat_map(|part| part.chunks(LIMITED_BYTES));
        if self.limit.is_set() {
            return pieces.try_for_each(|piece| self.send_now(&[piece]));
        }
        self.send_now(parts)
    }
}

impl std::fmt::Debug for StreamReader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StreamReader").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for StreamWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StreamWriter").field("limit", &self.limit).finish_non_exhaustive()
    }
}
