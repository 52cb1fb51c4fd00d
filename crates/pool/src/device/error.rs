//! Errors of devices: the file, the place, and what failed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Operations of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading blocks.
    Read,
    /// Writing blocks.
    Write,
    /// Making what was written durable.
    Sync,
    /// Giving a range back.
    Discard,
    /// Making it longer.
    Grow,
    /// Locking a range.
    Lock,
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Discard => "discard",
            Self::Grow => "grow",
            Self::Lock => "lock",
        })
    }
}

/// The payload of every [`io::Error`] of a [`FileDevice`](super::FileDevice); the error's kind is that
/// of `source`.
#[derive(Debug, Error)]
#[error("cannot {operation} {} at byte {offset_bytes}: {}", path.display(), Cause(source))]
pub struct IoError {
    /// The device.
    pub path: PathBuf,
    /// Operation that failed.
    pub operation: Operation,
    /// The first block that it failed for; the length that was asked for, if it was to grow.
    pub offset_bytes: u64,
    /// Why.
    pub source: io::Error,
}

impl IoError {
    /// Names the device in an error.
    pub(super) fn of(
        path: &Path,
        operation: Operation,
        offset_bytes: u64,
        source: io::Error,
    ) -> io::Error {
        let kind = source.kind();
        io::Error::new(kind, Self { path: path.into(), operation, offset_bytes, source })
    }
}

/// Cause of an error, where the kernel's words leave it open.
struct Cause<'a>(&'a io::Error);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            io::ErrorKind::UnexpectedEof => formatter.write_str("it is shorter than it was"),
            io::ErrorKind::WriteZero => formatter.write_str("it takes no more"),
            io::ErrorKind::StorageFull => {
                formatter.write_str("its file system is full: free space on it, or add a device")
            }
            _ => self.0.fmt(formatter),
        }
    }
}

/// Why a device could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The kernel refuses.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The device.
        path: PathBuf,
        /// Operation that failed.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody else is writing to it.
    #[error(
        "{} is in use{}: end that, or open it for reading only",
        path.display(), by(holders)
    )]
    InUse {
        /// The device.
        path: PathBuf,
        /// The processes that have opened it for writing, as far as this user may know. Empty for a
        /// block device that is mounted, or part of another device, and for one of which the kernel has
        /// not let go 10 s after its process was gone.
        holders: Vec<u32>,
    },
    /// The block device is read-only.
    #[error(
        "{} is read-only: make it writable (`blockdev --setrw`, or the switch of the disk), or attach it \
         for writing; what is on it can be read as it is", path.display()
    )]
    ReadOnly {
        /// The block device.
        path: PathBuf,
    },
    /// The path is neither a regular file nor a block device.
    #[error("{} is neither a regular file nor a block device", path.display())]
    NoDevice {
        /// Path that was to be opened.
        path: PathBuf,
    },
    /// The kernel gives this process no io_uring, which was asked for by name.
    #[error(
        "io_uring is refused (sysctl kernel.io_uring_disabled, seccomp): {source}; use threads"
    )]
    NoUring {
        /// Error of the device.
        source: io::Error,
    },
}

fn by(holders: &[u32]) -> String {
    match holders {
        [] => String::new(),
        [one] => format!(" by process {one}"),
        [first, rest @ ..] => rest
            .iter()
            .fold(format!(" by processes {first}"), |text, next| format!("{text}, {next}")),
    }
}
