//! Overlays of guests' disks. Their files are not in the pool: the catalogue knows where they are.

use super::Store;
use crate::catalogue::{DiskOverlay, Record};
use crate::error::CheckpointError;
use crate::name::Name;

impl Store {
    /// Returns all overlays that were noted, by path and domain.
    #[must_use]
    pub fn overlays(&self) -> Vec<DiskOverlay> {
        self.shared.state().contents.overlays().cloned().collect()
    }

    /// Notes overlays, each in place of what its domain has of its path. Blocks for a sync.
    ///
    /// # Errors
    /// [`CheckpointError::NoDomain`]; if the root cannot be written: then nothing has changed.
    pub fn note_overlays(&self, overlays: &[DiskOverlay]) -> Result<(), CheckpointError> {
        let mut state = self.shared.state();
        let record = |overlay: &DiskOverlay| {
            let domain = state.contents.domain(&overlay.domain);
            let missing = || CheckpointError::NoDomain(overlay.domain.clone());
            let number = domain.ok_or_else(missing)?.number;
            Ok(Record::Overlay(number, overlay.clone()))
        };
        let records: Result<Vec<Record>, CheckpointError> = overlays.iter().map(record).collect();
        match records? {
            records if records.is_empty() => Ok(()),
            records => state.commit(records),
        }
    }

    /// Forgets overlays of a domain by their paths; those that were not noted are passed over. Blocks for a sync.
    ///
    /// # Errors
    /// If the root cannot be written: then nothing has changed.
    pub fn forget_overlays(&self, domain: &Name, paths: &[Vec<u8>]) -> Result<(), CheckpointError> {
        let mut state = self.shared.state();
        let Some(domain) = state.contents.domain(domain) else { return Ok(()) };
        let number = domain.number;
        let noted = paths.iter().filter(|path| state.contents.has_overlay(number, path));
        let records: Vec<Record> =
            noted.map(|path| Record::OverlayGone(number, path.clone())).collect();
        if records.is_empty() { Ok(()) } else { state.commit(records) }
    }
}
