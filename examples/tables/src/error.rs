//! What can go wrong in a store.

use std::sync::Arc;

use bindery_pool::map::MapError;
use bindery_pool::mdc::MdcError;
use bindery_pool::object::ReadError;
use bindery_pool::write::{AppendError, CommitError};
use bindery_pool::{AllocateError, DeleteError, FindError, LogError, ObjectId, log};
use thiserror::Error;

use crate::block::ENTRY_BYTES_MAX;

/// Why a store could not do what it was asked for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// An entry does not fit a block.
    #[error("a key and its value have {bytes} bytes together, and {ENTRY_BYTES_MAX} is the most")]
    TooLong {
        /// How long they are.
        bytes: usize,
    },
    /// The list of tables is not one of this store.
    #[error("the pool's root MDC holds something else than this store's list of tables")]
    ForeignManifest,
    /// An object is not what the list of tables says.
    #[error("object {0} is no index of a table")]
    NoIndex(ObjectId),
    /// An object is not what the list of tables says.
    #[error("object {0} is no table")]
    NoTable(ObjectId),
    /// A log of the store holds what it did not write.
    #[error("log {0} holds something else than this store's entries")]
    ForeignLog(ObjectId),
    /// A store is filled once.
    #[error("only an empty store can be filled: put the entries instead")]
    NotEmpty,
    /// A thread of the store has failed, and what is put would pile up.
    #[error("the store has stopped: {0}")]
    Stopped(#[source] Arc<StoreError>),
    /// A thread of the store met what must not be.
    #[error("a thread of the store has panicked; stderr has its message: reopen the store")]
    Panicked,
    /// The pool has no place for a table.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// A table could not be written.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A table could not be committed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A table is not there.
    #[error(transparent)]
    Find(#[from] FindError),
    /// A table could not be deleted.
    #[error(transparent)]
    Delete(#[from] DeleteError),
    /// A log could not be made or opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A log could not be read.
    #[error(transparent)]
    LogRead(#[from] log::OpenError),
    /// A log could not be written.
    #[error(transparent)]
    LogWrite(#[from] log::WriteError),
    /// The root MDC could not be read.
    #[error(transparent)]
    Mdc(#[from] MdcError),
    /// Tables could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A [`Mapper`](crate::Mapper) of the caller's own failed.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// An object could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}
