//! Connecting a pool with its archive.

use uuid::Uuid;

use super::error::ArchiveError;
use crate::archive::{Archive, ArchiveOptions, Digest};
use crate::catalogue::CatalogueError;
use crate::format::record::{ArchivedEntry, LONGEST_URL, Record};
use crate::pool::handle::Pool;
use crate::session::ChangeError;
use crate::session::superblocks::write_superblocks;

impl Pool {
    /// Opens the archive that the pool remembers. Blocks for a few requests.
    ///
    /// # Errors
    /// See [`ArchiveError`].
    pub fn connect_archive(&self, options: ArchiveOptions) -> Result<(), ArchiveError> {
        let url = self.archive_url().ok_or_else(|| ArchiveError::None(self.name()))?;
        self.set_archive(Archive::open(&url, options)?)
    }

    /// Makes an archive the pool's, which remembers its URL and nothing else of it. Blocks for syncs of
    /// all devices if it is another than before; and then, if objects are archived, for a request for
    /// each: all must be there. Blocks until no object is on its way.
    ///
    /// # Errors
    /// See [`ArchiveError`]; then the pool has the archive that it had.
    pub fn set_archive(&self, archive: Archive) -> Result<(), ArchiveError> {
        let _alone = self.administration().map_err(ChangeError::from)?;
        let _nobody_moves = self.session.attachment.nobody_moves();
        let known = self.archive_url();
        if known.as_deref() != Some(archive.url()) {
            if archive.url().len() > LONGEST_URL {
                return Err(ArchiveError::LongUrl(archive.url().len()));
            }
            self.check_all_are_in(&archive, known.as_deref().unwrap_or_default())?;
            let changed = self.session.catalogue.submit(Record::Archive(archive.url().into()));
            changed.map_err(ChangeError::from)?;
            write_superblocks(&self.session)?;
        }
        self.session.attachment.set(archive);
        Ok(())
    }

    /// The archive, if it is open.
    pub(super) fn archive(&self) -> Result<Archive, ArchiveError> {
        self.session.check_here().map_err(CatalogueError::from).map_err(ChangeError::from)?;
        self.session.attachment.get().ok_or_else(|| match self.archive_url() {
            Some(url) => ArchiveError::NotOpen { name: self.name(), url },
            None => ArchiveError::None(self.name()),
        })
    }

    fn check_all_are_in(&self, archive: &Archive, known: &str) -> Result<(), ArchiveError> {
        let pool = Uuid::from_u128(self.id());
        let archived: Vec<ArchivedEntry> =
            self.session.catalogue.contents().archived().copied().collect();
        for ArchivedEntry { id, length_bytes, digest } in archived {
            let found = archive.head_of(pool, id, length_bytes, Digest(digest));
            found.map_err(|source| ArchiveError::Another {
                name: self.name(),
                known: known.into(),
                url: archive.url().into(),
                source: Box::new(source),
            })?;
        }
        Ok(())
    }
}
