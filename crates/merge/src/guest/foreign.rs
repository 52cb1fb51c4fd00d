//! Pages that a guest maps from the store of a daemon that ended, and how long they have been looked at.

use std::collections::BTreeSet;

use bindery_units::{PageIndex, PageRange};

/// Pages merged with stores that are not the domain's.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    pages: BTreeSet<u32>,
    /// Number of times that all stable pages were looked at since the guest reported what is merged.
    laps: u32,
}

impl Foreign {
    /// Adds a page. Returns true if it is new.
    pub(crate) fn insert(&mut self, page: PageIndex) -> bool {
        self.pages.insert(page.0)
    }

    /// Takes a page out: it maps something else. Returns true if it was there.
    pub(crate) fn remove(&mut self, page: PageIndex) -> bool {
        self.pages.remove(&page.0)
    }

    /// Takes out all pages of `range`.
    pub(crate) fn remove_range(&mut self, range: PageRange) {
        let within: Vec<u32> = self.pages.range(range.first.0..range.end().0).copied().collect();
        for page in within {
            self.pages.remove(&page);
        }
    }

    /// Returns true if `page` maps such a store.
    pub(crate) fn contains(&self, page: PageIndex) -> bool {
        self.pages.contains(&page.0)
    }

    /// Returns true if no page is foreign.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the number of foreign pages.
    pub(crate) fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Returns the pages, ascending.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageIndex> + '_ {
        self.pages.iter().map(|page| PageIndex(*page))
    }

    /// Takes in that the guest has reported what is merged: laps count from here.
    pub(crate) const fn begin_laps(&mut self) {
        self.laps = 0;
    }

    /// Takes in that all of the guest's stable pages have been looked at.
    pub(crate) const fn end_lap(&mut self) {
        self.laps = self.laps.saturating_add(1);
    }

    /// Returns the number of laps since the report.
    pub(crate) const fn laps(&self) -> u32 {
        self.laps
    }

    /// Returns the memory held, in bytes, roughly: a B-tree's nodes are at least half full.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pages.len() * 2 * size_of::<u32>()
    }
}
