//! What can go wrong with a guest.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::QmpError;

/// Why a guest could not be made, started or spoken to.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Set-up has not run, or not to its end.
    #[error("{} is missing or incomplete: run `cargo xtask setup`", part.display())]
    NoKit {
        /// What was looked for.
        part: PathBuf,
    },
    /// A file could not be read or written, or a program not be started.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The program that runs inside guests did not compile.
    #[error("the guest agent did not compile; is `rustc` with a static libc there?\n{output}")]
    Agent {
        /// What the compiler said.
        output: String,
    },
    /// QEMU, or what launched it, ended by itself.
    #[error("QEMU ended by itself ({status}); its last words:\n{words}")]
    Ended {
        /// Its exit status.
        status: String,
        /// The end of its standard error and of the guest's console.
        words: String,
    },
    /// The guest did not answer in time.
    #[error(
        "the guest did not answer {what:?} within {timeout:?}; its console ended with:\n{console}"
    )]
    Timeout {
        /// What it was asked.
        what: String,
        /// How long it was waited for.
        timeout: Duration,
        /// The end of its console.
        console: String,
    },
    /// A command in the guest failed.
    #[error("in the guest, `{command}` ended with {status}:\n{output}")]
    Command {
        /// The command.
        command: String,
        /// Its exit status, -1 for a signal.
        status: i32,
        /// What it wrote.
        output: String,
    },
    /// QEMU's monitor refused or could not be reached.
    #[error(transparent)]
    Qmp(#[from] QmpError),
}

impl GuestError {
    /// For `map_err`: says what was being done.
    pub(crate) fn io(context: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let context = context.into();
        move |source| Self::Io { context, source }
    }
}
