//! How the command ends: one exit code for each kind of failure, so that scripts need not read
//! messages.

use std::fmt;
use std::io;
use std::process::ExitCode;

use bindery_host::client::ClientError;
use bindery_host::endpoint::EndpointError;
use bindery_host::protocol::FailureKind;
use bindery_host::{BindError, HttpError};

/// Why the command failed. The discriminant is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    /// Something else went wrong.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No daemon listens on the socket.
    NoDaemon = 3,
    /// No such guest, process, file, pool, object or checkpoint.
    NotFound = 4,
    /// Another user's process or daemon, or a missing right.
    Refused = 5,
    /// The name of a guest or pool is taken, a daemon or pilot runs already, or a device is in use.
    Taken = 6,
    /// This kernel, or its settings, lack something.
    Unsupported = 7,
    /// An input file is not what it should be.
    BadInput = 8,
    /// What was stored is not what is there.
    Damaged = 9,
}

const REASONS: [Reason; 9] = [
    Reason::Failed,
    Reason::Usage,
    Reason::NoDaemon,
    Reason::NotFound,
    Reason::Refused,
    Reason::Taken,
    Reason::Unsupported,
    Reason::BadInput,
    Reason::Damaged,
];

impl Reason {
    /// What the exit code means, for the manual.
    fn meaning(self) -> &'static str {
        match self {
            Self::Failed => "it was tried and failed; the message says why",
            Self::Usage => "the command line is wrong",
            Self::NoDaemon => "no daemon listens on the socket",
            Self::NotFound => "no such guest, process, file, pool, object or checkpoint",
            Self::Refused => "not permitted: another user's process or daemon, or a missing right",
            Self::Taken => {
                "a name, the socket (a daemon runs), the HTTP address or a device is taken, or a pilot paces KSM"
            }
            Self::Unsupported => "this kernel, its settings or this VMM lack something needed",
            Self::BadInput => {
                "an image, export, configuration, token, key, saved state or device of a pool is wrong"
            }
            Self::Damaged => "something that a pool holds is damaged",
        }
    }
}

/// Every exit code with its meaning, for the manual.
pub(crate) fn exit_codes() -> impl Iterator<Item = (u8, &'static str)> {
    let failures = REASONS.into_iter().map(|reason| (reason as u8, reason.meaning()));
    std::iter::once((0, "done")).chain(failures)
}

/// The end of a command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    reason: Reason,
    message: String,
}

impl Failure {
    /// A failure that says what happened and what to do.
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// The kernel's `error` while doing something, with the exit code that fits it.
    pub(crate) fn of_io(doing: impl fmt::Display, error: &io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::NotFound => Reason::NotFound,
            io::ErrorKind::PermissionDenied => Reason::Refused,
            _ => Reason::Failed,
        };
        Self::new(reason, format!("{doing}: {error}"))
    }

    /// Why.
    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }

    /// The failure for programs, in one line.
    pub(crate) fn to_json(&self) -> String {
        let Self { reason, message } = self;
        serde_json::json!({ "error": { "exit_code": *reason as u8, "message": message } })
            .to_string()
    }

    /// The failure that [`Failure::to_json`] wrote.
    pub(crate) fn from_json(line: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let error = value.get("error")?;
        let code = error.get("exit_code")?.as_u64()?;
        let reason = REASONS.into_iter().find(|reason| *reason as u64 == code)?;
        Some(Self::new(reason, error.get("message")?.as_str()?))
    }

    /// Tells the user on stderr and returns the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if json {
            eprintln!("{}", self.to_json());
        } else {
            eprintln!("bindery: {}", self.message);
        }
        ExitCode::from(self.reason as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let reason = match &error {
            ClientError::NoDaemon(_) => Reason::NoDaemon,
            ClientError::Refused(_) => Reason::Refused,
            ClientError::Failed(failure) => match failure.kind {
                FailureKind::NoSuchGuest
                | FailureKind::NoSuchCheckpoint
                | FailureKind::NoPool
                | FailureKind::NoSuchJob => Reason::NotFound,
                FailureKind::Taken => Reason::Taken,
                FailureKind::Damaged => Reason::Damaged,
                FailureKind::Refused => Reason::Refused,
                FailureKind::BadSetting => Reason::Usage,
                FailureKind::BadFile => Reason::BadInput,
                _ => Reason::Failed,
            },
            _ => Reason::Failed,
        };
        Self::new(reason, error.to_string())
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Endpoint(error) => error.into(),
            BindError::Settings(refused) => Self::new(Reason::Usage, refused.message),
            BindError::Http(error) => error.into(),
            BindError::Key(error) => Self::new(Reason::BadInput, error.to_string()),
            error => Self::new(Reason::Failed, error.to_string()),
        }
    }
}

impl From<HttpError> for Failure {
    fn from(error: HttpError) -> Self {
        let reason = match &error {
            HttpError::NeedsToken(_) => Reason::Usage,
            HttpError::Token { .. } => Reason::BadInput,
            HttpError::TokenFile { source, .. } | HttpError::Listen { source, .. } => {
                match source.kind() {
                    io::ErrorKind::NotFound => Reason::NotFound,
                    io::ErrorKind::PermissionDenied => Reason::Refused,
                    io::ErrorKind::AddrInUse => Reason::Taken,
                    _ => Reason::Failed,
                }
            }
            _ => Reason::Failed,
        };
        Self::new(reason, error.to_string())
    }
}

impl From<EndpointError> for Failure {
    fn from(error: EndpointError) -> Self {
        let reason = match &error {
            EndpointError::AlreadyRunning { .. } => Reason::Taken,
            EndpointError::UnsafeDirectory { .. } | EndpointError::Group { .. } => Reason::Refused,
            EndpointError::Io { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Reason::Refused
            }
            _ => Reason::Failed,
        };
        Self::new(reason, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_distinct() {
        let codes: Vec<u8> = exit_codes().map(|(code, _)| code).collect();
        assert_eq!(codes, (0..codes.len() as u8).collect::<Vec<_>>());
    }

    #[test]
    fn a_failure_survives_the_way_from_the_daemon_to_who_started_it() {
        let failure = Failure::new(Reason::Taken, "pid 7 has \"it\"");
        let heard = Failure::from_json(&failure.to_json()).unwrap();
        assert_eq!((heard.reason, heard.message), (failure.reason, failure.message));
        assert!(Failure::from_json("{}").is_none());
    }
}
