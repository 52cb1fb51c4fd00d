//! Last versions of pages that were sent more than once, from which deltas are made.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bindery_units::PAGE_BYTES;

use crate::format::ChunkAt;

type Page = [u8; PAGE_BYTES];

/// Bounded cache of pages by place. Once it is full, only pages that are in it are kept up to date.
#[derive(Debug)]
pub(crate) struct Versions {
    pages: HashMap<(ChunkAt, u32), Box<Page>>,
    most: usize,
}

impl Versions {
    /// Makes an empty cache of at most so many bytes of pages.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { pages: HashMap::new(), most: bytes / PAGE_BYTES }
    }

    /// Returns the version of a page that was sent last, if it is known.
    pub(crate) fn get(&self, at: ChunkAt, bit: u32) -> Option<&Page> {
        self.pages.get(&(at, bit)).map(|page| &**page)
    }

    /// Notes that this version was sent.
    pub(crate) fn put(&mut self, at: ChunkAt, bit: u32, page: &Page) {
        let has_room = self.pages.len() < self.most;
        match self.pages.entry((at, bit)) {
            Entry::Occupied(mut known) => known.get_mut().copy_from_slice(page),
            Entry::Vacant(place) if has_room => _ = place.insert(Box::new(*page)),
            Entry::Vacant(_) => {}
        }
    }

    /// Forgets a page.
    pub(crate) fn forget(&mut self, at: ChunkAt, bit: u32) {
        if !self.pages.is_empty() {
            self.pages.remove(&(at, bit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_keeps_what_it_has_up_to_date() {
        let at = ChunkAt { block: 0, row: 3 };
        let mut versions = Versions::new(2 * PAGE_BYTES + 1);
        for (bit, byte) in [(0, 1), (1, 2), (2, 3), (0, 4)] {
            versions.put(at, bit, &[byte; PAGE_BYTES]);
        }
        assert_eq!(versions.get(at, 0), Some(&[4; PAGE_BYTES]));
        assert_eq!(versions.get(at, 2), None);
        versions.forget(at, 1);
        versions.put(at, 2, &[5; PAGE_BYTES]);
        assert_eq!(versions.get(at, 2), Some(&[5; PAGE_BYTES]));
    }
}
