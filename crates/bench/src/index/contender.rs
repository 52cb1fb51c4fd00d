//! What is measured: an index of pages, as its user sees it.

use bindery_page::DigestKey;

use super::pages::{Page, Pages};

/// Pages that are asked about together. Only Bindery's batches make use of it; for all others it is
/// a loop, and what pins once a group instead of once a page.
pub(super) const GROUP_PAGES: usize = 32;

/// Pages in hand and their ids.
pub(super) struct Group<'a> {
    pub(super) pages: [&'a Page; GROUP_PAGES],
    pub(super) ids: [u64; GROUP_PAGES],
}

/// What all contenders are given.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) pages: &'a Pages,
    pub(super) key: &'a DigestKey,
    /// Keys to make room for.
    pub(super) keys: u64,
    /// Ids are below this.
    pub(super) ids: u64,
}

/// An index of pages by content. Each page is digested by those that need a digest, and every hit
/// is verified byte for byte.
pub(super) trait Contender: Sync {
    /// Inserts pages that may not be there yet; tells how many were not.
    fn insert(&self, group: &Group<'_>) -> u64;

    /// Looks pages up; the ids found, each plus one, summed.
    fn query(&self, group: &Group<'_>) -> u64;

    /// Deletes by what the caller has kept of each page since it was inserted: a handle, a digest,
    /// or for a tree of contents the stored page itself. Tells how many were there.
    fn delete(&self, ids: &[u64; GROUP_PAGES]) -> u64;
}
