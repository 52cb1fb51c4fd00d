//! The store: checkpoints of a pool, made, found, read and deleted.

mod create;
mod delete;
mod domain;
mod open;
mod pack_uses;
mod publish;
mod state;
mod touch;
mod verify;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bindery_pool::{MediaClass, Pool};

use crate::catalogue::{CheckpointId, CheckpointSummary};
use crate::error::CheckpointError;
use crate::manifest::Manifest;
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
            Ok(Manifest::decode(&read_whole(&(object as _))?, keys.secret())?)
        };
        read().map_err(|source| CheckpointError::Damaged {
            what: "manifest",
            checkpoint: summary.to_string(),
            source,
        })
    }

    /// Opens a checkpoint for reading. It stays readable while the reader is there, deleted or not. Blocks
    /// while the manifest is read.
    ///
    /// # Errors
    /// See [`manifest`](Self::manifest).
    pub fn reader(&self, id: CheckpointId) -> Result<CheckpointReader, CheckpointError> {
        let manifest = self.manifest(id)?;
        let (summary, keys) = self.shared.unlocked(id)?;
        let pack = |pack| Ok(self.shared.pool.get(pack)? as Arc<dyn bindery_pool::object::Object>);
        let packs = manifest.packs.iter().map(|id| pack(*id)).collect();
        Ok(CheckpointReader::new(summary.to_string(), manifest, packs, keys))
    }
}
