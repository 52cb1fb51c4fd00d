//! Errors of VMMs.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::qmp::QmpError;
use crate::{Obstacle, StreamError};

/// Failure of something asked of a VMM.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    /// The connection to QEMU failed, or QEMU refused a command.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// Something forbids saving the guest. Nothing was touched.
    #[error("the guest cannot be saved: {}", list(.0))]
    Obstructed(Vec<Obstacle>),
    /// The guest was stopped, and then something failed.
    #[error("{error}; {guest}{}", left_behind(.overlays))]
    Interrupted {
        /// Cause.
        error: Box<VmmError>,
        /// The guest's state afterwards.
        guest: GuestAfter,
        /// Overlays that the guest writes to, or may write to after [`VmmError::OverlaysInDoubt`]. They must stay.
        overlays: Vec<PathBuf>,
    },
    /// Somebody else let the guest run during the pause. It runs, or is theirs to resume.
    #[error(
        "somebody else resumed the guest while it was to stand still: what was saved does not belong \
        together and is to be thrown away"
    )]
    Disturbed,
    /// Device state was asked for without a pause before.
    #[error("the guest is not paused: pause it first")]
    NotPaused,
    /// A VMM answered without what was asked for.
    #[error(
        "QEMU's answer to `{command}` has no {missing}; is this version of QEMU supported (7.2 to 10)?"
    )]
    Answer {
        /// The command.
        command: &'static str,
        /// Part that was looked for.
        missing: &'static str,
    },
    /// A VMM that is to load device state is in another state.
    #[error(
        "QEMU is `{state}` and cannot load device state: start it with `-incoming defer -S`, and \
        load once"
    )]
    NotIncoming {
        /// QEMU's name of the state.
        state: String,
    },
    /// Device state is of another type of machine.
    #[error(
        "the device state is of machine {saved}, and this QEMU runs {here}: start it with \
        `-machine {saved}`"
    )]
    Machine {
        /// Machine that was saved.
        saved: String,
        /// Machine that was to load it.
        here: String,
    },
    /// A VMM cannot load what was saved in this way.
    #[error("device state saved by {0} cannot be loaded by this VMM")]
    Method(crate::SaveMethod),
    /// QEMU could not load device state.
    #[error("QEMU could not load the device state: {words}")]
    Load {
        /// QEMU's own words, or where to find them.
        words: String,
    },
    /// The guest runs, though it was to wait.
    #[error(
        "the guest was started by loading its device state, whatever its memory held: start QEMU \
        with -S"
    )]
    StartedItself,
    /// An operation took too long.
    #[error("{what} took longer than {} ms", limit.as_millis())]
    TimedOut {
        /// The operation.
        what: &'static str,
        /// Longest wait.
        limit: Duration,
    },
    /// Saving device state ended badly.
    #[error("QEMU could not save the device state: {words}")]
    Save {
        /// QEMU's own words.
        words: String,
    },
    /// Device state is not what QEMU writes.
    #[error("the device state that QEMU wrote is unusable: {0}")]
    Stream(#[from] StreamError),
    /// An overlay cannot be made. Nothing was touched.
    #[error("the overlay {} cannot be made: {why}", path.display())]
    Overlay {
        /// Path asked for.
        path: PathBuf,
        /// Reason, and what to do.
        why: String,
    },
    /// Overlays were asked for, and no answer came: disks may have them, or may get them later.
    #[error("{0}; `query-block` shows if the disks have their overlays")]
    OverlaysInDoubt(QmpError),
    /// An operation of this process failed.
    #[error("{doing}: {error}")]
    Io {
        /// Operation that failed, in words.
        doing: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// A VMM that implements [`Vmm`](crate::Vmm) itself failed.
    #[error("{doing}: {reason}")]
    Callback {
        /// Operation that failed, in words.
        doing: String,
        /// The VMM's reason.
        reason: String,
    },
}

/// A guest's state after something failed while it was stopped.
#[derive(Debug)]
pub enum GuestAfter {
    /// The guest runs on.
    RunsOn,
    /// The guest was paused before, and still is.
    StaysPaused,
    /// Somebody else resumed the guest, and has it now.
    Theirs,
    /// The guest could not be resumed, for this reason unless resuming was all that failed.
    Stuck(Option<Box<VmmError>>),
}

impl GuestAfter {
    /// Returns the state of a guest that was told to run. One that ran already runs on.
    pub(crate) fn of_resuming(resumed: Result<SystemTime, VmmError>) -> Self {
        match resumed {
            Ok(_) | Err(VmmError::Disturbed) => Self::RunsOn,
            Err(error) => Self::Stuck(Some(Box::new(error))),
        }
    }
}

impl fmt::Display for GuestAfter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunsOn => formatter.write_str("the guest runs on"),
            Self::StaysPaused => formatter.write_str("the guest is paused, as it was"),
            Self::Theirs => formatter.write_str("the guest is left to whoever resumed it"),
            Self::Stuck(reason) => {
                formatter
                    .write_str("THE GUEST MAY STAND STILL: resume it with `cont` in its monitor")?;
                match reason {
                    Some(reason) => write!(formatter, " (resuming it failed: {reason})"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl VmmError {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |error| Self::Io { doing, error }
    }
}

fn list(obstacles: &[Obstacle]) -> String {
    obstacles.iter().map(Obstacle::to_string).collect::<Vec<_>>().join("; ")
}

fn left_behind(overlays: &[PathBuf]) -> String {
    if overlays.is_empty() {
        return String::new();
    }
    let paths: Vec<_> = overlays.iter().map(|path| path.display().to_string()).collect();
    format!(
        "; its disks write, or may write, to new overlays, which must stay: {}",
        paths.join(", ")
    )
}
