//! Why KSM cannot be paced.

use std::io;
use std::path::{Path, PathBuf};

use bindery_advisor::SettingError;
use bindery_sys::ksm::DIRECTORY;

use crate::claim::Holder;

/// Why KSM cannot be paced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PilotError {
    /// The kernel has no KSM.
    #[error(
        "this kernel has no KSM ({DIRECTORY} is not there): boot one built with CONFIG_KSM, or merge \
         with `bindery run`, which needs none"
    )]
    NoKsm,
    /// It has, and this process may not change it.
    #[error(
        "cannot write {}: {source}; KSM's settings are for root, and read-only in most containers: \
         run it as root on the host", path.display()
    )]
    NotPermitted {
        /// What was to be changed.
        path: PathBuf,
        /// The kernel's word.
        source: io::Error,
    },
    /// ksmd cannot be seen.
    #[error("cannot see what ksmd uses: {0}")]
    NoKsmd(io::Error),
    /// A setting of the advisor's is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// There is a pilot already.
    #[error(
        "{0} paces KSM already: end it first (SIGTERM puts KSM back as it was), or let it go on"
    )]
    AlreadyRunning(Holder),
    /// Whether there is one cannot be told, or made sure of.
    #[error("cannot lock {}, which one pilot at a time has: {source}", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What was found cannot be saved, read or removed.
    #[error("cannot {action} {}: {source}; name another file with --state", path.display())]
    State {
        /// What was to be done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file of what was found is not ours.
    #[error(
        "{} is not what a pilot wrote ({why}), so KSM's settings are left alone: look at it and \
         remove it, or name another file with --state", path.display()
    )]
    ForeignState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel refused something that it should not have.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was to be done.
        doing: String,
        /// Why not.
        source: io::Error,
    },
}

impl PilotError {
    /// The kernel's answer to opening or writing one of KSM's files.
    pub(crate) fn of_write(path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::NotPermitted { path: path.into(), source }
            }
            _ => Self::io(format_args!("write {}", path.display()))(source),
        }
    }

    pub(crate) fn io(doing: impl ToString) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing: doing.to_string(), source }
    }
}
