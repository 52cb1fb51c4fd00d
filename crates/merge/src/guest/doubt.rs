//! Whether a guest's links say what it maps: not while a request that changes it has no answer.

use bindery_units::PageIndex;

use crate::runs::Merge;

/// Doubt about which pages of a guest are merged, and with what.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    is_raised: bool,
    /// Merges of requests that were not answered. Each holds a reference of its slot until the guest has
    /// reported what it maps.
    in_flight: Vec<Merge>,
}

impl Doubt {
    /// Begins with doubt, or without.
    pub(crate) const fn new(is_raised: bool) -> Self {
        Self { is_raised, in_flight: Vec::new() }
    }

    /// Takes in that something was asked that changes what is merged, or may have been before the guest
    /// came.
    pub(crate) const fn raise(&mut self) {
        self.is_raised = true;
    }

    /// Takes in that the answer is here, or that nothing was done.
    pub(crate) const fn lower(&mut self) {
        self.is_raised = false;
    }

    /// Returns whether the guest has to report what is merged.
    pub(crate) const fn is_raised(&self) -> bool {
        self.is_raised
    }

    /// Returns whether the links are right and no merge is in flight.
    pub(crate) const fn is_settled(&self) -> bool {
        !self.is_raised && self.in_flight.is_empty()
    }

    /// Adds merges that may or may not have been done.
    pub(crate) fn add_in_flight(&mut self, merges: impl Iterator<Item = Merge>) {
        self.in_flight.extend(merges);
    }

    /// Returns the merges in flight. Each holds a reference.
    pub(crate) fn in_flight(&self) -> &[Merge] {
        &self.in_flight
    }

    /// Takes the merges in flight, with the references that they hold.
    pub(crate) fn take_in_flight(&mut self) -> Vec<Merge> {
        std::mem::take(&mut self.in_flight)
    }

    /// Takes those merges in flight whose page `is_settled`, with the references that they hold.
    pub(crate) fn extract_in_flight(
        &mut self,
        is_settled: impl Fn(PageIndex) -> bool,
    ) -> Vec<Merge> {
        self.in_flight.extract_if(.., |merge| is_settled(merge.page)).collect()
    }

    /// Returns the memory held, in bytes.
    pub(crate) const fn memory_bytes(&self) -> usize {
        self.in_flight.capacity() * size_of::<Merge>()
    }
}
