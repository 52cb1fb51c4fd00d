//! Exit codes of the errors of pools.

use bindery_pool::mdc::MdcError;
use bindery_pool::object::ReadError;
use bindery_pool::write::{AppendError, CommitError};
use bindery_pool::{
    AllocateError, ArchiveError, ChangeError, CreateError, DeleteError, FindError, GrowError,
    JoinError, MoveError, OpenError, PathError, ReaderError, archive, device, log,
};

use std::io;

use super::registry::RegistryError;
use crate::exit::{Failure, Reason};

fn of_kind(kind: io::ErrorKind) -> Reason {
    match kind {
        io::ErrorKind::NotFound => Reason::NotFound,
        io::ErrorKind::PermissionDenied => Reason::Refused,
        io::ErrorKind::AlreadyExists => Reason::Taken,
        _ => Reason::Failed,
    }
}

fn of_device(error: &device::OpenError) -> Reason {
    match error {
        device::OpenError::Io { source, .. } => of_kind(source.kind()),
        device::OpenError::InUse { .. } => Reason::Taken,
        device::OpenError::ReadOnly { .. } => Reason::Refused,
        device::OpenError::NoDevice { .. } => Reason::BadInput,
        device::OpenError::NoUring { .. } => Reason::Unsupported,
    }
}

fn of_log(error: &log::OpenError) -> Reason {
    match error {
        log::OpenError::Device(_) | log::OpenError::Erased(_) => Reason::Failed,
        log::OpenError::Version { .. } => Reason::BadInput,
        _ => Reason::Damaged,
    }
}

fn of_mdc(error: &MdcError) -> Reason {
    match error {
        MdcError::Log(error) => of_log(error),
        MdcError::Write(_) => Reason::Failed,
        _ => Reason::Damaged,
    }
}

/// Why a pool could not be opened.
pub(super) fn of_open(error: &OpenError) -> Reason {
    match error {
        OpenError::Read { source, .. } => of_kind(source.kind()),
        OpenError::Write { .. } => Reason::Failed,
        OpenError::Missing { .. } => Reason::NotFound,
        OpenError::Catalogue(error) => of_mdc(error),
        OpenError::Log(error) => of_log(error),
        OpenError::Superblocks { .. }
        | OpenError::Contradiction(_)
        | OpenError::Misplaced { .. } => Reason::Damaged,
        _ => Reason::BadInput,
    }
}

fn of_join(error: &JoinError) -> Reason {
    match error {
        JoinError::NotEmpty { .. } | JoinError::InPool { .. } => Reason::Taken,
        JoinError::Read { source, .. } => of_kind(source.kind()),
        _ => Reason::Usage,
    }
}

fn of_create(error: &CreateError) -> Reason {
    match error {
        CreateError::Join(error) => of_join(error),
        CreateError::NoCapacity => Reason::Usage,
        CreateError::Write { source, .. } => of_kind(source.kind()),
        CreateError::Mdc(_) | CreateError::Change(_) => Reason::Failed,
    }
}

fn of_grow(error: &GrowError) -> Reason {
    match error {
        GrowError::Join(error) => of_join(error),
        GrowError::NoDevice { .. } => Reason::NotFound,
        GrowError::Device { .. } | GrowError::Change(_) => Reason::Failed,
    }
}

fn of_path(error: &PathError) -> Reason {
    match error {
        PathError::Device(error) => of_device(error),
        PathError::File { source, .. } => of_kind(source.kind()),
        PathError::NoLength(_) | PathError::Several(_) | PathError::Ambiguous { .. } => {
            Reason::Usage
        }
        PathError::NameTaken { .. } => Reason::Taken,
        PathError::NotFound { .. } => Reason::NotFound,
        PathError::Open(error) => of_open(error),
        PathError::Create(error) => of_create(error),
        PathError::Grow(error) => of_grow(error),
        PathError::Change(_) => Reason::Failed,
    }
}

fn of_read(error: &ReadError) -> Reason {
    match error {
        ReadError::Damaged(_) | ReadError::Checksums { .. } | ReadError::Archive { .. } => {
            Reason::Damaged
        }
        _ => Reason::Failed,
    }
}

/// Converts each kind of error into a failure, with the exit code that a function gives it.
macro_rules! failures {
    ($($error:ty => $reason:expr;)*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let reason: fn(&$error) -> Reason = $reason;
                Self::new(reason(&error), error.to_string())
            }
        }
    )*};
}

failures! {
    PathError => of_path;
    OpenError => of_open;
    ReadError => of_read;
    GrowError => of_grow;
    ChangeError => |_| Reason::Failed;
    AppendError => |_| Reason::Failed;
    CommitError => |_| Reason::Failed;
    FindError => |_| Reason::NotFound;
    AllocateError => |error| match error {
        AllocateError::NoClass { .. } | AllocateError::Nothing => Reason::Usage,
        _ => Reason::Failed,
    };
    ArchiveError => |_| Reason::Failed;
    MoveError => |error| match error {
        MoveError::Find(_) => Reason::NotFound,
        MoveError::Read(archive::ReadError::Missing { .. } | archive::ReadError::Damaged { .. }) => {
            Reason::Damaged
        }
        _ => Reason::Failed,
    };
    DeleteError => |error| match error {
        DeleteError::Find(_) => Reason::NotFound,
        DeleteError::Open(_) | DeleteError::Moving(_) => Reason::Taken,
        DeleteError::Catalogue { .. } => Reason::Failed,
    };
    ReaderError => |error| match error {
        ReaderError::Find(_) | ReaderError::Deleted(_) => Reason::NotFound,
        ReaderError::Hold { .. } => Reason::Failed,
        ReaderError::Read(error) => of_read(error),
        ReaderError::Catalogue(error) => of_open(error),
    };
    archive::OpenError => |error| match error {
        archive::OpenError::Location(archive::LocationError::Directory { .. }) => Reason::NotFound,
        archive::OpenError::Location(_) | archive::OpenError::Parts { .. } => Reason::Usage,
        archive::OpenError::Unconditional { .. } => Reason::Unsupported,
        archive::OpenError::Foreign { .. } => Reason::BadInput,
        _ => Reason::Failed,
    };
    RegistryError => |error| match error {
        RegistryError::Unknown { .. } => Reason::NotFound,
        RegistryError::Taken { .. } => Reason::Taken,
        RegistryError::Unreadable { .. } => Reason::BadInput,
        RegistryError::File { source, .. } => of_kind(source.kind()),
    };
}
