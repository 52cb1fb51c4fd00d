//! Errors of pools and checkpoints, as operators are told them.

use std::io;

use bindery_checkpoint::CheckpointError;
use bindery_pool::{OpenError, PathError, device};

use crate::jobs;
use crate::protocol::{Failure, FailureKind};

/// Failure to open a pool.
pub(super) fn of_path(error: &PathError) -> Failure {
    let of_io = |source: &io::Error| match source.kind() {
        io::ErrorKind::NotFound => FailureKind::NoPool,
        io::ErrorKind::PermissionDenied => FailureKind::Refused,
        _ => FailureKind::Failed,
    };
    let kind = match error {
        PathError::Device(device::OpenError::InUse { .. }) => FailureKind::Taken,
        PathError::Device(device::OpenError::Io { source, .. })
        | PathError::File { source, .. } => of_io(source),
        PathError::NotFound { .. } | PathError::Open(OpenError::Missing { .. }) => {
            FailureKind::NoPool
        }
        PathError::Device(device::OpenError::ReadOnly { .. }) => FailureKind::Refused,
        _ => FailureKind::Failed,
    };
    Failure::new(kind, format!("the pool for checkpoints cannot be opened: {error}"))
}

/// Failure to read what a pool says of itself.
pub(super) fn of_open(error: &OpenError) -> Failure {
    let kind = match error {
        OpenError::NoPool { .. } | OpenError::Missing { .. } => FailureKind::NoPool,
        _ => FailureKind::Failed,
    };
    Failure::new(kind, format!("the pool for checkpoints cannot be opened: {error}"))
}

/// Failure of something about checkpoints.
pub(crate) fn of_checkpoint(error: &CheckpointError) -> Failure {
    let remedy = match error {
        CheckpointError::Locked(_) => {
            "; name that file in the daemon's configuration (checkpoint_key, or [checkpoint.keys]) and start it \
             again; its log shows whether the one that it has is another"
        }
        CheckpointError::WrongKey(_) => {
            "; the daemon's configuration names another (checkpoint_key, or [checkpoint.keys])"
        }
        _ => "",
    };
    let kind = match error {
        CheckpointError::Stopped => return jobs::cancelled(),
        CheckpointError::NoCheckpoint(_) => FailureKind::NoSuchCheckpoint,
        CheckpointError::Exists { .. } => FailureKind::Taken,
        CheckpointError::Name(_) => FailureKind::BadRequest,
        CheckpointError::Locked(_)
        | CheckpointError::WrongKey(_)
        | CheckpointError::NotEncrypted(_) => FailureKind::Refused,
        CheckpointError::Damaged { .. }
        | CheckpointError::Page { .. }
        | CheckpointError::Record(_)
        | CheckpointError::Contradiction(_) => FailureKind::Damaged,
        CheckpointError::Import(_) => FailureKind::BadFile,
        _ => FailureKind::Failed,
    };
    Failure::new(kind, format!("{error}{remedy}"))
}
