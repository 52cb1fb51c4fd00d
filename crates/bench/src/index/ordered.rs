//! The rival by content: a search tree under one lock.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::contender::{Contender, GROUP_PAGES, Group, Setting};
use super::pages::Pages;

/// Pages in the order of memcmp under one lock: KSM's way, with a B-tree for its red-black one.
pub(super) struct Ordered<'a> {
    setting: Setting<'a>,
    tree: Mutex<BTreeMap<Stored<'a>, u64>>,
}

/// A page of a [`BTreeMap`], ordered by content. A search compares the page that it looks for with
/// those in the tree, in this order, so the first of a comparison is taken for the page in hand.
#[derive(Clone, Copy)]
struct Stored<'a> {
    pages: &'a Pages,
    id: u64,
}

impl Ord for Stored<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.pages.order(self.id, other.id)
    }
}

impl PartialOrd for Stored<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Stored<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Stored<'_> {}

impl<'a> Ordered<'a> {
    pub(super) fn new(setting: Setting<'a>) -> Self {
        Self { setting, tree: Mutex::new(BTreeMap::new()) }
    }

    fn stored(&self, id: u64) -> Stored<'a> {
        Stored { pages: self.setting.pages, id }
    }

    fn tree(&self) -> MutexGuard<'_, BTreeMap<Stored<'a>, u64>> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contender for Ordered<'_> {
    fn insert(&self, group: &Group<'_>) -> u64 {
        let new = group.ids.iter().filter(|id| {
            let mut tree = self.tree();
            let Entry::Vacant(vacant) = tree.entry(self.stored(**id)) else { return false };
            vacant.insert(**id);
            true
        });
        new.count() as u64
    }

    fn query(&self, group: &Group<'_>) -> u64 {
        // Found means equal: the tree has compared all bytes.
        let found = group.ids.iter().map(|id| {
            let found = self.tree().get(&self.stored(*id)).copied();
            found.map_or(0, |id| id + 1)
        });
        found.sum()
    }

    fn delete(&self, ids: &[u64; GROUP_PAGES]) -> u64 {
        let deleted = ids.iter().filter(|id| self.tree().remove(&self.stored(**id)).is_some());
        deleted.count() as u64
    }
}
