//! The operators' side of the protocol, for the `bindery` command and programs like it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bindery_sys::socket;
use serde::Deserialize;

use crate::protocol::{
    ANSWER_BYTES_MAX, Answer, Failure, FailureKind, Request, VERSION, encode_line,
};

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon at {}; start one with `bindery daemon`, or name its --socket", .0.display())]
    NoDaemon(PathBuf),
    /// The socket is another user's.
    #[error("{} is not yours to use: a daemon serves its own user, root, and the members of its group", .0.display())]
    Refused(PathBuf),
    /// The daemon says why not.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The answer makes no sense.
    #[error("the daemon's answer is not understood ({0}); is it of this version?")]
    Nonsense(String),
    /// The daemon did not answer in time.
    #[error("the daemon did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The connection broke.
    #[error("the connection to the daemon broke: {0}")]
    Io(#[from] io::Error),
}

/// A connection to a daemon. Requests are answered one after the other.
#[derive(Debug)]
pub struct Client {
    stream: OwnedFd,
    /// Received and not yet used: the start of the next answer.
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to the daemon at `path`.
    ///
    /// # Errors
    /// `NoDaemon`, `Refused`, `Io`.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = socket::connect(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::NoDaemon(path.into())
            }
            io::ErrorKind::PermissionDenied => ClientError::Refused(path.into()),
            _ => ClientError::Io(error),
        })?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Asks, and waits for the answer for at most `patience`.
    ///
    /// # Errors
    /// `Failed` with what the daemon says; the connection stays usable then, and after no other
    /// error.
    pub fn ask(&mut self, request: &Request, patience: Duration) -> Result<Answer, ClientError> {
        self.ask_passing(request, &[], patience)
    }

    /// Asks as [`ask`](Self::ask), and passes descriptors with the request, which stay open here.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_passing(
        &mut self,
        request: &Request,
        passed: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<Answer, ClientError> {
        // A daemon that refuses may hang up before it reads: its reason is still there to be read.
        let sent = socket::send_all(&self.stream, &encode_line(request), passed, patience);
        let line = match (self.read_line(patience), sent) {
            (Ok(line), _) => line,
            (Err(_), Err(error)) => return Err(error.into()),
            (Err(error), Ok(())) => return Err(error),
        };
        match decode_answer(&line)? {
            Answer::Error(failure) => Err(failure.into()),
            answer => Ok(answer),
        }
    }

    fn read_line(&mut self, patience: Duration) -> Result<Vec<u8>, ClientError> {
        let (mut searched, start) = (0, Instant::now());
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let rest = self.buffer.split_off(searched + end + 1);
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            searched = self.buffer.len();
            if searched > ANSWER_BYTES_MAX {
                return Err(ClientError::Nonsense("an answer without end".into()));
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() || !socket::wait_readable(&self.stream, left)? {
                return Err(ClientError::Silent(patience));
            }
            let mut piece = [0; 16 * 1024];
            let count = socket::receive(&self.stream, &mut piece, &mut Vec::new())?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.buffer.extend_from_slice(&piece[..count]);
        }
    }
}

/// Reads one line as an answer.
///
/// # Errors
/// [`ClientError::Nonsense`] if it is none, [`ClientError::Failed`] if the daemon speaks another version.
pub fn decode_answer(line: &[u8]) -> Result<Answer, ClientError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let nonsense = |error: serde_json::Error| ClientError::Nonsense(error.to_string());
    let Version { version } = serde_json::from_slice(line).map_err(nonsense)?;
    if version != VERSION {
        let message = format!("the daemon speaks version {version}, this command {VERSION}");
        return Err(Failure::new(FailureKind::Version, message).into());
    }
    serde_json::from_slice(line).map_err(nonsense)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const SOON: Duration = Duration::from_secs(5);

    fn client_that_hears(answer: &[u8]) -> Client {
        let (ours, theirs) = socket::stream_pair().unwrap();
        socket::send_all(theirs.as_fd(), answer, &[], SOON).unwrap();
        Client { stream: ours, buffer: Vec::new() }
    }

    #[test]
    fn a_refusal_sent_before_the_request_was_read_is_heard() {
        let failure = Failure::new(FailureKind::Refused, "not you");
        let mut client = client_that_hears(&encode_line(&Answer::Error(failure.clone())));
        let error = client.ask(&Request::Status {}, SOON).unwrap_err();
        assert!(matches!(error, ClientError::Failed(heard) if heard == failure));
    }

    #[test]
    fn other_versions_and_nonsense_are_told_apart() {
        let ask = |answer: &[u8]| client_that_hears(answer).ask(&Request::Status {}, SOON);
        let error = ask(b"{\"version\":2,\"answer\":\"stopping\"}\n").unwrap_err();
        assert!(matches!(error, ClientError::Failed(Failure { kind: FailureKind::Version, .. })));
        assert!(matches!(ask(b"HTTP/1.1 400\r\n").unwrap_err(), ClientError::Nonsense(_)));
        assert!(ask(b"half an answer").is_err());
    }

    #[test]
    fn an_answer_that_comes_byte_by_byte_is_waited_for_no_longer() {
        let (ours, theirs) = socket::stream_pair().unwrap();
        let mut client = Client { stream: ours, buffer: Vec::new() };
        let talk = std::thread::spawn(move || {
            while socket::send_all(&theirs, b"x", &[], SOON).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let error = client.ask(&Request::Status {}, Duration::from_millis(200)).unwrap_err();
        assert!(matches!(error, ClientError::Silent(_)), "{error}");
        drop(client);
        talk.join().unwrap();
    }

    #[test]
    fn without_a_daemon_the_error_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let error = Client::connect(&directory.path().join("none.sock")).unwrap_err();
        assert!(matches!(error, ClientError::NoDaemon(_)), "{error}");
    }
}
