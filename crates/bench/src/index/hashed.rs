//! The rivals by digest: hash maps, and a radix tree.
//!
//! Each is made for as many keys as it will hold, where it can be told. Keys are digests, uniform
//! already, so the maps' hashers pass them through. What they delete by is the digest, kept by the
//! caller: 16 bytes a page, against four for a handle; re-reading the page would cost them more.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use bindery_page::digest;

use super::contender::{Contender, GROUP_PAGES, Group, Setting};

/// A map from digests to ids.
pub(super) trait Map: Sync {
    /// A thread's licence to use the map for a group.
    type Session<'a>
    where
        Self: 'a;

    /// A map with room for `keys`.
    fn with_room_for(keys: u64) -> Self;
    fn session(&self) -> Self::Session<'_>;
    /// The id that was there already.
    fn insert(&self, session: &Self::Session<'_>, digest: u128, id: u64) -> Option<u64>;
    fn get(&self, session: &Self::Session<'_>, digest: u128) -> Option<u64>;
    fn remove(&self, session: &Self::Session<'_>, digest: u128) -> bool;
}

/// Any map over the digests of pages.
pub(super) struct Hashed<'a, M> {
    setting: Setting<'a>,
    map: M,
    /// Digests of the pages in the map, by id.
    digests: Box<[[AtomicU64; 2]]>,
}

impl<'a, M: Map> Hashed<'a, M> {
    pub(super) fn new(setting: Setting<'a>) -> Self {
        let digests = (0..setting.ids).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect();
        Self { setting, map: M::with_room_for(setting.keys), digests }
    }
}

impl<M: Map> Contender for Hashed<'_, M> {
    fn insert(&self, group: &Group<'_>) -> u64 {
        let session = self.map.session();
        let mut new = 0;
        for (page, id) in group.pages.iter().zip(group.ids) {
            let digest = digest(&page.0, self.setting.key);
            let digest_bits = u128::from_be_bytes(digest.to_bytes());
            if let Some(found) = self.map.insert(&session, digest_bits, id) {
                assert!(self.setting.pages.is_stored(page, found), "a digest collided");
                continue;
            }
            new += 1;
            // Relaxed, here and below: as handles are kept.
            for (kept, word) in self.digests[id as usize].iter().zip(digest.to_words()) {
                kept.store(word, Ordering::Relaxed);
            }
        }
        new
    }

    fn query(&self, group: &Group<'_>) -> u64 {
        let session = self.map.session();
        let found = group.pages.iter().map(|page| {
            let digest = u128::from_be_bytes(digest(&page.0, self.setting.key).to_bytes());
            let Some(id) = self.map.get(&session, digest) else { return 0 };
            assert!(self.setting.pages.is_stored(page, id), "a digest collided");
            id + 1
        });
        found.sum()
    }

    fn delete(&self, ids: &[u64; GROUP_PAGES]) -> u64 {
        let session = self.map.session();
        let deleted = ids.iter().filter(|id| {
            let [high, low] = &self.digests[**id as usize];
            let high = u128::from(high.load(Ordering::Relaxed));
            let low = u128::from(low.load(Ordering::Relaxed));
            self.map.remove(&session, high << 64 | low)
        });
        deleted.count() as u64
    }
}

/// Passes a digest's low word through: its bits are as good as any hash of them.
#[derive(Clone, Copy, Default)]
pub(super) struct Pass(u64);

impl Hasher for Pass {
    fn write_u128(&mut self, digest: u128) {
        self.0 = digest as u64;
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are digests, which hash as one integer")
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(super) type PassState = BuildHasherDefault<Pass>;

impl Map for papaya::HashMap<u128, u64, PassState> {
    type Session<'a> = papaya::LocalGuard<'a>;

    fn with_room_for(keys: u64) -> Self {
        Self::with_capacity_and_hasher(keys as usize, PassState::default())
    }

    fn session(&self) -> Self::Session<'_> {
        self.guard()
    }

    fn insert(&self, session: &Self::Session<'_>, digest: u128, id: u64) -> Option<u64> {
        self.try_insert(digest, id, session).err().map(|occupied| *occupied.current)
    }

    fn get(&self, session: &Self::Session<'_>, digest: u128) -> Option<u64> {
        self.get(&digest, session).copied()
    }

    fn remove(&self, session: &Self::Session<'_>, digest: u128) -> bool {
        self.remove(&digest, session).is_some()
    }
}

impl Map for scc::HashIndex<u128, u64, PassState> {
    type Session<'a> = scc::Guard;

    fn with_room_for(keys: u64) -> Self {
        Self::with_capacity_and_hasher(keys as usize, PassState::default())
    }

    fn session(&self) -> Self::Session<'_> {
        scc::Guard::new()
    }

    fn insert(&self, session: &Self::Session<'_>, digest: u128, id: u64) -> Option<u64> {
        self.insert_sync(digest, id).err().and_then(|_| self.peek(&digest, session).copied())
    }

    fn get(&self, session: &Self::Session<'_>, digest: u128) -> Option<u64> {
        self.peek(&digest, session).copied()
    }

    fn remove(&self, _session: &Self::Session<'_>, digest: u128) -> bool {
        self.remove_sync(&digest)
    }
}

impl Map for dashmap::DashMap<u128, u64, PassState> {
    type Session<'a> = ();

    fn with_room_for(keys: u64) -> Self {
        Self::with_capacity_and_hasher(keys as usize, PassState::default())
    }

    fn session(&self) -> Self::Session<'_> {}

    fn insert(&self, (): &(), digest: u128, id: u64) -> Option<u64> {
        match self.entry(digest) {
            dashmap::Entry::Occupied(found) => Some(*found.get()),
            dashmap::Entry::Vacant(vacant) => {
                vacant.insert(id);
                None
            }
        }
    }

    fn get(&self, (): &(), digest: u128) -> Option<u64> {
        self.get(&digest).map(|found| *found)
    }

    fn remove(&self, (): &(), digest: u128) -> bool {
        self.remove(&digest).is_some()
    }
}

/// Keys of congee are eight bytes: the digest's first word, as in Bindery's index.
pub(super) type Congee = congee::Congee<usize, usize>;

fn first_word(digest: u128) -> usize {
    (digest >> 64) as usize
}

impl Map for Congee {
    type Session<'a> = congee::epoch::Guard;

    fn with_room_for(_keys: u64) -> Self {
        Self::default()
    }

    fn session(&self) -> Self::Session<'_> {
        self.pin()
    }

    fn insert(&self, session: &Self::Session<'_>, digest: u128, id: u64) -> Option<u64> {
        let keep = |found: Option<usize>| found.unwrap_or(id as usize);
        let found = self.compute_or_insert(first_word(digest), keep, session);
        found.expect("memory is there").map(|found| found as u64)
    }

    fn get(&self, session: &Self::Session<'_>, digest: u128) -> Option<u64> {
        self.get(&first_word(digest), session).map(|id| id as u64)
    }

    fn remove(&self, session: &Self::Session<'_>, digest: u128) -> bool {
        self.remove(&first_word(digest), session).is_some()
    }
}
