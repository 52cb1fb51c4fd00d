//! Opening a store, and collecting what a crash has left.

use std::sync::{Arc, Mutex};

use bindery_pool::format::record::ObjectEntry;
use bindery_pool::{ObjectId, Pool};

use super::state::State;
use super::{Shared, Store, StoreOptions};
use crate::catalogue::{Contents, Record, split_change};
use crate::error::{CheckpointError, PackError};
use crate::object::{HEAD_BYTES, ObjectHead, read_range};
use crate::root::Root;

impl Store {
    /// Opens the checkpoints of a pool; makes the pool's root where it has none. Objects of checkpoints that
    /// were never finished are deleted. Blocks: reads the root, and one block of every object in the pool
    /// that no checkpoint names.
    ///
    /// # Errors
    /// [`CheckpointError::ForeignRoot`] if the pool's root belongs to somebody else; if the root is damaged;
    /// if a device fails.
    pub fn open(pool: Arc<Pool>, options: StoreOptions) -> Result<Self, CheckpointError> {
        let (root, records) = Root::open(&pool, options.class, options.catalogue_bytes)?;
        let mut contents = Contents::default();
        for change in &records {
            for record in split_change(change).map_err(CheckpointError::Record)? {
                let record = Record::decode(record, |number| contents.domain_name(number).cloned());
                contents.apply_all(vec![record.map_err(CheckpointError::Record)?])?;
            }
        }
        let id = root.id();
        let mut state = State::new(root, contents);
        forget_packs_of_empty_domains(&mut state)?;
        let collected = collect(&pool, id, &state.contents)?;
        let state = Mutex::new(state);
        Ok(Self { shared: Arc::new(Shared { pool, options, id, collected, state }) })
    }
}

/// Removes packs of domains without checkpoints: they were kept for one that was never finished.
fn forget_packs_of_empty_domains(state: &mut State) -> Result<(), CheckpointError> {
    let mut records = Vec::new();
    for number in state.contents.domains() {
        let packs: Vec<ObjectId> = state.contents.packs_of(number).into_iter().collect();
        let is_empty = state.contents.checkpoints().all(|(domain, _)| *domain != number);
        if is_empty && !packs.is_empty() {
            records.extend(Record::packs_removed(number, &packs));
        }
    }
    if records.is_empty() { Ok(()) } else { state.commit(records) }
}

/// Deletes objects of this store that the catalogue does not name. Returns their number.
fn collect(pool: &Pool, store: u128, contents: &Contents) -> Result<u64, CheckpointError> {
    let named = contents.named();
    let mut collected = 0;
    for entry in pool.list() {
        let is_mblock = matches!(entry, ObjectEntry::Mblock(_) | ObjectEntry::Archived(_));
        let id = entry.id();
        if !is_mblock || named.contains(&id) {
            continue;
        }
        match is_ours(pool, id, store) {
            Ok(true) => {
                pool.delete(id)?;
                collected += 1;
            }
            Ok(false) => {}
            // Nobody knows whose it is: it stays.
            Err(error) => tracing::warn!(%id, %error, "an object that no checkpoint names is left"),
        }
    }
    Ok(collected)
}

fn is_ours(pool: &Pool, id: ObjectId, store: u128) -> Result<bool, PackError> {
    let object = pool.get(id)?;
    let head = read_range(&*object, 0, HEAD_BYTES as u64)?;
    Ok(ObjectHead::decode(&head).is_ok_and(|head| head.store == store))
}
