//! Deleting checkpoints, and the packs that no manifest names any more.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use super::object::{RemoteKind, RemoteObject};
use super::snapshot::Snapshot;
use super::space::Folder;
use super::{Remote, RemoteError};
use crate::name::Name;
use crate::seal::random;

/// Time for which a claim counts that nobody takes back.
const CLAIM_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Time after which a tombstone is another deletion's no more: that has ended, however it did.
const TOMBSTONE_AGE: Duration = Duration::from_secs(24 * 3600);

/// Longest time that a deletion removes objects by what it has seen.
const REMOVAL_TIME: Duration = Duration::from_secs(12 * 3600);

/// Result of a deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteDeleted {
    /// Number of objects that were removed: manifests, and what no other manifest names.
    pub objects: u64,
    /// Bytes of packs that were removed.
    pub bytes: u64,
    /// True if objects were kept that nothing names: a push may rely on them, a manifest cannot be read, or the
    /// store's listings are of before. They go with a later deletion.
    pub has_kept_packs: bool,
}

/// Objects that something names.
#[derive(Default)]
struct Named {
    ids: HashSet<u128>,
    /// First halves of the ids of what pushes send that go on.
    pushes: HashSet<u64>,
    /// Manifests and claims that were read.
    read: HashSet<u128>,
    /// Claims of pushes whose checkpoints are there.
    ended: Vec<u128>,
    /// True if one of them cannot be read.
    is_unknown: bool,
}

impl Named {
    fn has(&self, id: u128) -> bool {
        self.ids.contains(&id) || self.pushes.contains(&first_half(id))
    }
}

const fn first_half(id: u128) -> u64 {
    (id >> 64) as u64
}

impl Remote {
    /// Deletes checkpoints, then whatever no manifest names and no push that goes on may rely on. Blocks for a
    /// request for each manifest and each object that goes, and some more.
    ///
    /// # Errors
    /// [`RemoteError::Missing`] if one of them is not there: then none is deleted. [`RemoteError::Fault`]: what
    /// was not done then is done by the next deletion.
    pub fn delete(&self, checkpoints: &[(Name, Name)]) -> Result<RemoteDeleted, RemoteError> {
        let there = self.snapshot()?;
        let mut ids = Vec::with_capacity(checkpoints.len());
        for (guest, name) in checkpoints {
            let id = self.space.manifest_id(guest, name);
            if !there.manifests.contains(&id) {
                // Names it, unless the listing is of before.
                self.find(guest, name)?;
            }
            ids.push(id);
        }
        // While their manifests are there that go now.
        let named = self.ended(&there)?;
        let mut deleted = RemoteDeleted::default();
        for id in ids {
            self.bucket.delete(&self.space.object(Folder::Manifests, id))?;
            deleted.objects += 1;
        }
        self.sweep(named, &mut deleted)?;
        Ok(deleted)
    }

    /// Removes what nothing names.
    fn sweep(&self, mut named: Named, deleted: &mut RemoteDeleted) -> Result<(), RemoteError> {
        let before = self.snapshot()?;
        let now = before.newest();
        self.read_named(&before, now, &mut named)?;
        let candidates: Vec<u128> =
            before.packs.keys().copied().filter(|id| !named.has(*id)).collect();
        deleted.has_kept_packs |= named.is_unknown || !named.pushes.is_empty();
        if candidates.is_empty() || named.is_unknown {
            return Ok(());
        }
        let tombstone = u128::from_le_bytes(random()?);
        let began = Instant::now();
        self.put_list((RemoteKind::Tombstone, tombstone), &candidates, Vec::new())?;
        let swept = self.remove(tombstone, (&before, &candidates), (named, began), deleted);
        let own = self.bucket.delete(&self.space.object(Folder::Tombstones, tombstone));
        swept?;
        Ok(own?)
    }

    /// Removes what is named by nothing even after the tombstone was put.
    fn remove(
        &self,
        tombstone: u128,
        (before, candidates): (&Snapshot, &[u128]),
        (mut named, began): (Named, Instant),
        deleted: &mut RemoteDeleted,
    ) -> Result<(), RemoteError> {
        let after = self.snapshot()?;
        let Some(now) = after.tombstones.get(&tombstone) else {
            // By a listing of before nothing can be known to be unused.
            tracing::warn!("{} lists what was there before: nothing is removed", self.url());
            deleted.has_kept_packs = true;
            return Ok(());
        };
        // One of the same name may have been put anew.
        named.read.retain(|id| !after.manifests.contains(id));
        self.read_named(&after, *now, &mut named)?;
        if named.is_unknown {
            deleted.has_kept_packs = true;
            return Ok(());
        }
        for id in candidates {
            if named.has(*id) || began.elapsed() > REMOVAL_TIME {
                deleted.has_kept_packs = true;
                continue;
            }
            self.bucket.delete(&self.space.object(Folder::Packs, *id))?;
            deleted.objects += 1;
            deleted.bytes += before.packs.get(id).map_or(0, |(bytes, _)| *bytes);
        }
        let ended = named.ended.iter().map(|id| self.space.object(Folder::Claims, *id));
        ended.into_iter().try_for_each(|key| self.bucket.delete(&key))?;
        self.remove_old(&after, *now)
    }

    /// Removes claims and tombstones of those who have ended without.
    fn remove_old(&self, snapshot: &Snapshot, now: SystemTime) -> Result<(), RemoteError> {
        let old = |entries: &HashMap<u128, SystemTime>, age: Duration, folder: Folder| {
            let old = entries.iter().filter(|(_, made)| is_older(**made, now, age));
            old.map(|(id, _)| self.space.object(folder, *id)).collect::<Vec<String>>()
        };
        let claims = old(&snapshot.claims, CLAIM_AGE, Folder::Claims);
        let tombstones = old(&snapshot.tombstones, TOMBSTONE_AGE, Folder::Tombstones);
        Ok(claims.iter().chain(&tombstones).try_for_each(|key| self.bucket.delete(key))?)
    }

    /// Reads what manifests and claims name, those that were read before excepted.
    fn read_named(
        &self,
        snapshot: &Snapshot,
        now: SystemTime,
        named: &mut Named,
    ) -> Result<(), RemoteError> {
        for id in &snapshot.manifests {
            if !named.read.insert(*id) {
                continue;
            }
            match self.manifest(*id) {
                Ok(manifest) => named.ids.extend(manifest.pieces.iter().chain(&manifest.packs)),
                Err(RemoteError::Lost { .. }) => {}
                Err(RemoteError::Damaged { key, source, .. }) => {
                    tracing::warn!(key, error = %source, "no pack is removed");
                    named.is_unknown = true;
                }
                Err(error) => return Err(error),
            }
        }
        let claims = snapshot.claims.iter().filter(|(_, made)| !is_older(**made, now, CLAIM_AGE));
        for (id, _) in claims {
            if named.read.insert(*id) {
                self.read_claim(*id, snapshot, named)?;
            }
        }
        Ok(())
    }

    /// Returns the claims of pushes that have ended: their checkpoints are there.
    fn ended(&self, snapshot: &Snapshot) -> Result<Named, RemoteError> {
        let mut named = Named::default();
        for id in snapshot.claims.keys() {
            let mut claim = Named::default();
            self.read_claim(*id, snapshot, &mut claim)?;
            named.read.extend(&claim.ended);
            named.ended.extend(claim.ended);
        }
        Ok(named)
    }

    fn read_claim(
        &self,
        id: u128,
        snapshot: &Snapshot,
        named: &mut Named,
    ) -> Result<(), RemoteError> {
        let claim = match self.list_of(RemoteKind::Claim, id) {
            Err(RemoteError::Damaged { .. }) => {
                named.is_unknown = true;
                return Ok(());
            }
            claim => claim?,
        };
        let Some(RemoteObject { list, body, .. }) = claim else { return Ok(()) };
        let manifest = body.try_into().map(u128::from_le_bytes);
        if manifest.is_ok_and(|manifest| snapshot.manifests.contains(&manifest)) {
            // What it pushed is there, or another has pushed it: it names what it needs.
            named.ended.push(id);
            return Ok(());
        }
        named.pushes.insert(first_half(id));
        named.ids.extend(list);
        Ok(())
    }
}

impl Snapshot {
    /// Returns the time at which the newest object was made, by the store's clock.
    fn newest(&self) -> SystemTime {
        let packs = self.packs.values().map(|(_, made)| *made);
        let others = self.claims.values().chain(self.tombstones.values()).copied();
        packs.chain(others).max().unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

fn is_older(made: SystemTime, now: SystemTime, age: Duration) -> bool {
    now.duration_since(made).is_ok_and(|it| it > age)
}
