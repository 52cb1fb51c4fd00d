//! Deleting checkpoints, and the packs that no manifest names any more.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, PoisonError};

use bindery_pool::object::Object;
use bindery_pool::{ObjectId, Pool};

use super::state::{FullName, State};
use super::{Shared, Store};
use crate::catalogue::{CheckpointId, CheckpointSummary, DomainNumber, Record};
use crate::error::{CheckpointError, PackError};
use crate::manifest::{ManifestHead, PACKS_AT};
use crate::object::{HEAD_BYTES, read_range};

/// Result of the deletion of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Number of objects that were deleted: the manifest, and packs that no other manifest names.
    pub objects: u64,
    /// Bytes of those objects.
    pub bytes: u64,
    /// True if packs were kept because a checkpoint of the domain is being written, or because a manifest
    /// could not be read. They go with the next deletion that finds neither.
    pub has_kept_packs: bool,
}

impl Store {
    /// Deletes a checkpoint, and each pack of its domain that no manifest names any more. A pack of which some
    /// page is named is kept whole: its other pages stay known, and are not stored again when they come
    /// back. Needs no key. Blocks for a sync, and where manifests must be read for their lists of packs.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoint`]; if the root cannot be written.
    pub fn delete(&self, id: CheckpointId) -> Result<Deleted, CheckpointError> {
        let shared = &self.shared;
        let mut state = shared.state();
        let found = state.contents.checkpoint(id).cloned();
        let missing = || CheckpointError::NoCheckpoint(id.to_string());
        let (domain, summary) = found.ok_or_else(missing)?;
        let unnamed = state.unnamed_packs(&shared.pool, domain, Some(id));
        let mut records = vec![Record::Removed(id)];
        let has_kept_packs = unnamed.is_none();
        let packs = unnamed.unwrap_or_default();
        records.extend(Record::packs_removed(domain, &packs));
        state.commit(records)?;
        state.pack_lists.remove(&id);
        if has_kept_packs {
            state.unswept.insert(domain);
        }
        state.forget(domain, &packs);
        drop(state);
        let objects = packs.into_iter().chain([summary.manifest]).chain(summary.touched);
        let mut deleted = Deleted { has_kept_packs, ..Deleted::default() };
        objects.for_each(|object| shared.delete_object(object, &mut deleted));
        Ok(deleted)
    }
}

impl Shared {
    /// Deletes an object that the catalogue does not name any more.
    pub(super) fn delete_object(&self, object: ObjectId, deleted: &mut Deleted) {
        let bytes = self.pool.get(object).map_or(0, |object| object.length_bytes());
        match self.pool.delete(object) {
            Ok(()) => {
                deleted.objects += 1;
                deleted.bytes += bytes;
            }
            Err(error) => {
                tracing::warn!(%object, %error, "left for the next opening to collect");
            }
        }
    }

    /// Gives a name back, and deletes packs that could not be deleted while the checkpoint was written.
    pub(super) fn end_writing(&self, full_name: &FullName) {
        let domain = full_name.0;
        let mut state = self.state();
        state.reserved.remove(full_name);
        if !state.end_writing(domain) || !state.unswept.remove(&domain) {
            return;
        }
        let swept = state.sweep(&self.pool, domain);
        drop(state);
        match swept {
            Ok(packs) => {
                let mut deleted = Deleted::default();
                packs.into_iter().for_each(|pack| self.delete_object(pack, &mut deleted));
            }
            Err(error) => tracing::warn!(%error, "packs are left for the next deletion"),
        }
    }
}

impl State {
    /// Removes packs of a domain that no manifest names from the catalogue, and returns them.
    fn sweep(
        &mut self,
        pool: &Pool,
        domain: DomainNumber,
    ) -> Result<Vec<ObjectId>, CheckpointError> {
        let packs = self.unnamed_packs(pool, domain, None).unwrap_or_default();
        if !packs.is_empty() {
            self.commit(Record::packs_removed(domain, &packs).collect())?;
            self.forget(domain, &packs);
        }
        Ok(packs)
    }

    /// Returns the packs of a domain that no manifest names, but perhaps that of `without`; none if a
    /// checkpoint is being written, or a manifest cannot be read.
    fn unnamed_packs(
        &mut self,
        pool: &Pool,
        domain: DomainNumber,
        without: Option<CheckpointId>,
    ) -> Option<Vec<ObjectId>> {
        if self.is_written(domain) {
            return None;
        }
        let others = self.contents.checkpoints().filter(|(other, _)| *other == domain);
        let others = others.filter(|(_, summary)| Some(summary.id) != without);
        let others: Vec<CheckpointSummary> = others.map(|(_, summary)| summary.clone()).collect();
        let mut unnamed: BTreeSet<ObjectId> = self.contents.packs_of(domain);
        for summary in others {
            match self.pack_list(pool, &summary) {
                Ok(packs) => packs.iter().for_each(|pack| _ = unnamed.remove(pack)),
                Err(error) => {
                    tracing::warn!(checkpoint = %summary, %error, "no pack is deleted");
                    return None;
                }
            }
        }
        Some(unnamed.into_iter().collect())
    }

    /// Returns the packs that a manifest names.
    fn pack_list(
        &mut self,
        pool: &Pool,
        summary: &CheckpointSummary,
    ) -> Result<Arc<[ObjectId]>, PackError> {
        if let Some(packs) = self.pack_lists.get(&summary.id) {
            return Ok(Arc::clone(packs));
        }
        let object = pool.get(summary.manifest)?;
        let head = ManifestHead::decode(&read_range(&*object, 0, HEAD_BYTES as u64)?)?;
        let bytes = read_range(&*object, PACKS_AT as u64, head.packs_bytes() as u64)?;
        let packs: Arc<[ObjectId]> = head.decode_packs(&bytes)?.into();
        self.pack_lists.insert(summary.id, Arc::clone(&packs));
        Ok(packs)
    }

    /// Forgets the pages of packs that are gone; nobody writes a checkpoint of the domain.
    fn forget(&mut self, domain: DomainNumber, packs: &[ObjectId]) {
        if packs.is_empty() {
            return;
        }
        let packs: HashSet<ObjectId> = packs.iter().copied().collect();
        let known = self.known(domain);
        if let Some(known) = known.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            known.forget_packs(&packs);
        }
    }
}
