//! Deleting checkpoints, and the packs that no manifest names any more.

use std::collections::HashSet;
use std::sync::PoisonError;

use bindery_pool::object::Object;
use bindery_pool::{ObjectId, Pool};

use super::pack_uses::{PackUses, read_pack_list};
use super::state::{FullName, State};
use super::{Shared, Store};
use crate::catalogue::{CheckpointId, CheckpointSummary, DomainNumber, Record};
use crate::error::CheckpointError;

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
    /// back. Needs no key. Blocks for a sync; the first deletion in a domain reads all of its manifests' lists of
    /// packs, a later one that of its own manifest.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoint`]; if the root cannot be written.
    pub fn delete(&self, id: CheckpointId) -> Result<Deleted, CheckpointError> {
        let shared = &self.shared;
        let mut state = shared.state();
        let found = state.contents.checkpoint(id).cloned();
        let missing = || CheckpointError::NoCheckpoint(id.to_string());
        let (domain, summary) = found.ok_or_else(missing)?;
        state.leave(&shared.pool, domain, &summary);
        let unnamed = state.unnamed_packs(&shared.pool, domain, Some(id));
        let mut records = vec![Record::Removed(id)];
        let has_kept_packs = unnamed.is_none();
        let packs = unnamed.unwrap_or_default();
        records.extend(Record::packs_removed(domain, &packs));
        if let Err(error) = state.commit(records) {
            // It is still there: all are counted anew.
            state.pack_uses.remove(&domain);
            return Err(error);
        }
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

    /// Takes a manifest that is about to go out of the uses of packs, if they were counted. Where it cannot be
    /// read, they are counted anew, without it.
    fn leave(&mut self, pool: &Pool, domain: DomainNumber, summary: &CheckpointSummary) {
        let Some(uses) = self.pack_uses.get_mut(&domain) else { return };
        let packs = read_pack_list(pool, summary);
        if !packs.is_ok_and(|packs| uses.remove(&packs)) {
            self.pack_uses.remove(&domain);
        }
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
        if !self.pack_uses.contains_key(&domain) {
            match PackUses::count(pool, &self.contents, domain, without) {
                Ok(uses) => _ = self.pack_uses.insert(domain, uses),
                Err((checkpoint, error)) => {
                    tracing::warn!(%checkpoint, %error, "no pack is deleted");
                    return None;
                }
            }
        }
        let uses = self.pack_uses.get(&domain)?;
        Some(
            self.contents.packs_of(domain).into_iter().filter(|pack| !uses.is_used(pack)).collect(),
        )
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
