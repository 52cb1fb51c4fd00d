//! Pages that a domain has stored, by digest.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use bindery_pool::ObjectId;

use crate::page_digest::PageDigest;

/// Hashes digests, which are as good as random to whoever does not know the secret, by their first bytes.
/// An array writes its length before its bytes: the last write counts.
#[derive(Default)]
pub(crate) struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Places = HashMap<PageDigest, (ObjectId, u32), BuildHasherDefault<DigestHasher>>;

/// Pages that one domain has stored, by digest. Takes 50 to 100 bytes a page.
#[derive(Debug, Default)]
pub(crate) struct KnownPages(Places);

impl KnownPages {
    pub(crate) fn find(&self, digest: &PageDigest) -> Option<(ObjectId, u32)> {
        self.0.get(digest).copied()
    }

    pub(crate) fn insert(&mut self, digest: PageDigest, place: (ObjectId, u32)) {
        self.0.entry(digest).or_insert(place);
    }

    /// Adds all pages of a pack, by number.
    pub(crate) fn insert_pack(&mut self, pack: ObjectId, digests: &[PageDigest]) {
        for (page, digest) in (0..).zip(digests) {
            self.insert(*digest, (pack, page));
        }
    }

    /// Forgets pages of packs that are gone. Costs a look at each known page.
    pub(crate) fn forget_packs(&mut self, packs: &HashSet<ObjectId>) {
        if !packs.is_empty() {
            self.0.retain(|_, (pack, _)| !packs.contains(pack));
        }
    }

    /// Forgets single pages, so that they are stored anew when they come again.
    pub(crate) fn forget_pages(&mut self, places: &HashSet<(ObjectId, u32)>) {
        if !places.is_empty() {
            self.0.retain(|_, place| !places.contains(place));
        }
    }

    pub(crate) fn extend(&mut self, others: Self) {
        others.0.into_iter().for_each(|(digest, place)| self.insert(digest, place));
    }
}
