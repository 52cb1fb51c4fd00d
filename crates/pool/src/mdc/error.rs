//! Errors of MDCs.

use thiserror::Error;

use crate::id::ObjectId;
use crate::log::{OpenError, WriteError};

/// An MDC could not be made, opened or read.
#[derive(Debug, Error)]
pub enum MdcError {
    /// A log could not be read.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// A log could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Neither log is complete, so that it was never made, or its logs are those of two MDCs.
    #[error(
        "neither log {0} nor log {1} holds a whole copy of the metadata: was the pool's creation \
         interrupted?"
    )]
    Neither(ObjectId, ObjectId),
    /// Both logs say that they are the same one.
    #[error("logs {0} and {1} are both number {2}: they are not the two logs of one MDC")]
    Both(ObjectId, ObjectId, u64),
    /// A record of a log is none that an MDC appends.
    #[error("log {log} holds a record that is no MDC's: it begins with {tag:?}")]
    Foreign {
        /// Id of the log.
        log: ObjectId,
        /// First byte of the record.
        tag: Option<u8>,
    },
}
