//! Packs of a domain, with the number of manifests that name each.

use std::collections::HashMap;

use bindery_pool::{ObjectId, Pool};

use crate::catalogue::{CheckpointId, CheckpointSummary, Contents, DomainNumber};
use crate::error::PackError;
use crate::manifest::{ManifestHead, PACKS_AT};
use crate::object::{HEAD_BYTES, read_range};

/// Number of manifests that name each pack of a domain: a deletion need not look at the other manifests.
#[derive(Debug, Default)]
pub(super) struct PackUses(HashMap<ObjectId, u32>);

impl PackUses {
    /// Counts the packs of all checkpoints of a domain but `without`. Blocks: reads the head of each manifest.
    ///
    /// # Errors
    /// The checkpoint whose manifest cannot be read, and why.
    pub(super) fn count<'a>(
        pool: &Pool,
        contents: &'a Contents,
        domain: DomainNumber,
        without: Option<CheckpointId>,
    ) -> Result<Self, (&'a CheckpointSummary, PackError)> {
        let mut uses = Self::default();
        let all = contents.checkpoints().filter(|(other, _)| *other == domain);
        for (_, summary) in all.filter(|(_, summary)| Some(summary.id) != without) {
            uses.add(&read_pack_list(pool, summary).map_err(|error| (summary, error))?);
        }
        Ok(uses)
    }

    /// Counts the packs of one more manifest.
    pub(super) fn add(&mut self, packs: &[ObjectId]) {
        packs.iter().for_each(|pack| *self.0.entry(*pack).or_default() += 1);
    }

    /// Takes back what was counted for a manifest that is gone. Returns false if that is not what was counted:
    /// then none of the numbers is right.
    pub(super) fn remove(&mut self, packs: &[ObjectId]) -> bool {
        packs.iter().all(|pack| {
            let Some(uses) = self.0.get_mut(pack) else { return false };
            *uses -= 1;
            if *uses == 0 {
                self.0.remove(pack);
            }
            true
        })
    }

    pub(super) fn is_used(&self, pack: &ObjectId) -> bool {
        self.0.contains_key(pack)
    }
}

/// Reads the list of the packs that a manifest names. Needs no key. Blocks.
pub(super) fn read_pack_list(
    pool: &Pool,
    summary: &CheckpointSummary,
) -> Result<Vec<ObjectId>, PackError> {
    let object = pool.get(summary.manifest)?;
    let head = ManifestHead::decode(&read_range(&*object, 0, HEAD_BYTES as u64)?)?;
    let bytes = read_range(&*object, PACKS_AT as u64, head.packs_bytes() as u64)?;
    Ok(head.decode_packs(&bytes)?)
}
