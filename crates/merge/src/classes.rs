//! The classes of a round while they are being found: a number for each, and where it was seen first.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bindery_units::PageIndex;

use crate::index_entry::IndexEntry;

/// Numbers for the classes of one round. Eight bytes for each page of the round, until it is planned.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    next: AtomicU32,
    /// The candidate that each class was made of, as the leaf had it; zero where there is none yet.
    origins: Box<[AtomicU64]>,
}

impl Classes {
    /// Begins a round of so many pages: each makes one class at most.
    pub(crate) fn of_round(pages: usize) -> Self {
        Self { next: AtomicU32::new(0), origins: (0..pages).map(|_| AtomicU64::new(0)).collect() }
    }

    /// A number that no other class of the round has, for one that `candidate` is the first page of.
    ///
    /// # Panics
    /// If more are asked for than the round has pages.
    pub(crate) fn number(&self, candidate: u64) -> u32 {
        // Relaxed: a number that nobody else has. The origin is published by the exchange that makes
        // the leaf say `Planned`, to whoever reads that there.
        let class = self.next.fetch_add(1, Ordering::Relaxed);
        self.origins[class as usize].store(candidate, Ordering::Relaxed);
        class
    }

    /// The page that `class` was first seen in: its guest, and where it is there.
    ///
    /// # Panics
    /// If the round has no such class.
    pub(crate) fn origin(&self, class: u32) -> (u32, PageIndex) {
        // Relaxed: see `number`.
        match IndexEntry::from_bits(self.origins[class as usize].load(Ordering::Relaxed)) {
            IndexEntry::Candidate { guest, page, .. } => (guest, page),
            other => unreachable!("class {class} was made of a candidate, not of {other:?}"),
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.origins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_know_where_they_were_seen_first() {
        let classes = Classes::of_round(3);
        let candidate = |guest, page| {
            IndexEntry::Candidate { guest, page: PageIndex(page), is_shared: false }.to_bits()
        };
        let numbers =
            [(7, 0), (0, 9), (7, 1)].map(|(guest, page)| classes.number(candidate(guest, page)));
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(classes.origin(1), (0, PageIndex(9)));
        assert_eq!(classes.origin(2), (7, PageIndex(1)));
    }
}
