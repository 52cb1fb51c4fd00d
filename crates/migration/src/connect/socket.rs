//! Sockets whose operations end in time.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connected socket of either kind.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn set_timeouts(&self, limit: Duration) -> io::Result<()> {
        // Zero would be no limit.
        let limit = Some(limit.max(Duration::from_millis(1)));
        match self {
            Self::Tcp(tcp) => {
                tcp.set_read_timeout(limit).and_then(|()| tcp.set_write_timeout(limit))
            }
            Self::Unix(unix) => {
                unix.set_read_timeout(limit).and_then(|()| unix.set_write_timeout(limit))
            }
        }
    }

    fn shut_down(&self) {
        // It may be closed already.
        _ = match self {
            Self::Tcp(tcp) => tcp.shutdown(Shutdown::Both),
            Self::Unix(unix) => unix.shutdown(Shutdown::Both),
        };
    }
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Longest time without a byte.
    silence: Duration,
    /// Time at which all must be done.
    until: Option<Instant>,
}

/// Socket shared by a reading and a writing thread, with limits of time.
#[derive(Clone, Debug)]
pub(crate) struct TimedSocket {
    socket: Arc<Socket>,
    limits: Arc<Mutex<Limits>>,
}

impl TimedSocket {
    pub(crate) fn new(socket: Socket, silence: Duration) -> io::Result<Self> {
        if let Socket::Tcp(tcp) = &socket {
            tcp.set_nodelay(true)?;
        }
        socket.set_timeouts(silence)?;
        let limits = Arc::new(Mutex::new(Limits { silence, until: None }));
        Ok(Self { socket: Arc::new(socket), limits })
    }

    /// Sets the time after which everything fails; `None` for no such end.
    pub(crate) fn set_deadline(&self, limit: Option<Duration>) -> io::Result<()> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.until = limit.map(|limit| Instant::now() + limit);
        self.socket.set_timeouts(limits.silence)
    }

    /// Sets the longest time without a byte.
    pub(crate) fn set_silence(&self, silence: Duration) -> io::Result<()> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).silence = silence;
        self.socket.set_timeouts(silence)
    }

    pub(crate) fn shut_down(&self) {
        self.socket.shut_down();
    }

    fn prepare(&self) -> io::Result<()> {
        let limits = *self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(until) = limits.until else { return Ok(()) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_timeouts(left.min(limits.silence))
    }
}

impl Read for TimedSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.prepare()?;
        match &*self.socket {
            Socket::Tcp(tcp) => (&mut &*tcp).read(into),
            Socket::Unix(unix) => (&mut &*unix).read(into),
        }
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.prepare()?;
        match &*self.socket {
            Socket::Tcp(tcp) => (&mut &*tcp).write_vectored(parts),
            Socket::Unix(unix) => (&mut &*unix).write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes all parts, by as few calls as the kernel allows, from where they are.
pub(crate) fn write_all_vectored(to: &mut dyn Write, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match to.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
