//! The end of a checkpoint that was written: it is there, or it is not.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use bindery_pool::ObjectId;
use bindery_pool::object::Object;

use super::create::{CheckpointWriter, full_name};
use crate::catalogue::{CheckpointSummary, Record};
use crate::error::CheckpointError;
use crate::manifest::{Manifest, PageMap};
use crate::object::write_whole;
use crate::seal::random;

impl CheckpointWriter {
    /// Makes it a checkpoint: durable, and seen by all. Blocks for three syncs.
    ///
    /// # Errors
    /// [`CheckpointError::Description`] if there is more device state than a description can have. If the
    /// pool has no room, or a device fails: then there is no such checkpoint. After
    /// [`CheckpointError::RootWrite`] it shows when the pool is opened again whether there is.
    pub fn finish(mut self) -> Result<CheckpointSummary, CheckpointError> {
        if self.has_failed {
            return Err(CheckpointError::Unfinished);
        }
        // Device state and disks may have been set since it began.
        self.description.check().map_err(CheckpointError::Description)?;
        self.end_packs()?;
        let manifest = self.manifest();
        let bytes =
            manifest.encode(self.shared.id, u128::from_le_bytes(random()?), self.keys.secret());
        let writer = write_whole(&self.shared.pool, self.shared.options.class, &bytes)?;
        let object = writer.id();
        self.commit(writer)?;
        self.await_commits()?;
        let summary = self.note(&manifest, object)?;
        self.make_known();
        Ok(summary)
    }

    /// Lays what was put over the base, and lists the packs that are named.
    fn manifest(&mut self) -> Manifest {
        let (mut packs, mut numbers) = (Vec::new(), HashMap::new());
        let mut number = |object: ObjectId| {
            *numbers.entry(object).or_insert_with(|| {
                packs.push(object);
                packs.len() as u32 - 1
            })
        };
        let nothing = PageMap::default();
        let mut pages = Vec::with_capacity(self.overlays.len());
        for (overlay, block) in self.overlays.drain(..).zip(&self.description.blocks) {
            let inherited = self.base.as_ref().and_then(|base| {
                let map = &base.pages[base.block(&block.name)?];
                Some((map, &base.packs[..]))
            });
            let inherited = inherited.unwrap_or((&nothing, &[]));
            // Page indices have 32 bits; `Description::check` has seen to it.
            pages.push(overlay.over(inherited, block.pages() as u32, &mut number));
        }
        Manifest { description: self.description.clone(), packs, pages }
    }

    /// Waits until all objects are durable. Those of them that are, are deleted if one is not.
    fn await_commits(&mut self) -> Result<(), CheckpointError> {
        let Some(committer) = self.committer.take() else { return Ok(()) };
        let (mut committed, mut failed) = (Vec::new(), None);
        for outcome in committer.finish() {
            match outcome {
                Ok(object) => committed.push(object.id()),
                Err(error) => failed = Some(error),
            }
        }
        let Some(error) = failed else {
            self.written = committed;
            return Ok(());
        };
        self.delete_all(&committed);
        Err(error.into())
    }

    fn delete_all(&self, objects: &[ObjectId]) {
        for object in objects {
            if let Err(error) = self.shared.pool.delete(*object) {
                tracing::warn!(%object, %error, "left for the next opening to collect");
            }
        }
    }

    /// Notes it in the catalogue.
    fn note(
        &mut self,
        manifest: &Manifest,
        object: ObjectId,
    ) -> Result<CheckpointSummary, CheckpointError> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let description = &manifest.description;
        let summary = CheckpointSummary {
            id: state.contents.next_id(),
            domain: description.domain.clone(),
            guest: description.guest.clone(),
            name: description.name.clone(),
            time_ns: description.time_ns,
            manifest: object,
            memory_pages: description.pages(),
            stored_pages: manifest.stored_pages(),
            new_pages: self.new_pages,
            new_bytes: self.new_bytes,
            capture: self.capture,
            touched: None,
        };
        let (domain, packs) = (self.domain, self.new_packs.clone());
        let mut records = vec![Record::Checkpoint { domain, summary: summary.clone(), packs }];
        records.extend(self.capture.map(|capture| Record::Captured(summary.id, capture)));
        let noted = state.commit(records);
        // Where a device failed, the record may be durable.
        self.is_noted = !matches!(noted, Err(CheckpointError::RootFull(_)));
        noted?;
        if let Some(uses) = state.pack_uses.get_mut(&domain) {
            uses.add(&manifest.packs);
        }
        Ok(summary)
    }

    /// Adds the pages that it stored to those that the domain knows.
    fn make_known(&mut self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_mut() {
            known.extend(std::mem::take(&mut self.own));
        }
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        self.drop_pack();
        if let Some(committer) = self.committer.take() {
            let outcomes = committer.finish().into_iter().flatten();
            self.written = outcomes.map(|object| object.id()).collect();
        }
        if !self.is_noted {
            self.delete_all(&self.written);
        }
        self.shared.end_writing(&full_name(self.domain, &self.description));
    }
}
