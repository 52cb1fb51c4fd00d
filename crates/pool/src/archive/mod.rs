//! The media class `archive`: objects in an S3-compatible store, or in a directory.
//!
//! Nothing is made in an archive. Committed objects are copied there ([`Archive::put`]) and read
//! from there, whole units at a time, each verified ([`Stored`]). Hosts may share a bucket: every key
//! is **created**, never overwritten (`If-None-Match: *`), so of two hosts with different contents for
//! one object exactly one succeeds, and the other is told who it was. What is there says for itself
//! whose it is and whether it is whole.
//!
//! **The catalogue is the truth.** A listing may be stale, and nothing is concluded from what it lacks;
//! it only finds what a crash left behind ([`Archive::orphans`]).
//!
//! **Large objects** are cut into parts of [`ArchiveOptions::part_bytes`], each a key of its own and each
//! created conditionally, the first before all others: who creates the first owns the rest. S3's own
//! multipart uploads are not used. Their completion is conditional on few stores only, they leave
//! invisible, billed remains behind, and a crash begins them anew; parts that are keys are found by
//! an interrupted copy's successor, and cost the same number of requests.
//!
//! Calls block. Requests run on a thread of the archive's own.

mod archive_options;
mod bucket;
mod fault;
mod format;
mod http;
mod key;
mod location;
mod lookup;
mod orphans;
mod put;
mod retry;
mod runtime;
mod stored;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt, PutMode, PutOptions};
use thiserror::Error;

pub use archive_options::{ArchiveOptions, Credentials, Secret};
pub use bucket::{Bucket, BucketMarker, Listed, Transfer, Upload};
pub use fault::Fault;
pub use format::{
    Digest, FormatError, HEADER_BYTES, Header, Layout, MAX_LENGTH_BYTES, MAX_PART_BYTES,
    UNIT_BYTES, WRITER_BYTES, decode_table, encode_table, unit_checksum,
};
pub use location::LocationError;
pub use orphans::{Listing, Orphan, Removal};
pub use put::{PutError, Receipt, Source};
pub use retry::Patience;
pub use stored::{Damage, ReadError, Stored};

use fault::Subject;
use key::MARKER;
use location::Location;
use runtime::{Pending, Runtime};

/// An open archive. Cheap to clone; all clones share one thread and its connections.
#[derive(Clone)]
pub struct Archive(Arc<Inner>);

struct Inner {
    url: String,
    options: ArchiveOptions,
    location: Location,
    runtime: Runtime,
}

/// Why an archive could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The URL or the options name none.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// A part would not be whole units, or none, or too many; or no parts would go at once.
    #[error(
        "parts of {part_bytes} bytes, {parts_at_once} at once, are not possible: take a multiple of \
         {UNIT_BYTES} up to {MAX_PART_BYTES}, and at least one at once"
    )]
    Parts {
        /// Length of parts that was asked for, in bytes.
        part_bytes: u64,
        /// Number of parts at once that was asked for.
        parts_at_once: usize,
    },
    /// The store does not do what it is asked.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The store overwrites what it was asked to create only if it is not there.
    #[error(
        "{store} ignores `If-None-Match: *`: two hosts could overwrite each other's objects there. \
         Use a store that creates conditionally (AWS S3, Cloudflare R2, MinIO, Ceph RGW do)"
    )]
    Unconditional {
        /// The archive's URL.
        store: String,
    },
    /// The marker is there and says something else.
    #[error(
        "{store} has something else than {:?} under {} ({found:?}): use another prefix, or a later \
         Bindery", marker.text.trim_end(), marker.key
    )]
    Foreign {
        /// The archive's URL.
        store: String,
        /// Marker that was expected.
        marker: BucketMarker,
        /// Beginning of what the marker says.
        found: String,
    },
    /// No thread could be started.
    #[error("no thread could be started for {store}: {source}")]
    Thread {
        /// The archive's URL.
        store: String,
        /// Error of the kernel.
        source: std::io::Error,
    },
}

impl Archive {
    /// Opens the archive at `s3://BUCKET/PREFIX` or `file:///DIRECTORY`, making its marker where it
    /// has none. Blocks for one to three requests, which also show that the bucket is there, that the
    /// credentials may write, and that the store creates conditionally.
    ///
    /// # Errors
    /// See [`OpenError`]. A store that cannot be reached is one after
    /// [`opening`](Patience::opening).
    pub fn open(url: &str, options: ArchiveOptions) -> Result<Self, OpenError> {
        Inner::open(url, options, MARKER).map(|inner| Self(Arc::new(inner)))
    }

    /// Returns the URL of the archive.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Returns true if what is copied here is read back before it counts as safe.
    pub(crate) fn reads_back(&self) -> bool {
        self.0.options.read_back
    }
}

impl fmt::Debug for Archive {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Archive({})", self.0.url)
    }
}

impl Inner {
    /// Opens a store whose marker is this one, making it where there is none.
    fn open(url: &str, options: ArchiveOptions, marker: BucketMarker) -> Result<Self, OpenError> {
        let ArchiveOptions { part_bytes, parts_at_once, .. } = options;
        let whole = part_bytes.is_multiple_of(UNIT_BYTES as u64);
        if !whole || !(1..=MAX_PART_BYTES).contains(&part_bytes) || parts_at_once == 0 {
            return Err(OpenError::Parts { part_bytes, parts_at_once });
        }
        let location = Location::open(url, &options)?;
        let runtime = Runtime::start()
            .map_err(|source| OpenError::Thread { store: url.to_owned(), source })?;
        let inner = Inner { url: url.to_owned(), options, location, runtime };
        inner.mark(marker)?;
        Ok(inner)
    }

    /// Makes the marker, or finds it, and has the store refuse to make it again.
    fn mark(&self, marker: BucketMarker) -> Result<(), OpenError> {
        let key = self.location.keys.marker(marker);
        for _ in 0..2 {
            let patience = self.options.patience.for_opening();
            let text = Bytes::from_static(marker.text.as_bytes());
            match self.create_within(patience, key.clone(), text).wait() {
                Ok(()) => {}
                Err(Fault::Exists { .. }) => return self.check_marker(marker, key),
                Err(fault) => return Err(fault.into()),
            }
        }
        Err(OpenError::Unconditional { store: self.url.clone() })
    }

    fn check_marker(&self, marker: BucketMarker, key: Path) -> Result<(), OpenError> {
        let patience = self.options.patience.for_opening();
        let found = self.get_within(patience, key, 0..marker.text.len() as u64 + 1).wait()?;
        if found == marker.text.as_bytes() {
            return Ok(());
        }
        let found = String::from_utf8_lossy(&found).into_owned();
        Err(OpenError::Foreign { store: self.url.clone(), marker, found })
    }

    fn subject(&self, key: &Path) -> Subject {
        Subject { store: self.url.clone(), key: key.to_string() }
    }

    /// Creates a key. [`Fault::Exists`] may come of an attempt of our own whose answer was lost: look
    /// what is there.
    fn create(&self, key: Path, content: Bytes) -> Pending<()> {
        self.create_within(self.options.patience, key, content)
    }

    fn create_within(&self, patience: Patience, key: Path, content: Bytes) -> Pending<()> {
        self.runtime.spawn(self.creation(patience, key, content))
    }

    fn creation(
        &self,
        patience: Patience,
        key: Path,
        content: Bytes,
    ) -> impl Future<Output = Result<(), Fault>> + Send + use<> {
        let store = Arc::clone(&self.location.store);
        let subject = self.subject(&key);
        async move {
            let attempt = async || {
                let options = PutOptions::from(PutMode::Create);
                let put = store.put_opts(&key, content.clone().into(), options).await;
                put.map(drop).map_err(|error| subject.fault(&error))
            };
            patience.attempt(&subject, attempt).await
        }
    }

    /// Makes a key durable that was there already. Only a directory needs it: the attempt that linked
    /// the file, after its content was durable, may have ended before the link was.
    fn sync(&self, key: &Path) -> Result<(), Fault> {
        self.syncing(key)()
    }

    /// Returns a call that syncs as [`sync`](Self::sync) does, and outlives the archive.
    fn syncing(&self, key: &Path) -> impl FnOnce() -> Result<(), Fault> + Send + use<> {
        let (directory, subject) = (self.location.directory.clone(), self.subject(key));
        let key = key.clone();
        move || {
            let Some(directory) = directory else { return Ok(()) };
            let file = directory.join(key.as_ref());
            let links = file.parent().unwrap_or(&directory);
            let synced = std::fs::File::open(links).and_then(|links| links.sync_all());
            synced.map_err(|error| subject.local(&error))
        }
    }

    /// Reads a range of a key, as much of it as the key has.
    fn get(&self, key: Path, range: std::ops::Range<u64>) -> Pending<Bytes> {
        self.get_within(self.options.patience, key, range)
    }

    fn get_within(
        &self,
        patience: Patience,
        key: Path,
        range: std::ops::Range<u64>,
    ) -> Pending<Bytes> {
        self.runtime.spawn(self.reading(patience, key, range))
    }

    fn reading(
        &self,
        patience: Patience,
        key: Path,
        range: std::ops::Range<u64>,
    ) -> impl Future<Output = Result<Bytes, Fault>> + Send + use<> {
        let store = Arc::clone(&self.location.store);
        let subject = self.subject(&key);
        async move {
            let attempt = async || {
                let options = GetOptions::new().with_range(Some(GetRange::Bounded(range.clone())));
                let found = async { store.get_opts(&key, options).await?.bytes().await };
                let error = match found.await {
                    Ok(bytes) => return Ok(bytes),
                    Err(error) => subject.fault(&error),
                };
                // To ask for what is behind the end is an error, and each store has its own.
                if matches!(error, Fault::Refused { .. })
                    && store.head(&key).await.is_ok_and(|now| now.size <= range.start)
                {
                    return Ok(Bytes::new());
                }
                Err(error)
            };
            patience.attempt(&subject, attempt).await
        }
    }

    /// Reads the state of a key, and the beginning of its content.
    fn look(&self, key: Path) -> Result<(object_store::ObjectMeta, Bytes), Fault> {
        let (store, patience) = (Arc::clone(&self.location.store), self.options.patience);
        let subject = self.subject(&key);
        self.runtime.run(async move {
            let attempt = async || {
                let now = store.head(&key).await.map_err(|error| subject.fault(&error))?;
                let header = 0..now.size.min(HEADER_BYTES as u64);
                if header.is_empty() {
                    return Ok((now, Bytes::new()));
                }
                let bytes = store.get_range(&key, header).await;
                Ok((now, bytes.map_err(|error| subject.fault(&error))?))
            };
            patience.attempt(&subject, attempt).await
        })
    }

    /// Deletes a key, if it is there.
    fn delete(&self, key: Path) -> Result<(), Fault> {
        let (store, patience) = (Arc::clone(&self.location.store), self.options.patience);
        let subject = self.subject(&key);
        let deleted = self.runtime.run(async move {
            let attempt = async || store.delete(&key).await.map_err(|error| subject.fault(&error));
            patience.attempt(&subject, attempt).await
        });
        match deleted {
            Err(Fault::Absent { .. }) => Ok(()),
            deleted => deleted,
        }
    }

    /// Everything that the store says to have below a key, perhaps not the newest.
    fn list(&self, below: Path) -> Result<Vec<object_store::ObjectMeta>, Fault> {
        let (store, patience) = (Arc::clone(&self.location.store), self.options.patience);
        let subject = self.subject(&below);
        self.runtime.run(async move {
            let attempt = async || {
                let mut found = Vec::new();
                let mut entries = store.list(Some(&below));
                while let Some(entry) = entries.next().await {
                    found.push(entry.map_err(|error| subject.fault(&error))?);
                }
                Ok(found)
            };
            patience.attempt(&subject, attempt).await
        })
    }
}
