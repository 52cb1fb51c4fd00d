//! Streams of checkpoints, to and from operators.
//!
//! An operator passes one end of a pair of stream sockets. So the daemon touches none of the operator's files,
//! and no file of its own rights on an operator's word; and it never waits for long: a write or read looks every
//! [`LOOK_EVERY`] whether the job is to end, and gives an operator up that is silent for [`PATIENCE`].

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bindery_sys::socket;

use crate::jobs::Progress;
use crate::protocol::{Failure, FailureKind};

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Longer than an object store is waited for, whose client may be the operator.
const PATIENCE: Duration = Duration::from_secs(360);

/// The daemon's end of a stream.
#[derive(Debug)]
pub(crate) struct OperatorStream<'a> {
    socket: OwnedFd,
    progress: &'a Progress,
    patience: Duration,
    /// True if bytes that are read count as progress.
    counts: bool,
}

/// Takes the one descriptor that came with a request.
///
/// # Errors
/// `BadRequest` if there is none, several, or it is no socket.
pub(crate) fn take(mut passed: Vec<OwnedFd>) -> Result<OwnedFd, Failure> {
    let socket = passed.pop().filter(|socket| passed.is_empty() && socket::peer(socket).is_ok());
    socket.ok_or_else(|| {
        let message = "pass one descriptor with this request, one end of a pair of stream sockets \
                       (socketpair(2), SCM_RIGHTS)";
        Failure::new(FailureKind::BadRequest, message)
    })
}

impl<'a> OperatorStream<'a> {
    /// Writes to or reads from `socket` until `progress` is cancelled.
    pub(crate) const fn new(socket: OwnedFd, progress: &'a Progress, counts: bool) -> Self {
        Self { socket, progress, patience: PATIENCE, counts }
    }

    /// Waits until `is_ready` says so.
    fn wait(&self, is_ready: impl Fn(Duration) -> io::Result<bool>) -> io::Result<()> {
        let start = Instant::now();
        loop {
            if self.progress.is_cancelled() {
                return Err(io::Error::other("the job was cancelled"));
            }
            if is_ready(LOOK_EVERY)? {
                return Ok(());
            }
            if start.elapsed() > self.patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Write for OperatorStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.wait(|patience| socket::wait_writable(&self.socket, patience))?;
            match socket::send_now(&self.socket, bytes, &[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Ready for less than one packet.
                    std::thread::sleep(Duration::from_millis(1));
                }
                sent => return sent,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for OperatorStream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.wait(|patience| socket::wait_readable(&self.socket, patience))?;
        // Descriptors within the stream are closed at once.
        let count = socket::receive(&self.socket, bytes, &mut Vec::new())?;
        if self.counts {
            self.progress.add(count as u64);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn bytes_come_as_they_went_and_the_end_is_seen() {
        let (ours, theirs) = socket::stream_pair().unwrap();
        let progress = Progress::new();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at >> 7) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| OperatorStream::new(ours, &progress, false).write_all(&sent).unwrap());
            let mut heard = Vec::new();
            OperatorStream::new(theirs, &progress, true).read_to_end(&mut heard).unwrap();
            assert!(heard == sent);
        });
    }

    #[test]
    fn a_silent_operator_is_given_up() {
        let (ours, _theirs) = socket::stream_pair().unwrap();
        let progress = Progress::new();
        let mut stream = OperatorStream::new(ours, &progress, false);
        stream.patience = Duration::from_millis(300);
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let error = stream.write_all(&vec![0; 64 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        take(vec![file()]).unwrap_err();
        take(Vec::new()).unwrap_err();
        let (ours, theirs) = socket::stream_pair().unwrap();
        let kept = take(vec![ours]).unwrap();
        socket::send_all(kept.as_fd(), b"x", &[], PATIENCE).unwrap();
        take(vec![kept, theirs]).unwrap_err();
    }
}
