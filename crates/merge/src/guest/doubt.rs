//! Doubt about a guest's links, from a request that changes what it maps until the answer.

use bindery_units::PageIndex;

use crate::runs::Merge;

/// Doubt about which pages of a guest are merged, and with what.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    is_raised: bool,
    /// Requests to merge that were sent and not answered yet, over as many lanes.
    requests: u32,
    /// Merges of requests that were not answered. Each holds a reference of its slot until the guest has
    /// reported what it maps.
    in_flight: Vec<Merge>,
}

impl Doubt {
    /// Creates a doubt, raised if pages may be merged already.
    pub(crate) const fn new(is_raised: bool) -> Self {
        Self { is_raised, requests: 0, in_flight: Vec::new() }
    }

    /// Takes in that the guest is asked what it lost, which it says once, or that pages may have been merged
    /// before it came.
    pub(crate) const fn raise(&mut self) {
        self.is_raised = true;
    }

    /// Takes in that a request to merge is sent.
    pub(crate) const fn begin_request(&mut self) {
        self.requests += 1;
    }

    /// Takes in that the answer to a request to merge is here, or that nothing was done.
    pub(crate) fn end_request(&mut self) {
        assert!(self.requests > 0, "what is answered was asked");
        self.requests -= 1;
    }

    /// Takes in that a request to merge has no answer. Its merges may or may not have been done.
    pub(crate) fn give_request_up(&mut self, merges: impl Iterator<Item = Merge>) {
        self.end_request();
        self.raise();
        self.in_flight.extend(merges);
    }

    /// Takes in that the guest has said what is merged, or what it lost, or that nothing was done.
    pub(crate) fn lower(&mut self) {
        assert!(self.in_flight.is_empty(), "a report settles what is in flight");
        self.is_raised = false;
    }

    /// Returns true if the guest has to report what is merged.
    pub(crate) const fn is_raised(&self) -> bool {
        self.is_raised || self.requests > 0
    }

    /// Returns true if the links are right and no merge is in flight.
    pub(crate) const fn is_clear(&self) -> bool {
        !self.is_raised() && self.in_flight.is_empty()
    }

    /// Returns the merges in flight. Each holds a reference.
    pub(crate) fn in_flight(&self) -> &[Merge] {
        &self.in_flight
    }

    /// Takes the merges in flight, with the references that they hold.
    pub(crate) fn take_in_flight(&mut self) -> Vec<Merge> {
        std::mem::take(&mut self.in_flight)
    }

    /// Takes those merges in flight whose page `is_released`, with the references that they hold.
    pub(crate) fn extract_in_flight(
        &mut self,
        is_released: impl Fn(PageIndex) -> bool,
    ) -> Vec<Merge> {
        self.in_flight.extract_if(.., |merge| is_released(merge.page)).collect()
    }

    /// Returns the memory held, in bytes.
    pub(crate) const fn memory_bytes(&self) -> usize {
        self.in_flight.capacity() * size_of::<Merge>()
    }
}
