//! One operator's connection: reads lines, performs them, writes answers.
//!
//! Nothing that comes over the connection stops the daemon, or holds a thread longer than
//! [`Limits`] allow without a whole request. It holds a line of memory, two descriptors that came with it, and a
//! session's: one guest that is watched.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bindery_sys::socket;

use crate::protocol::{
    Answer, Failure, FailureKind, LINE_BYTES_MAX, Request, decode_request, encode_line,
};
use crate::stop::Stopping;

/// How slow an operator may be, however steadily it sends or reads.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Time from one answer to the end of the next request's line.
    request: Duration,
    /// Time in which a whole answer is taken.
    answer: Duration,
}

const LIMITS: Limits = Limits { request: Duration::from_secs(60), answer: Duration::from_secs(10) };

/// How often a waiting connection looks whether the daemon ends.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Most descriptors that are held for a request: one more than any takes, so that it sees there are too many.
const PASSED_MAX: usize = 2;

/// Who does what operators ask.
pub(crate) trait Control {
    /// What is kept for an operator from one request to the next.
    type Session: Default;

    /// Does it, and answers. May take as long as the work takes. Requests that need descriptors take them out
    /// of `passed`, which has those that came with the line.
    fn perform(
        &self,
        session: &mut Self::Session,
        request: Request,
        passed: &mut Vec<OwnedFd>,
    ) -> Answer;
}

/// Serves one operator until it leaves, makes no request for a minute, or the daemon ends.
pub(crate) fn serve(stream: &OwnedFd, control: &impl Control, stopping: &Stopping) {
    if let Err(error) = converse(stream, control, stopping, LIMITS) {
        tracing::debug!("an operator's connection ended: {error}");
    }
}

/// Tells an operator that it is not served, and why.
pub(crate) fn refuse(stream: &OwnedFd, kind: FailureKind, reason: &str) {
    let refusal = Answer::Error(Failure::new(kind, reason));
    if let Err(error) = answer(stream, &refusal, LIMITS.answer) {
        tracing::debug!("an operator left before it was refused: {error}");
    }
}

fn converse<C: Control>(
    stream: &OwnedFd,
    control: &C,
    stopping: &Stopping,
    limits: Limits,
) -> io::Result<()> {
    let mut lines = Lines { stream, buffer: Vec::new(), searched: 0, passed: Vec::new() };
    let mut session = C::Session::default();
    loop {
        let reply = match lines.next(stopping, Instant::now() + limits.request)? {
            Line::End => return Ok(()),
            Line::TooLong => {
                let reason = format!("a line has at most {LINE_BYTES_MAX} bytes");
                refuse(stream, FailureKind::BadRequest, &reason);
                return Ok(());
            }
            Line::Complete(line) => match decode_request(&line) {
                Ok(request) => control.perform(&mut session, request, &mut lines.passed),
                Err(failure) => Answer::Error(failure),
            },
        };
        if lines.buffer.is_empty() {
            // They came with no line that is still to be read.
            lines.passed.clear();
        }
        answer(stream, &reply, limits.answer)?;
    }
}

fn answer(stream: &OwnedFd, answer: &Answer, patience: Duration) -> io::Result<()> {
    socket::send_all(stream, &encode_line(answer), &[], patience)
}

enum Line {
    Complete(Vec<u8>),
    TooLong,
    End,
}

struct Lines<'a> {
    stream: &'a OwnedFd,
    /// What was received and not yet returned: less than a line and one read more.
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that are known to have no line end.
    searched: usize,
    /// Descriptors that came with what is in the buffer or was returned last; [`PASSED_MAX`] at most.
    passed: Vec<OwnedFd>,
}

impl Lines<'_> {
    /// Returns the next line; `End` if all of it has not come by `deadline`.
    fn next(&mut self, stopping: &Stopping, deadline: Instant) -> io::Result<Line> {
        loop {
            if let Some(line) = self.pop() {
                return Ok(Line::Complete(line));
            }
            if self.buffer.len() >= LINE_BYTES_MAX {
                return Ok(Line::TooLong);
            }
            if !self.fill(stopping, deadline)? {
                return Ok(Line::End);
            }
        }
    }

    /// Takes a line that was received already.
    fn pop(&mut self) -> Option<Vec<u8>> {
        let end = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n');
        let Some(end) = end else {
            self.searched = self.buffer.len();
            return None;
        };
        let rest = self.buffer.split_off(self.searched + end + 1);
        self.searched = 0;
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    /// Receives once. Returns false if the operator has left, the deadline has passed, or the daemon
    /// ends and nothing has come.
    fn fill(&mut self, stopping: &Stopping, deadline: Instant) -> io::Result<bool> {
        // Looked at for each piece: an operator who sends a byte now and then is idle, too.
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if socket::wait_readable(self.stream, left.min(LOOK_EVERY))? {
                break;
            }
            if stopping.is_set() {
                return Ok(false);
            }
        }
        let mut piece = [0; 4096];
        let count = socket::receive(self.stream, &mut piece, &mut self.passed)?;
        // More than any request takes are closed at once.
        self.passed.truncate(PASSED_MAX);
        self.buffer.extend_from_slice(&piece[..count]);
        Ok(count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    struct Echo;

    impl Control for Echo {
        type Session = ();

        fn perform(&self, (): &mut (), request: Request, passed: &mut Vec<OwnedFd>) -> Answer {
            match request {
                Request::Unmerge { guest } => Answer::Done { guest, pages: 7 },
                // Descriptors that it takes, and those that are there.
                Request::Job { .. } => {
                    Answer::Done { guest: "job".into(), pages: passed.drain(..).count() as u64 }
                }
                Request::Jobs {} => {
                    Answer::Done { guest: "jobs".into(), pages: passed.len() as u64 }
                }
                _ => Answer::Stopping {},
            }
        }
    }

    /// Sends `sent` to a session and returns the lines that came back.
    fn converse_with(sent: &[u8]) -> Vec<String> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&OwnedFd::from(theirs), &Echo, &Stopping::default()));
            let reader = ours.try_clone().unwrap();
            let answers =
                scope.spawn(|| BufReader::new(reader).lines().map_while(Result::ok).collect());
            // The session may have ended the connection before it took all of it.
            let _ = (&ours).write_all(sent);
            let _ = ours.shutdown(Shutdown::Write);
            answers.join().unwrap()
        })
    }

    /// Converses under short limits with an operator that does as `act` says, until either ends it.
    /// Returns how long that took.
    fn time_taken_by(act: impl FnOnce(UnixStream) + Send) -> Duration {
        let limits = Limits { request: Duration::from_secs(1), answer: Duration::from_secs(1) };
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| act(ours));
            let (start, stream) = (Instant::now(), OwnedFd::from(theirs));
            let _ = converse(&stream, &Echo, &Stopping::default(), limits);
            start.elapsed()
        })
    }

    #[test]
    fn a_line_that_comes_byte_by_byte_has_the_idle_limit() {
        let taken = time_taken_by(|ours| {
            // As many bytes as would take ten seconds, unless the other end is closed.
            for _ in 0..200 {
                if (&ours).write_all(b"x").is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        assert!(taken < Duration::from_secs(5), "{taken:?}");
    }

    #[test]
    fn each_request_has_a_limit_of_its_own() {
        let taken = time_taken_by(|ours| {
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(400));
                (&ours).write_all(b"nonsense\n").unwrap();
            }
        });
        assert!(taken > Duration::from_millis(1500), "it was hung up on after {taken:?}");
    }

    #[test]
    fn each_line_gets_its_answer() {
        let answers = converse_with(
            b"{\"version\":1,\"request\":\"unmerge\",\"guest\":\"a\"}\nnonsense\n{\"version\":1,\"request\":\"guests\"}\n",
        );
        assert_eq!(answers.len(), 3, "{answers:?}");
        assert_eq!(answers[0], r#"{"version":1,"answer":"done","guest":"a","pages":7}"#);
        assert!(answers[1].contains("bad-request"));
        assert_eq!(answers[2], r#"{"version":1,"answer":"stopping"}"#);
    }

    #[test]
    fn descriptors_go_to_the_line_they_came_with() {
        let (ours, theirs) = socket::stream_pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let job = encode_line(&Request::Job { job: 1, wait_ms: None });
        let jobs = encode_line(&Request::Jobs {});
        let pages = |sent: &[u8], descriptors: usize| {
            let fds = vec![std::os::fd::AsFd::as_fd(&file); descriptors];
            socket::send_all(&ours, sent, &fds, LIMITS.answer).unwrap();
            let mut reader = BufReader::new(UnixStream::from(ours.try_clone().unwrap()));
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let answer: serde_json::Value = serde_json::from_str(&line).unwrap();
            answer["pages"].as_u64().unwrap()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&theirs, &Echo, &Stopping::default()));
            assert_eq!(pages(&job, 1), 1);
            assert_eq!(pages(&job, 0), 0, "one that was taken is there no more");
            assert_eq!(pages(&jobs, 1), 1);
            assert_eq!(pages(&job, 0), 0, "one that came with another line is closed");
            assert_eq!(pages(&job, 8), PASSED_MAX as u64);
            socket::shutdown(&ours).unwrap();
        });
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_memory() {
        let answers = converse_with(&vec![b'{'; 4 * LINE_BYTES_MAX]);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].contains("at most"), "{}", answers[0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

        #[test]
        fn whatever_comes_every_line_is_answered(
            lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)
        ) {
            let mut sent = Vec::new();
            let mut count = 0;
            for line in &lines {
                sent.extend(line.iter().filter(|&&byte| byte != b'\n'));
                sent.push(b'\n');
                count += 1;
            }
            sent.extend(b"{\"version\":1,\"request\":\"stop\",\"unmerge\":false}\n");
            let answers = converse_with(&sent);
            prop_assert_eq!(answers.len(), count + 1);
            prop_assert_eq!(answers.last().unwrap(), "{\"version\":1,\"answer\":\"stopping\"}");
        }
    }
}
