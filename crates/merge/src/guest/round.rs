//! Findings of a round for one guest, until it is asked to merge.

use bindery_units::PageIndex;

use crate::runs::Merge;

/// Pages of one guest that a round found something for.
#[derive(Debug, Default)]
pub(crate) struct Round {
    zeros: Vec<u32>,
    /// By page once they were given their places (`spread`). Each holds a reference of its slot.
    merges: Vec<Merge>,
    /// Pages that were inferred to hold what they are to be merged with (`between`).
    inferred: Vec<u32>,
    /// Some contents were left out for want of room for mappings.
    has_left_out: bool,
}

impl Round {
    /// Takes in that there was no room for mappings for some of what was found.
    pub(crate) fn note_left_out(&mut self) {
        self.has_left_out = true;
    }

    /// Returns true if some of what was found was left out for want of room for mappings.
    pub(crate) fn has_left_out(&self) -> bool {
        self.has_left_out
    }

    /// Returns the same, and forgets it.
    pub(crate) fn take_left_out(&mut self) -> bool {
        std::mem::take(&mut self.has_left_out)
    }

    /// Drops inferred pages that no merge came of. Zeros and merges were taken in the last round.
    pub(crate) fn drop_inferred(&mut self) {
        self.inferred.clear();
    }

    /// Adds what a batch of pages was found to hold. The references of `merges` are this one's from
    /// now on.
    pub(crate) fn add(&mut self, zeros: &[u32], merges: &[Merge], inferred: &[u32]) {
        self.zeros.extend(zeros);
        self.merges.extend(merges);
        self.inferred.extend(inferred);
    }

    /// Adds a merge, with its reference.
    pub(crate) fn add_merge(&mut self, merge: Merge) {
        self.merges.push(merge);
    }

    /// Returns the pages to be given the zero page.
    pub(crate) fn zeros(&self) -> &[u32] {
        &self.zeros
    }

    /// Returns the merges. Each holds a reference.
    pub(crate) fn merges(&self) -> &[Merge] {
        &self.merges
    }

    /// Sorts the merges by page and returns them.
    pub(crate) fn sort_merges(&mut self) -> &[Merge] {
        self.merges.sort_unstable();
        &self.merges
    }

    /// Returns the merges, to be given other slots: whoever does exchanges the references.
    pub(crate) fn merges_mut(&mut self) -> &mut [Merge] {
        &mut self.merges
    }

    /// Takes the pages found to be zero, ascending.
    pub(crate) fn take_zeros(&mut self) -> Vec<u32> {
        let mut zeros = std::mem::take(&mut self.zeros);
        zeros.sort_unstable();
        zeros
    }

    /// Takes the merges, with their references.
    pub(crate) fn take_merges(&mut self) -> Vec<Merge> {
        std::mem::take(&mut self.merges)
    }

    /// Takes the inferred pages.
    pub(crate) fn take_inferred(&mut self) -> Inferred {
        let mut pages = std::mem::take(&mut self.inferred);
        pages.sort_unstable();
        Inferred(pages)
    }

    /// Returns the memory held, in bytes.
    pub(crate) const fn memory_bytes(&self) -> usize {
        (self.zeros.capacity() + self.inferred.capacity()) * size_of::<u32>()
            + self.merges.capacity() * size_of::<Merge>()
    }
}

/// Pages that were not digested, ascending.
#[derive(Debug, Default)]
pub(crate) struct Inferred(Vec<u32>);

impl Inferred {
    /// Returns true if `page` is to be merged for its neighbours' sake.
    pub(crate) fn contains(&self, page: PageIndex) -> bool {
        self.0.binary_search(&page.0).is_ok()
    }
}
