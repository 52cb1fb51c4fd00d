//! Removing from the archive what the pool has no more.

use std::time::Duration;

use uuid::Uuid;

use super::error::ArchiveError;
use crate::ObjectId;
use crate::archive::{Orphan, Removal};
use crate::pool::handle::Pool;

/// Parts that a sweep found in the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveSweep {
    /// Number of parts of objects that the pool has, wherever they are.
    pub known: u64,
    /// Number of parts of unknown objects that are too young to remove.
    pub young: u64,
    /// Number of parts that were removed.
    pub removed: u64,
    /// Bytes that the removed parts took in the store.
    pub removed_bytes: u64,
    /// Parts that are of no object of the pool and were kept, and why.
    pub kept: Vec<(Orphan, Removal)>,
    /// Keys that no archive would give; never touched.
    pub strangers: Vec<String>,
}

impl Pool {
    /// Removes from the archive the parts of objects that the pool has no more: what deletions left
    /// there, and copies that were never ended. `grace` is how old a part must be, by the store's
    /// clock: as a listing may be stale, and clocks differ, a day is a good choice. Blocks for a request
    /// for each thousand keys, and three for each that is removed.
    ///
    /// # Errors
    /// See [`ArchiveError`]. What was removed before is removed.
    pub fn sweep_archive(&self, grace: Duration) -> Result<ArchiveSweep, ArchiveError> {
        let archive = self.archive()?;
        let is_known = |id| self.is_needed_in_archive(id);
        let listing = archive.orphans(Uuid::from_u128(self.id()), grace, is_known)?;
        let (known, young, strangers) = (listing.known, listing.young, listing.strangers);
        let mut sweep = ArchiveSweep { known, young, strangers, ..ArchiveSweep::default() };
        for orphan in listing.orphans {
            match archive.remove_orphan(&orphan, grace, is_known)? {
                Removal::Removed => {
                    sweep.removed += 1;
                    sweep.removed_bytes += orphan.stored_bytes;
                }
                Removal::Gone => {}
                Removal::Known => sweep.known += 1,
                Removal::Young => sweep.young += 1,
                kept => sweep.kept.push((orphan, kept)),
            }
        }
        Ok(sweep)
    }

    /// As [`sweep_archive`](Self::sweep_archive), but removes nothing: what would be removed counts as if it was.
    /// Parts that another host wrote, and damaged ones, are counted too: only the parts themselves show that.
    ///
    /// # Errors
    /// See [`ArchiveError`].
    pub fn survey_archive(&self, grace: Duration) -> Result<ArchiveSweep, ArchiveError> {
        let is_known = |id| self.is_needed_in_archive(id);
        let listing = self.archive()?.orphans(Uuid::from_u128(self.id()), grace, is_known)?;
        Ok(ArchiveSweep {
            known: listing.known,
            young: listing.young,
            removed: listing.orphans.len() as u64,
            removed_bytes: listing.orphans.iter().map(|orphan| orphan.stored_bytes).sum(),
            kept: Vec::new(),
            strangers: listing.strangers,
        })
    }

    /// Returns true if the pool has an object, here or there, or somebody has it, deleted or not. One that the pool
    /// has not it never will have again: ids are given once.
    fn is_needed_in_archive(&self, id: ObjectId) -> bool {
        let handles = self.session.handles();
        let is_there = self.session.catalogue.contents().object(id).is_some();
        is_there || handles.is_held(id) || handles.lingers(id)
    }
}
