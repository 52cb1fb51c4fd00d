//! Records of the pages that restores touched.

use super::Store;
use super::delete::Deleted;
use crate::catalogue::{CheckpointId, Record};
use crate::error::{CheckpointError, PackError};
use crate::object::{read_whole, write_whole};
use crate::seal::random;
use crate::touched::{TouchedRun, decode_touched, encode_touched};

impl Store {
    /// Replaces the record of the pages that the last restore of a checkpoint touched, in order. Blocks for
    /// three syncs.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoint`], [`CheckpointError::Locked`]; if the pool has no room, or a device
    /// fails: then the record is the old one.
    ///
    /// # Panics
    /// If a run is empty.
    pub fn set_touched(
        &self,
        id: CheckpointId,
        runs: &[TouchedRun],
    ) -> Result<(), CheckpointError> {
        let shared = &self.shared;
        let (_, keys) = shared.unlocked(id)?;
        let ids = (shared.id, u128::from_le_bytes(random()?));
        let bytes = encode_touched(runs, ids, keys.secret());
        let writer = write_whole(&shared.pool, shared.options.class, &bytes)?;
        let object = writer.id();
        writer.commit()?;
        let mut state = shared.state();
        let current = state.contents.checkpoint(id).map(|(_, summary)| summary.touched);
        let noted = match current {
            Some(_) => state.commit(vec![Record::Touched(id, Some(object))]),
            // It was deleted meanwhile.
            None => Err(CheckpointError::NoCheckpoint(id.to_string())),
        };
        drop(state);
        // Where a device failed, either may count.
        let unneeded = match &noted {
            Ok(()) => current.flatten(),
            Err(CheckpointError::NoCheckpoint(_) | CheckpointError::RootFull(_)) => Some(object),
            Err(_) => None,
        };
        let mut deleted = Deleted::default();
        unneeded.into_iter().for_each(|object| shared.delete_object(object, &mut deleted));
        noted
    }

    /// Returns the pages that the last restore of a checkpoint touched, in order; nothing if none was
    /// recorded. Blocks.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoint`], [`CheckpointError::Locked`], [`CheckpointError::Damaged`].
    pub fn touched(&self, id: CheckpointId) -> Result<Vec<TouchedRun>, CheckpointError> {
        let (summary, keys) = self.shared.unlocked(id)?;
        let Some(object) = summary.touched else { return Ok(Vec::new()) };
        let read = || -> Result<_, PackError> {
            let object = self.shared.pool.get(object)?;
            Ok(decode_touched(&read_whole(&(object as _))?, keys.secret())?)
        };
        let what = "record of touched pages";
        let checkpoint = summary.to_string();
        match read() {
            // Another record took its place meanwhile, or the checkpoint was deleted.
            Err(_) if self.shared.unlocked(id)?.0.touched != summary.touched => self.touched(id),
            read => read.map_err(|source| CheckpointError::Damaged { what, checkpoint, source }),
        }
    }
}
