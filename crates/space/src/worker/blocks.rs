//! Blocks of a guest's memory: sampled in place, split, and made whole again.

use std::sync::{Arc, PoisonError};

use bindery_sys::huge::Policy;
use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::{BLOCK_PAGES, BlockOutcome, BlockSample, BlockState};

use super::Worker;
use crate::region::Region;

/// Blocks made whole in answer to one request, at most: tens of milliseconds.
const COLLAPSED_MAX: usize = 64;

impl Worker {
    /// Samples the blocks that begin with each of `blocks`, and changes nothing. About a microsecond for each,
    /// and another two for a huge page.
    pub fn sample(&mut self, blocks: &[u32], samples: &mut Vec<BlockSample>) {
        // Where the kernel does not say, it was built without huge pages.
        let policy = Policy::of_machine().unwrap_or(Policy::Never);
        for first in blocks {
            let parts = self.with_parts(*first, |worker, region, block| {
                let core = Arc::clone(&worker.core);
                core.sample(region, block, policy, &mut worker.extents)
            });
            samples.push(parts.into_iter().reduce(join_samples).unwrap_or_default());
        }
    }

    /// Splits the blocks that begin with each of `blocks`: from here on scans look at their pages. Some
    /// microseconds each.
    pub fn split(&mut self, blocks: &[u32], outcomes: &mut Vec<BlockOutcome>) {
        for first in blocks {
            self.core.budget.settle(2);
            let parts = self.with_parts(*first, |worker, region, block| {
                let start = region.address(block.first);
                let _hold = worker.core.hold(start, start.plus_pages(block.count));
                worker.core.split(region, block).is_ok()
            });
            outcomes.push(match parts.as_slice() {
                [] => BlockOutcome::Unmanaged,
                parts if parts.iter().all(|is_split| *is_split) => BlockOutcome::Split,
                _ => BlockOutcome::Stuck,
            });
        }
    }

    /// Makes the blocks whole again that begin with each of `blocks`, huge or holes; a bounded number of them,
    /// from the first on. Their merged pages are lost. What would be neither stays split.
    pub fn collapse(&mut self, blocks: &[u32], outcomes: &mut Vec<BlockOutcome>) {
        self.staging.empty();
        for first in blocks.iter().take(COLLAPSED_MAX) {
            self.core.budget.settle(2);
            let parts = self.with_parts(*first, |worker, region, block| {
                if !region.is_split(block.first) {
                    return BlockOutcome::Whole;
                }
                let core = Arc::clone(&worker.core);
                core.collapse(region, block, &mut worker.spare, &mut worker.joints)
            });
            outcomes.push(match parts.as_slice() {
                [] => BlockOutcome::Unmanaged,
                [outcome] => *outcome,
                // Cut in two, it is no huge page any more.
                _ => BlockOutcome::Stuck,
            });
        }
    }

    /// Calls `act` with each managed part of the block that `first` is the first page of, and with its region,
    /// which stays mapped during the call. Returns what it returned: nothing if no part is managed.
    fn with_parts<T>(
        &mut self,
        first: u32,
        mut act: impl FnMut(&mut Self, &Region, PageRange) -> T,
    ) -> Vec<T> {
        let core = Arc::clone(&self.core);
        let parts = core.parts(PageRange::new(PageIndex(first), BLOCK_PAGES));
        let mut results = Vec::with_capacity(parts.len());
        for part in parts {
            let _mapped = part.region.mapped.read().unwrap_or_else(PoisonError::into_inner);
            if part.region.watched && core.regions.has(&part.region) {
                results.push(act(self, &part.region, part.pages));
            }
        }
        results
    }
}

/// Returns the sample of a block of two parts: split only if both are, so that what is not will be.
fn join_samples(one: BlockSample, other: BlockSample) -> BlockSample {
    let state = match (one.state, other.state) {
        (one, other) if one == other => one,
        (BlockState::Unmanaged, other) => other,
        (one, BlockState::Unmanaged) => one,
        _ => BlockState::Small,
    };
    BlockSample { state, may_be_huge: 0, ..BlockSample::default() }
}
