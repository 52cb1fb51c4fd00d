//! Errors between a pool and its archive.

use thiserror::Error;

use crate::archive;
use crate::catalogue::CatalogueError;
use crate::format::record::LONGEST_URL;
use crate::session::{AllocateError, ChangeError, FindError};
use crate::write::{AppendError, CommitError};
use crate::{MediaClass, ObjectId, PoolName};

/// The archive could not become the pool's, or not be swept.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// The pool has none.
    #[error("pool {0} has no archive: set one first")]
    None(PoolName),
    /// The archive is not open.
    #[error("the archive of pool {name}, {url}, is not open: connect it first")]
    NotOpen {
        /// The pool.
        name: PoolName,
        /// URL of the archive.
        url: String,
    },
    /// The archive could not be opened.
    #[error(transparent)]
    Open(#[from] archive::OpenError),
    /// The URL is too long.
    #[error(
        "the URL of an archive has {LONGEST_URL} bytes at most, not {0}: take a shorter prefix"
    )]
    LongUrl(usize),
    /// The pool has objects in another archive.
    #[error(
        "pool {name} has objects in {known}, and {url} cannot take its place: {source}. Copy all keys \
         from there, or bring the objects back first"
    )]
    Another {
        /// The pool.
        name: PoolName,
        /// URL of the pool's archive.
        known: String,
        /// The other one.
        url: String,
        /// Error of the first object that is not there.
        source: Box<archive::ReadError>,
    },
    /// The change could not be written down.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The store does not do what it is asked.
    #[error(transparent)]
    Fault(#[from] archive::Fault),
}

/// An object could not be moved. It is where it was, and readable there.
#[derive(Debug, Error)]
pub enum MoveError {
    /// There is no such object.
    #[error(transparent)]
    Find(#[from] FindError),
    /// There is no archive to move it to.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// Somebody moves it already.
    #[error("object {0} is being moved already")]
    Busy(ObjectId),
    /// The object is of that class already.
    #[error("object {id} is of class {class} already")]
    There {
        /// Id of the object.
        id: ObjectId,
        /// Class of the object.
        class: MediaClass,
    },
    /// Nothing is brought back to the archive.
    #[error(
        "objects are brought back to class capacity or staging: to archive them is another command"
    )]
    Class,
    /// The object could not be copied to the archive. What was copied is taken up by the next attempt.
    #[error(transparent)]
    Put(#[from] archive::PutError),
    /// The archive acknowledged the object, and does not have it as it was written. The object stays where it was.
    #[error(
        "object {id} stays where it is, because the archive does not have what it acknowledged: {source}. \
         Archive it again; if that fails in the same way, remove that key from the store first"
    )]
    NotKept {
        /// Id of the object.
        id: ObjectId,
        /// Fault of the archive's copy.
        source: Box<archive::ReadError>,
    },
    /// The object in the archive cannot be read, or is not what it should be.
    #[error(transparent)]
    Read(#[from] archive::ReadError),
    /// There is no room for it.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The object could not be written.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The object could not be written, or not be entered.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The catalogue did not take it. Where it failed, it is seen when the pool is opened again where
    /// the object is; it is readable in both places.
    #[error("object {id} could not be moved: {source}")]
    Catalogue {
        /// Id of the object.
        id: ObjectId,
        /// Why.
        source: CatalogueError,
    },
}
