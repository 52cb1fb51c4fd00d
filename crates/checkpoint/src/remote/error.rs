//! Errors of checkpoints in an object store.

use bindery_pool::archive::{Fault, OpenError};
use thiserror::Error;

use crate::error::CheckpointError;
use crate::format_error::FormatError;
use crate::seal::KeyError;

/// Reason why something about checkpoints in an object store was not done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The store cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store did not do what it was asked.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The stream of pages broke, or is damaged.
    #[error(transparent)]
    Stream(#[from] CheckpointError),
    /// No key can be drawn.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A checkpoint of these names is there.
    #[error(
        "{url} has a checkpoint {checkpoint} already: delete it there (`bindery checkpoint delete --at`), or \
         push under another prefix"
    )]
    Exists {
        /// URL of the prefix.
        url: String,
        /// The checkpoint, as `guest@name`.
        checkpoint: String,
    },
    /// No checkpoint has these names.
    #[error("{url} has no checkpoint {checkpoint}{}", remedy(*has_others))]
    Missing {
        /// URL of the prefix.
        url: String,
        /// The checkpoint, as `guest@name`.
        checkpoint: String,
        /// True if there is something that other keys have encrypted, or none.
        has_others: bool,
    },
    /// An object holds something else than what was written.
    #[error("{key} in {url} cannot be used: {source}")]
    Damaged {
        /// URL of the prefix.
        url: String,
        /// Key of the object, below the prefix.
        key: String,
        /// Reason.
        source: FormatError,
    },
    /// An object is gone that a checkpoint needs.
    #[error("{key} is not in {url}, and the checkpoint needs it: was the checkpoint deleted?")]
    Lost {
        /// URL of the prefix.
        url: String,
        /// Key of the object, below the prefix.
        key: String,
    },
    /// The store acknowledged an object, and does not have it.
    #[error(
        "{url} acknowledged {key} and does not have what was sent: nothing is pushed; push again, or use \
         another store"
    )]
    NotKept {
        /// URL of the prefix.
        url: String,
        /// Key of the object, below the prefix.
        key: String,
    },
    /// A deletion has removed what the push relied on.
    #[error(
        "a deletion in {url} has removed what this push relied on: nothing is pushed; push again"
    )]
    Swept {
        /// URL of the prefix.
        url: String,
    },
    /// The caller ended it.
    #[error("it was ended before it was done")]
    Stopped,
}

const fn remedy(has_others: bool) -> &'static str {
    if has_others {
        " that this key opens; there are some of other keys or without one: give the key file that it was pushed \
         with, or --unencrypted"
    } else {
        ": `bindery checkpoint list --at` shows those there are"
    }
}
