//! Objects of a space at one time, as a listing has them.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use bindery_pool::archive::Listed;

use super::space::{Folder, Space};

/// Objects of a space.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// Packs and pieces: length in bytes, and time at which each was made.
    pub(super) packs: HashMap<u128, (u64, SystemTime)>,
    pub(super) manifests: HashSet<u128>,
    /// Claims, with the time at which each was made.
    pub(super) claims: HashMap<u128, SystemTime>,
    /// Tombstones, with the time at which each was made.
    pub(super) tombstones: HashMap<u128, SystemTime>,
}

impl Snapshot {
    pub(super) fn new(space: &Space, listed: Vec<Listed>) -> Self {
        let mut snapshot = Self::default();
        for Listed { key, bytes, made } in listed {
            match space.parse(&key) {
                Some((Folder::Packs, id)) => _ = snapshot.packs.insert(id, (bytes, made)),
                Some((Folder::Manifests, id)) => _ = snapshot.manifests.insert(id),
                Some((Folder::Claims, id)) => _ = snapshot.claims.insert(id, made),
                Some((Folder::Tombstones, id)) => _ = snapshot.tombstones.insert(id, made),
                None => {}
            }
        }
        snapshot
    }
}
