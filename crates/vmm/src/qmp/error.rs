//! Failures of a connection to QEMU's monitor.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Failure of QEMU's monitor to do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// Nobody can be reached at the socket.
    #[error("QEMU's monitor at {} cannot be reached: {error}; start QEMU with \
        `-qmp unix:PATH,server=on,wait=off`", path.display())]
    Unreachable {
        /// Path of the socket.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The monitor accepted the connection and said nothing.
    #[error("QEMU's monitor did not greet within {} ms: it serves one client at a time, so give \
        this one a monitor of its own", limit.as_millis())]
    NoGreeting {
        /// Longest wait.
        limit: Duration,
    },
    /// No answer came in time. A late one is dropped, so the connection may be used again.
    #[error("QEMU did not answer `{command}` within {} ms: is it stopped, or its storage stuck?",
        limit.as_millis())]
    Silent {
        /// The command.
        command: String,
        /// Longest wait.
        limit: Duration,
    },
    /// QEMU refused the command.
    #[error("QEMU refused `{command}`: {description}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's own words.
        description: String,
    },
    /// The connection is closed.
    #[error("QEMU closed its monitor: it has ended, and its reason is on its standard error")]
    Ended,
    /// The peer sent what is no QMP. The connection is closed.
    #[error("QEMU's monitor does not speak QMP: {what}")]
    Malformed {
        /// Description, with the beginning of what came.
        what: String,
    },
    /// The socket failed. The connection is closed.
    #[error("the connection to QEMU's monitor failed: {0}")]
    Io(io::Error),
}

impl QmpError {
    pub(crate) fn of_socket(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotConnected => Self::Ended,
            _ => Self::Io(error),
        }
    }

    pub(crate) fn malformed(what: impl ToString) -> Self {
        Self::Malformed { what: what.to_string() }
    }
}
