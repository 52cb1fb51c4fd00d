//! Errors of checkpoints.

use std::io;

use bindery_pool::object::ReadError;
use bindery_pool::write::{AppendError, CommitError};
use bindery_pool::{AllocateError, DeleteError, FindError, LogError, log};
use bindery_units::PageIndex;
use thiserror::Error;

use crate::format_error::FormatError;
use crate::name::{BadName, Name};
use crate::seal::KeyError;

/// Reason why something about checkpoints was not done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// No checkpoint has that name or number.
    #[error("there is no checkpoint {0}: list them")]
    NoCheckpoint(String),
    /// The name is taken.
    #[error(
        "guest {guest} has a checkpoint {name} already, or one is being made: take another name"
    )]
    Exists {
        /// Name of the guest.
        guest: Name,
        /// Name of the checkpoint.
        name: Name,
    },
    /// The text is no name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// No domain has that name.
    #[error("there is no domain {0} in this pool: open it first, which makes it")]
    NoDomain(Name),
    /// The domain is encrypted, and no key was given.
    #[error("checkpoints of domain {0} are encrypted: open the domain with its key file")]
    Locked(Name),
    /// The key is not the domain's.
    #[error("the key is not that of domain {0}: give the key file that it was made with")]
    WrongKey(Name),
    /// A key was given for a domain that has none.
    #[error(
        "checkpoints of domain {0} are not encrypted, and stay so: leave the key file out, or take \
         another domain"
    )]
    NotEncrypted(Name),
    /// The base is of another domain.
    #[error("checkpoint {base} is of domain {domain}, not of {wanted}: domains share no page")]
    OtherDomain {
        /// The checkpoint, as `guest@name`.
        base: String,
        /// Domain of the base.
        domain: Name,
        /// Domain of the new checkpoint.
        wanted: Name,
    },
    /// The description is of no guest that there can be.
    #[error("the guest cannot be described: {0}")]
    Description(#[source] FormatError),
    /// Pages were put, or asked for, that the memory block does not have.
    #[error("memory block {block} has {pages} pages: there are no {count} at page {}", first.0)]
    NoPages {
        /// Number or name of the memory block.
        block: String,
        /// Number of pages that it has.
        pages: u64,
        /// First page that was asked for.
        first: PageIndex,
        /// Number of pages that were asked for.
        count: u64,
    },
    /// The bytes are not whole pages.
    #[error("{0} bytes are no whole number of pages")]
    NotPages(usize),
    /// Pages could not be put before, so that the checkpoint would lack them.
    #[error("the checkpoint lacks pages that could not be put: make it again")]
    Unfinished,
    /// The pool's root MDC belongs to somebody else.
    #[error(
        "the root of the pool holds something else than Bindery's records: make a pool of its own for \
         checkpoints"
    )]
    ForeignRoot,
    /// A record of the root is damaged, or a later Bindery wrote it.
    #[error("a record of checkpoints in the pool's root cannot be read: {0}")]
    Record(#[source] FormatError),
    /// Records contradict each other.
    #[error("the records of checkpoints in the pool's root contradict each other: {0}")]
    Contradiction(&'static str),
    /// The root cannot hold more.
    #[error(
        "the pool's root is full: delete checkpoints, or make a pool with larger `catalogue_bytes`: {0}"
    )]
    RootFull(#[source] log::WriteError),
    /// An object of a checkpoint cannot be read.
    #[error("the {what} of {checkpoint} cannot be read: {source}")]
    Damaged {
        /// Kind of object.
        what: &'static str,
        /// The checkpoint, as `guest@name`.
        checkpoint: String,
        /// Reason.
        source: PackError,
    },
    /// A page cannot be read. Others may be.
    #[error("page {} of memory block {block} of {checkpoint} cannot be read: {source}", page.0)]
    Page {
        /// The checkpoint, as `guest@name`.
        checkpoint: String,
        /// Name of the memory block.
        block: String,
        /// The first page of those asked for that cannot be read.
        page: PageIndex,
        /// Reason.
        source: PackError,
    },
    /// The caller ended it.
    #[error("it was ended before it was done")]
    Stopped,
    /// The caller's memory could not be read.
    #[error("memory of the guest could not be read: {0}")]
    Memory(#[source] io::Error),
    /// The export could not be written.
    #[error("the export could not be written: {0}")]
    Export(#[source] io::Error),
    /// The stream could not be read.
    #[error("the stream could not be read: {0}")]
    Stream(#[source] io::Error),
    /// The stream is damaged, cut off, or none.
    #[error("the stream is refused: {0}; nothing of it was imported")]
    Import(#[source] FormatError),
    /// A key file cannot be used, or no key can be drawn.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The thread that commits could not be started.
    #[error("cannot start the thread that commits packs: {0}")]
    Thread(#[source] io::Error),
    /// The pool has no room.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// An object could not be written.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// An object could not be committed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// An object is not there.
    #[error(transparent)]
    Find(#[from] FindError),
    /// An object could not be deleted.
    #[error(transparent)]
    Delete(#[from] DeleteError),
    /// The root could not be made or opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The root could not be read.
    #[error("the pool's root cannot be read: {0}")]
    RootRead(#[from] log::OpenError),
    /// The root could not be written. Whether what was to be noted is durable shows when the pool is opened
    /// again.
    #[error("the pool's root could not be written: {0}")]
    RootWrite(#[from] log::WriteError),
}

/// Reason why an object of ours cannot be read.
#[derive(Debug, Error)]
pub enum PackError {
    /// The pool does not have it, or not here.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The pool cannot read it.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The object holds something else than what was written.
    #[error("the object does not hold what was written: {0}")]
    Format(#[from] FormatError),
    /// The pack has no such page.
    #[error("the pack has {pages} pages, and none of number {page}")]
    NoPage {
        /// Number of the page in the pack.
        page: u32,
        /// Number of pages that it has.
        pages: u32,
    },
}
