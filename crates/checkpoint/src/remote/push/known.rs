//! Pages that the prefix has, read from the indexes of its packs.

use std::collections::{HashSet, VecDeque};
use std::time::SystemTime;

use bindery_pool::ObjectId;
use bindery_pool::archive::{Fault, Transfer};
use bytes::Bytes;

use super::super::RemoteError;
use super::super::object::front_bytes;
use super::super::pack::PackIndex;
use super::super::snapshot::Snapshot;
use super::super::space::Folder;
use super::{LOOKS, Push};
use crate::format_error::FormatError;

/// Most pages that are known: those of the newest packs. They take some 300 MiB.
const KNOWN_PAGES_MAX: u64 = 4 << 20;

/// Bytes that are read of a pack at first: enough for the index of 4096 pages.
const FRONT_BYTES: u64 = 160 << 10;

/// Number of indexes that are read at once, for each object that may be sent at once.
const INDEXES_AT_ONCE: usize = 4;

impl Push<'_> {
    /// Reads the indexes of packs that were claimed and are there still.
    pub(super) fn load_known(&mut self, claimed: &HashSet<u128>) -> Result<(), RemoteError> {
        let Some(snapshot) = self.after_claim()? else {
            tracing::warn!("{} lists what was there before: all pages are sent", self.remote.url());
            return Ok(());
        };
        let buried = self.remote.buried(&snapshot)?;
        let is_usable = |id: &u128| claimed.contains(id) && !buried.contains(id);
        let packs = snapshot.packs.into_iter().filter(|(id, _)| is_usable(id));
        let mut packs: Vec<(SystemTime, u128)> = packs.map(|(id, (_, made))| (made, id)).collect();
        packs.sort_unstable();
        let at_once = self.remote.bucket.options().parts_at_once * INDEXES_AT_ONCE;
        let mut fronts: VecDeque<(u128, Transfer<Bytes>)> = VecDeque::new();
        let mut known_pages = 0;
        while known_pages < KNOWN_PAGES_MAX {
            while fronts.len() < at_once
                && let Some((_, id)) = packs.pop()
            {
                let key = self.remote.space.object(Folder::Packs, id);
                fronts.push_back((id, self.remote.bucket.get(&key, 0..FRONT_BYTES)));
            }
            let Some((id, front)) = fronts.pop_front() else { break };
            known_pages += self.load(id, front)?;
        }
        Ok(())
    }

    /// Lists what there is, once a listing shows the claim; none if no listing does.
    fn after_claim(&self) -> Result<Option<Snapshot>, RemoteError> {
        for _ in 0..LOOKS {
            let snapshot = self.remote.snapshot()?;
            if snapshot.claims.contains_key(&self.claim) {
                return Ok(Some(snapshot));
            }
        }
        Ok(None)
    }

    /// Takes the pages of a pack in. Returns their number.
    fn load(&mut self, id: u128, front: Transfer<Bytes>) -> Result<u64, RemoteError> {
        let index = match front.wait() {
            Err(Fault::Absent { .. }) => return Ok(0),
            front => self.index(id, &front?)?,
        };
        match index {
            // Of another domain, which shares no page with this one.
            Ok(index) if index.tag != self.tag => Ok(0),
            Ok(index) => {
                let pack = ObjectId(self.packs.len() as u64);
                self.packs.push(id);
                self.known.insert_pack(pack, &index.digests);
                Ok(index.digests.len() as u64)
            }
            // Pieces of details lie beside packs.
            Err(FormatError::Impossible { .. }) => Ok(0),
            Err(error) => {
                let key = self.remote.space.object(Folder::Packs, id);
                tracing::warn!(key, %error, "pages of a pack are sent anew");
                Ok(0)
            }
        }
    }

    fn index(&self, id: u128, front: &[u8]) -> Result<Result<PackIndex, FormatError>, RemoteError> {
        let read =
            |bytes: &[u8]| PackIndex::read(bytes, id, self.remote.key()).map(|(index, _)| index);
        match front_bytes(front) {
            Ok(bytes) if bytes > front.len() && front.len() as u64 == FRONT_BYTES => {
                let key = self.remote.space.object(Folder::Packs, id);
                let longer = bytes.min(super::super::OBJECT_BYTES_MAX as usize) as u64;
                Ok(read(&self.remote.bucket.get(&key, 0..longer).wait()?))
            }
            _ => Ok(read(front)),
        }
    }
}
