//! Blocks of a guest's memory: sampled in place, split, and made whole again.

use std::sync::{Arc, PoisonError};

use bindery_sys::huge::Policy;
use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::{BlockOutcome, BlockSample};

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
            let sample = self.with_block(*first, |worker, region, block| {
                let core = Arc::clone(&worker.core);
                core.sample(region, block, policy, &mut worker.extents)
            });
            samples.push(sample.unwrap_or_default());
        }
    }

    /// Splits the blocks that begin with each of `blocks`: from here on scans look at their pages. Some
    /// microseconds each.
    pub fn split(&mut self, blocks: &[u32], outcomes: &mut Vec<BlockOutcome>) {
        for first in blocks {
            let outcome = self.with_block(*first, |worker, region, block| {
                let start = region.address(block.first);
                let _hold = worker.core.hold(start, start.plus_pages(block.count));
                let is_split = worker.core.split(region, block).is_ok();
                if is_split { BlockOutcome::Split } else { BlockOutcome::Stuck }
            });
            outcomes.push(outcome.unwrap_or(BlockOutcome::Unmanaged));
        }
    }

    /// Makes the blocks whole again that begin with each of `blocks`, and huge where the machine and the VMM
    /// want huge pages; a bounded number of them, from the first on. Their merged pages are lost.
    pub fn collapse(&mut self, blocks: &[u32], outcomes: &mut Vec<BlockOutcome>) {
        self.staging.empty();
        for first in blocks.iter().take(COLLAPSED_MAX) {
            let outcome = self.with_block(*first, |worker, region, block| {
                if !region.is_split(block.first) {
                    return BlockOutcome::Whole;
                }
                let core = Arc::clone(&worker.core);
                core.collapse(region, block, &mut worker.spare, &mut worker.joints)
            });
            outcomes.push(outcome.unwrap_or(BlockOutcome::Unmanaged));
        }
    }

    /// Calls `act` with the block that `first` is the first page of, as far as it is managed, and with its
    /// region, which stays mapped during the call. `None` if it is not managed, or not any more.
    fn with_block<T>(
        &mut self,
        first: u32,
        act: impl FnOnce(&mut Self, &Region, PageRange) -> T,
    ) -> Option<T> {
        let core = Arc::clone(&self.core);
        // A region may begin in the midst of a block.
        let block = PageRange::new(PageIndex(first), bindery_wire::lane::BLOCK_PAGES);
        let region = core.regions.read().within(block).next().cloned()?;
        let _mapped = region.mapped.read().unwrap_or_else(PoisonError::into_inner);
        let block = block.intersection(region.pages());
        let stands = region.watched && core.regions.has(&region) && !block.is_empty();
        stands.then(|| act(self, &region, block))
    }
}
