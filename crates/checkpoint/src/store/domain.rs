//! Domains: made, and opened with their keys.

use std::sync::Arc;

use super::{Shared, Store};
use crate::catalogue::{
    CheckpointId, CheckpointSummary, DomainEntry, DomainNumber, Protection, Record,
};
use crate::domain_keys::{DomainKeys, new_protection};
use crate::error::CheckpointError;
use crate::name::Name;
use crate::seal::SecretKey;

impl Store {
    /// Opens a domain, or makes it: encrypted if a key is given, for as long as it is there. Its checkpoints
    /// can be written and read from then on. Blocks for a sync where it is made.
    ///
    /// # Errors
    /// [`CheckpointError::Locked`], [`CheckpointError::WrongKey`] or [`CheckpointError::NotEncrypted`] if
    /// the key does not fit.
    pub fn open_domain(&self, name: &Name, key: Option<&SecretKey>) -> Result<(), CheckpointError> {
        let mut state = self.shared.state();
        if state.contents.domain(name).is_none() {
            let number = state.contents.next_domain();
            let entry =
                DomainEntry { number, name: name.clone(), protection: new_protection(key)? };
            state.commit(vec![Record::Domain(entry)])?;
        }
        let entry = state.contents.domain(name).expect("it was made, unless it was there");
        let (number, keys) = (entry.number, DomainKeys::of(entry, key)?);
        state.keys.insert(number, Arc::new(keys));
        Ok(())
    }

    /// Returns the domains, each with true if it is encrypted.
    #[must_use]
    pub fn domains(&self) -> Vec<(Name, bool)> {
        let state = self.shared.state();
        let is_sealed = |entry: &DomainEntry| matches!(entry.protection, Protection::Key { .. });
        state
            .contents
            .domain_entries()
            .map(|entry| (entry.name.clone(), is_sealed(entry)))
            .collect()
    }
}

impl Shared {
    /// Returns the number and the keys of a domain. One that is not encrypted need not be opened.
    pub(super) fn domain(
        &self,
        name: &Name,
    ) -> Result<(DomainNumber, Arc<DomainKeys>), CheckpointError> {
        let mut state = self.state();
        let entry = state.contents.domain(name);
        let entry = entry.ok_or_else(|| CheckpointError::NoDomain(name.clone()))?;
        let number = entry.number;
        if let Some(keys) = state.keys.get(&number) {
            return Ok((number, Arc::clone(keys)));
        }
        let keys = Arc::new(DomainKeys::of(entry, None)?);
        state.keys.insert(number, Arc::clone(&keys));
        Ok((number, keys))
    }

    /// Returns a checkpoint and the keys of its domain.
    pub(crate) fn unlocked(
        &self,
        id: CheckpointId,
    ) -> Result<(CheckpointSummary, Arc<DomainKeys>), CheckpointError> {
        let found = self.state().contents.checkpoint(id).cloned();
        let (_, summary) = found.ok_or_else(|| CheckpointError::NoCheckpoint(id.to_string()))?;
        let (_, keys) = self.domain(&summary.domain)?;
        Ok((summary, keys))
    }
}
