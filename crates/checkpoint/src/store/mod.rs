//! The store: checkpoints of a pool, made, found, read and deleted.

mod create;
mod delete;
mod domain;
mod open;
mod overlays;
mod pack_uses;
mod publish;
mod state;
mod touch;
mod verify;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bindery_pool::{MediaClass, Pool};

use crate::catalogue::{CheckpointId, CheckpointSummary};
use crate::error::CheckpointError;
use crate::format_error::FormatError;
use crate::manifest::{Description, Manifest};
use crate::name::Name;
use crate::object::read_whole;
use crate::reader::CheckpointReader;

pub use create::{CheckpointWriter, NewCheckpoint};
pub use delete::Deleted;
pub use verify::{DamagedRun, VerifyReport};

use state::State;

/// Sizes of what a store writes, and where.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Media class of packs and manifests.
    pub class: MediaClass,
    /// Length of each log of the pool's root where it is made, in bytes. A checkpoint takes about 200, a
    /// pack 8.
    pub catalogue_bytes: u64,
    /// Most pages of a pack. The first pack of a checkpoint has room for 256, each further one for twice as
    /// many as the last, up to this.
    pub pack_pages: u32,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { class: MediaClass::Capacity, catalogue_bytes: 4 << 20, pack_pages: 16 << 10 }
    }
}

/// The checkpoints of a pool. Clones are the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

/// Part of a store that its writers share.
pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    pub(crate) options: StoreOptions,
    /// Id of the store, which its objects carry.
    pub(crate) id: u128,
    /// Number of objects that opening has collected.
    collected: u64,
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Each change is made durable before the state takes it in: a panic leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// Returns the number of objects that opening found of checkpoints that were never finished, or were
    /// deleted, and deleted.
    #[must_use]
    pub fn collected(&self) -> u64 {
        self.shared.collected
    }

    /// Returns all checkpoints, in the order in which they were made.
    #[must_use]
    pub fn list(&self) -> Vec<CheckpointSummary> {
        self.shared.state().contents.checkpoints().map(|(_, summary)| summary.clone()).collect()
    }

    /// Returns a checkpoint by its names.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoint`].
    pub fn find(
        &self,
        domain: &Name,
        guest: &Name,
        name: &Name,
    ) -> Result<CheckpointSummary, CheckpointError> {
        let state = self.shared.state();
        let summary = state.contents.checkpoints().map(|(_, summary)| summary).find(|summary| {
            summary.domain == *domain && summary.guest == *guest && summary.name == *name
        });
        let missing = || CheckpointError::NoCheckpoint(format!("{guest}@{name}"));
        summary.cloned().ok_or_else(missing)
    }

    /// Reads the manifest of a checkpoint. Blocks.
    ///
    /// # Errors
    /// [`CheckpointError::Locked`] if its domain is encrypted and was not opened with its key;
    /// [`CheckpointError::Damaged`].
    pub fn manifest(&self, id: CheckpointId) -> Result<Manifest, CheckpointError> {
        let (summary, keys) = self.shared.unlocked(id)?;
        let read = || {
            let object = self.shared.pool.get(summary.manifest)?;
            let manifest = Manifest::decode(&read_whole(&(object as _))?, keys.secret())?;
            check_names(&manifest.description, &summary)?;
            Ok(manifest)
        };
        let damaged = |source| CheckpointError::Damaged {
            what: "manifest",
            checkpoint: summary.to_string(),
            source,
        };
        let manifest = read();
        if manifest.is_err() {
            // It may have been deleted meanwhile.
            self.shared.unlocked(id)?;
        }
        manifest.map_err(damaged)
    }

    /// Opens a checkpoint for reading. It stays readable while the reader is there, deleted or not. Blocks
    /// while the manifest is read.
    ///
    /// # Errors
    /// See [`manifest`](Self::manifest).
    pub fn reader(&self, id: CheckpointId) -> Result<CheckpointReader, CheckpointError> {
        let manifest = self.manifest(id)?;
        let pack = |pack| Ok(self.shared.pool.get(pack)? as Arc<dyn bindery_pool::object::Object>);
        let packs = manifest.packs.iter().map(|id| pack(*id)).collect();
        // Packs are held from here on. Of a checkpoint that was deleted meanwhile, some may be gone.
        let (summary, keys) = self.shared.unlocked(id)?;
        Ok(CheckpointReader::new(summary.to_string(), manifest, packs, keys))
    }
}

/// Refuses a manifest that is another checkpoint's.
fn check_names(description: &Description, summary: &CheckpointSummary) -> Result<(), FormatError> {
    let Description { guest, name, domain, time_ns, .. } = description;
    let is_same = (guest, name, domain, *time_ns)
        == (&summary.guest, &summary.name, &summary.domain, summary.time_ns);
    if is_same {
        Ok(())
    } else {
        Err(FormatError::impossible("manifest", "it is another checkpoint's"))
    }
}

#[cfg(test)]
mod tests {
    use bindery_pool::ObjectId;

    use super::*;
    use crate::manifest::Vmm;

    #[test]
    fn a_manifest_of_another_checkpoint_is_refused() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let description = Description {
            guest: name("one"),
            name: name("a"),
            domain: name("web"),
            time_ns: 7,
            vmm: Vmm::default(),
            blocks: Vec::new(),
            disks: Vec::new(),
            device_state: Vec::new(),
        };
        let summary = CheckpointSummary {
            id: CheckpointId(0),
            domain: name("web"),
            guest: name("one"),
            name: name("a"),
            time_ns: 7,
            manifest: ObjectId(16),
            memory_pages: 0,
            stored_pages: 0,
            new_pages: 0,
            new_bytes: 0,
            capture: None,
            touched: None,
        };
        check_names(&description, &summary).unwrap();
        check_names(&description, &CheckpointSummary { guest: name("two"), ..summary.clone() })
            .unwrap_err();
        check_names(&description, &CheckpointSummary { name: name("b"), ..summary.clone() })
            .unwrap_err();
        check_names(&description, &CheckpointSummary { time_ns: 8, ..summary }).unwrap_err();
    }
}
