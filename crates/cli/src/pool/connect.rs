//! The archive that a pool remembers, opened for a command.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use bindery_pool::archive::{Archive, ArchiveOptions, OpenError};
use bindery_pool::format::record::ObjectEntry;
use bindery_pool::{ObjectId, Pool, PoolReader};

use super::Pools;
use crate::exit::Failure;

/// After so long, whoever waits is told for what.
const PATIENCE: Duration = Duration::from_secs(1);

impl Pools {
    /// Opens an archive; says on stderr that it waits, when it does.
    pub(super) fn archive(&self, url: &str, options: ArchiveOptions) -> Result<Archive, OpenError> {
        let limit = options.patience.opening;
        thread::scope(|scope| {
            let (opened, is_opened) = mpsc::channel::<()>();
            if !self.json {
                scope.spawn(move || {
                    if is_opened.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                        eprintln!("bindery: {url} does not answer; waiting up to {limit:?} for it");
                    }
                });
            }
            let archive = Archive::open(url, options);
            drop(opened);
            archive
        })
    }

    /// Opens the archive that a pool remembers, for the pool.
    pub(super) fn connect(&self, pool: &Pool, options: ArchiveOptions) -> Result<(), Failure> {
        match pool.archive_url() {
            Some(url) => Ok(pool.set_archive(self.archive(&url, options)?)?),
            // Says that there is none.
            None => Ok(pool.connect_archive(options)?),
        }
    }

    /// Opens the archive that a pool remembers, for a reader, if any of these objects is there.
    pub(super) fn connect_for(
        &self,
        reader: &PoolReader,
        is_wanted: impl Fn(ObjectId) -> bool,
    ) -> Result<(), OpenError> {
        let is_there =
            reader.with_contents(|contents| contents.archived().any(|entry| is_wanted(entry.id)));
        if is_there && let Some(url) = reader.archive_url() {
            reader.set_archive(self.archive(&url, ArchiveOptions::default())?);
        }
        Ok(())
    }
}

/// Returns true if an object is in the archive.
pub(super) fn is_archived(entry: &ObjectEntry) -> bool {
    matches!(entry, ObjectEntry::Archived(_))
}
