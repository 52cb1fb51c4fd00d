//! The host's end of the command channel into a guest; `guest_agent serve` is the other.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The longest that an answer may take once its first byte has come.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// What a command in a guest did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit status; -1 when a signal ended it.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// One connection; commands go one at a time.
#[derive(Debug)]
pub(crate) struct Channel {
    reader: BufReader<UnixStream>,
    last_id: u64,
}

impl Channel {
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self { reader: BufReader::new(UnixStream::connect(socket)?), last_id: 0 })
    }

    /// Runs a script. An error of kind `WouldBlock` says that `timeout` passed without an answer;
    /// the answer is then thrown away when it comes, and the channel stays usable.
    pub(crate) fn run(&mut self, script: &str, timeout: Duration) -> io::Result<Output> {
        self.last_id += 1;
        let request = format!("{} {}\n{script}", self.last_id, script.len());
        self.reader.get_mut().set_write_timeout(Some(timeout))?;
        self.reader.get_mut().write_all(request.as_bytes())?;
        loop {
            self.reader.get_mut().set_read_timeout(Some(timeout))?;
            let (id, output) = self.read_answer()?;
            if id == self.last_id {
                return Ok(output);
            }
        }
    }

    fn read_answer(&mut self) -> io::Result<(u64, Output)> {
        // The caller's time limit is for the first byte. Taking it only then keeps the stream at
        // the start of an answer when the limit passes.
        if self.wait_for_answer()? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.reader.get_mut().set_read_timeout(Some(TRANSFER_TIMEOUT))?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let malformed =
            || io::Error::new(io::ErrorKind::InvalidData, format!("the agent answered {line:?}"));
        let fields: Vec<i64> =
            line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let &[id, status, out, err] = fields.as_slice() else { return Err(malformed()) };
        let mut take = |bytes: i64| -> io::Result<String> {
            let mut content = vec![0; usize::try_from(bytes).map_err(|_| malformed())?];
            self.reader.read_exact(&mut content)?;
            Ok(String::from_utf8_lossy(&content).into_owned())
        };
        let (stdout, stderr) = (take(out)?, take(err)?);
        Ok((id as u64, Output { status: status as i32, stdout, stderr }))
    }

    /// Bytes of the answer that have come; zero at the stream's end. A process that was stopped and goes on
    /// finds its wait interrupted where that has a time limit (signal(7)).
    fn wait_for_answer(&mut self) -> io::Result<usize> {
        loop {
            match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                filled => return filled.map(<[u8]>::len),
            }
        }
    }
}
