//! What can go wrong with a guest.

use std::io;

use bindery_wire::{channel::ChannelError, control::VERSION};

/// Why something asked of a guest was not done.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The connection is closed: the process has ended, or its shim has let go. The process may
    /// still live, and still map what it had mapped.
    #[error("the guest has closed its connection")]
    Gone,
    /// No answer came in time. The lane owes it: see [`Lane::settle`](crate::Lane::settle).
    #[error("the guest did not answer {request} within {} ms: is it stopped?", patience.as_millis())]
    Stalled {
        /// What was asked.
        request: &'static str,
        /// How long was waited.
        patience: std::time::Duration,
    },
    /// The guest sent what no shim sends. The connection is of no further use.
    #[error("the guest speaks nonsense: {what}")]
    Nonsense {
        /// What was wrong.
        what: String,
    },
    /// The shim says that the request makes no sense.
    #[error("the guest's shim refused {request}: do daemon and shim come from one build?")]
    Refused {
        /// What was asked.
        request: &'static str,
    },
    /// The guest's kernel refused something.
    #[error("{request} failed in the guest: {error}")]
    Failed {
        /// What was asked.
        request: &'static str,
        /// The kernel's error there.
        error: io::Error,
    },
    /// The shim is of another version.
    #[error(
        "the guest's shim speaks version {theirs} of the protocol, this daemon {VERSION}: restart \
         the guest with the shim of this build"
    )]
    Version {
        /// The shim's version.
        theirs: u32,
    },
    /// This daemon cannot do it: descriptors or memory are short.
    #[error("{doing}: {error}")]
    Daemon {
        /// What was being done.
        doing: &'static str,
        /// The kernel's error here.
        error: io::Error,
    },
}

impl GuestError {
    /// Whether the connection is of no further use.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Gone | Self::Nonsense { .. } | Self::Version { .. })
    }

    pub(crate) fn nonsense(what: impl Into<String>) -> Self {
        Self::Nonsense { what: what.into() }
    }

    /// What an error of a socket says about the guest at its other end.
    pub(crate) fn of_socket(doing: &'static str, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotConnected
            | io::ErrorKind::UnexpectedEof => Self::Gone,
            io::ErrorKind::InvalidData => Self::nonsense(error.to_string()),
            _ => Self::Daemon { doing, error },
        }
    }
}

impl From<ChannelError> for GuestError {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Nonsense(frame) => Self::nonsense(frame.to_string()),
            ChannelError::Io(error) => Self::of_socket("reading a guest's connection", error),
        }
    }
}
