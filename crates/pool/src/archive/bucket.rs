//! Objects in a store under keys of the caller's own: created once, read, listed, removed.
//!
//! Retries, deadlines and errors are those of an [`Archive`](super::Archive); layout, checks and meaning of
//! the objects are the caller's.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use object_store::path::Path;

use super::runtime::Pending;
use super::{ArchiveOptions, Fault, Inner, OpenError};

/// Bytes at the end of an object that are read where not all of it is.
const TAIL_BYTES: u64 = 64;

/// Object that says whose a prefix is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketMarker {
    /// Key below the prefix.
    pub key: &'static str,
    /// Content, with its format's version.
    pub text: &'static str,
}

/// A prefix of a bucket, or a directory. Cheap to clone; all clones share one thread and its connections.
#[derive(Clone)]
pub struct Bucket(Arc<Inner>);

/// Object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Key below the prefix.
    pub key: String,
    /// Length of the object, in bytes.
    pub bytes: u64,
    /// Time at which the object was made, by the store's clock.
    pub made: SystemTime,
}

/// Result of an upload that the store acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upload {
    /// The object is there, and holds what was sent.
    Kept,
    /// The store acknowledged it, and has something else under the key, or nothing.
    NotKept,
    /// Something else was under the key already.
    Exists,
}

/// A request that is under way, or waits for its turn.
#[derive(Debug)]
#[must_use = "its result is known once it was waited for"]
pub struct Transfer<T>(Pending<T>);

impl<T> Transfer<T> {
    /// Waits for the end of it. Blocks.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn wait(self) -> Result<T, Fault> {
        self.0.wait()
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Bucket({})", self.0.url)
    }
}

impl Bucket {
    /// Opens the prefix at `s3://BUCKET/PREFIX` or `file:///DIRECTORY`, making its marker where it has none.
    /// Blocks for one to three requests.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        url: &str,
        options: ArchiveOptions,
        marker: BucketMarker,
    ) -> Result<Self, OpenError> {
        Inner::open(url, options, marker).map(|inner| Self(Arc::new(inner)))
    }

    /// Returns the URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Returns the options that it was opened with.
    #[must_use]
    pub fn options(&self) -> &ArchiveOptions {
        &self.0.options
    }

    fn path(&self, key: &str) -> Path {
        key.split('/').fold(self.0.location.keys.0.clone(), |path, part| path.join(part))
    }

    /// Creates an object, and looks at what the store then has: at all of it if
    /// [`read_back`](ArchiveOptions::read_back) is set, else at its end and its length.
    pub fn create(&self, key: &str, content: Bytes) -> Transfer<Upload> {
        // The future holds nothing of the thread that drives it: it may be the last one there is.
        let (inner, key) = (&self.0, self.path(key));
        let ArchiveOptions { patience, read_back, .. } = inner.options;
        let creation = inner.creation(patience, key.clone(), content.clone());
        let sync = inner.syncing(&key);
        let length = content.len() as u64;
        let start = match read_back {
            true => 0,
            false => length.saturating_sub(TAIL_BYTES),
        };
        // One byte more, which must not be there.
        let looking = inner.reading(patience, key.clone(), start..length + 1);
        let comparing = inner.reading(patience, key, 0..length + 1);
        Transfer(self.0.runtime.spawn(async move {
            // What is there may be what an attempt of ours has sent whose answer was lost.
            let (found, start, other) = match creation.await {
                Ok(()) => (looking.await, start as usize, Upload::NotKept),
                Err(Fault::Exists { .. }) => {
                    sync()?;
                    (comparing.await, 0, Upload::Exists)
                }
                Err(fault) => return Err(fault),
            };
            match found {
                Ok(found) if found == content[start..] => Ok(Upload::Kept),
                Ok(_) | Err(Fault::Absent { .. }) => Ok(other),
                Err(fault) => Err(fault),
            }
        }))
    }

    /// Reads a range of an object, as much of it as there is.
    pub fn get(&self, key: &str, range: Range<u64>) -> Transfer<Bytes> {
        Transfer(self.0.get(self.path(key), range))
    }

    /// Lists all objects below `folder`, in no order. Blocks for a request for each thousand of them.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn list(&self, folder: &str) -> Result<Vec<Listed>, Fault> {
        let prefix = &self.0.location.keys.0;
        let entries =
            self.0.list(if folder.is_empty() { prefix.clone() } else { self.path(folder) })?;
        let listed = |entry: object_store::ObjectMeta| {
            let parts: Vec<String> =
                entry.location.prefix_match(prefix)?.map(|part| part.as_ref().to_owned()).collect();
            let made = entry.last_modified.into();
            Some(Listed { key: parts.join("/"), bytes: entry.size, made })
        };
        Ok(entries.into_iter().filter_map(listed).collect())
    }

    /// Removes an object, if it is there. Blocks for one request.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn delete(&self, key: &str) -> Result<(), Fault> {
        self.0.delete(self.path(key))
    }
}
