//! What no index can save: digesting each page, and comparing it with the page that is found.
//!
//! In the index's place stands a table by id, which the others do not get to see. How its rates grow
//! with threads is how far the machine's caches and memory let any index's grow.

use std::sync::atomic::{AtomicBool, Ordering};

use bindery_page::digest;

use super::contender::{Contender, GROUP_PAGES, Group, Setting};

/// A table that knows where every page is.
pub(super) struct Bound<'a> {
    setting: Setting<'a>,
    /// Whether pages are digested, as for an index of digests, or only compared.
    digests: bool,
    /// Which pages were inserted and not deleted, by id.
    present: Box<[AtomicBool]>,
}

impl<'a> Bound<'a> {
    pub(super) fn new(setting: Setting<'a>, digests: bool) -> Self {
        let present = (0..setting.ids).map(|_| AtomicBool::new(false)).collect();
        Self { setting, digests, present }
    }

    fn digest_all(&self, group: &Group<'_>) {
        if self.digests {
            for page in group.pages {
                std::hint::black_box(digest(&page.0, self.setting.key));
            }
        }
    }

    // Relaxed: a page is deleted by the thread that inserted it, or in a later phase.
    fn has(&self, id: u64) -> bool {
        self.present[id as usize].load(Ordering::Relaxed)
    }

    fn set(&self, id: u64, present: bool) {
        self.present[id as usize].store(present, Ordering::Relaxed);
    }
}

impl Contender for Bound<'_> {
    fn insert(&self, group: &Group<'_>) -> u64 {
        self.digest_all(group);
        let new = group.ids.iter().filter(|id| !self.has(**id));
        new.inspect(|id| self.set(**id, true)).count() as u64
    }

    fn query(&self, group: &Group<'_>) -> u64 {
        self.digest_all(group);
        let present = group.pages.iter().zip(group.ids).filter(|(_, id)| self.has(*id));
        let found = present.map(|(page, id)| {
            assert!(self.setting.pages.is_stored(page, id), "a page is not what it was");
            id + 1
        });
        found.sum()
    }

    fn delete(&self, ids: &[u64; GROUP_PAGES]) -> u64 {
        let present = ids.iter().filter(|id| self.has(**id));
        present.inspect(|id| self.set(**id, false)).count() as u64
    }
}
