//! Writes in blocks that are whole: tracked by 2 MiB where they are huge, by page elsewhere.
//!
//! The kernel's own tracking (`WP_ASYNC`) splits a huge page at its first write. So huge pages are registered
//! with a context of their own, in which a writer waits: a handler lifts the protection of all 2 MiB, and
//! nothing is split. Which blocks were written says the page table, as elsewhere: what is not protected. The
//! handler keeps no state, so nothing can disagree, and a block whose daemon is gone costs one fault more.
//!
//! Only what a scan reports is protected again, after it was reported. So a write is lost in no order of scan,
//! fault and protection: it comes before the report, or after the protection, or leaves a block that is in the
//! report.
//!
//! A block changes the way that it is tracked when a scan finds it otherwise than it was: it was split by the
//! kernel (discarded in part, swapped out) or became huge. It is left unprotected by that, and reported once
//! more by the next scan.

use std::{
    io,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use bindery_sys::{
    mapping::HUGE_PAGE_BYTES,
    pagemap::{EXTENTS_PER_CALL_MAX, Extent, Query, category},
    userfault::mode,
};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::lane::BLOCK_PAGES;

use crate::{Core, region::Region};

/// Pages of huge pages, zeros that the kernel made apart.
const IN_HUGE_PAGES: Query = Query {
    require: category::PRESENT | category::HUGE | category::ZERO,
    any_of: 0,
    invert: category::ZERO,
    report: category::HUGE,
    protect: false,
    refuse_unprotectable: false,
};

/// Way in which writes to a whole block are tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Exactly, which splits huge pages that are written.
    Page,
    /// All of a block at once.
    Block,
}

impl Core {
    /// Tracks writes in those of `pages` whose blocks are whole, too. The caller holds them.
    ///
    /// # Errors
    /// As `UFFDIO_REGISTER`.
    pub(crate) fn track(&self, region: &Region, pages: PageRange) -> io::Result<()> {
        for run in whole_runs(region, pages) {
            let mut at = run.first;
            for blocks in self.huge_blocks(region, run) {
                self.track_by(Grain::Page, region, between(at, blocks.first))?;
                // Each takes two mappings at most. Without them exactness costs huge pages.
                let grain = if self.budget.allows(2) { Grain::Block } else { Grain::Page };
                self.track_by(grain, region, blocks)?;
                at = blocks.end();
            }
            self.track_by(Grain::Page, region, between(at, run.end()))?;
        }
        Ok(())
    }

    /// Ends [`track`](Self::track): whole blocks are the kernel's own again. The caller holds them.
    pub(crate) fn end_tracking(&self, region: &Region, pages: PageRange) {
        whole_runs(region, pages).into_iter().for_each(|run| self.untrack(region, run));
    }

    /// Tracks writes again, if they are tracked, in a whole block that is held and whose registration has ended.
    pub(crate) fn track_anew(&self, region: &Region, block: PageRange) {
        if region.is_tracked.load(Ordering::Relaxed) && self.track(region, block).is_err() {
            self.note_untracked(region, block);
        }
    }

    /// Tracks whole blocks by another grain. Blocks that are not so any more, or whose region is no more, stay
    /// as they are. The caller holds nothing.
    pub(crate) fn change_grain(&self, region: &Arc<Region>, blocks: PageRange, grain: Grain) {
        let _mapped = region.mapped.read().unwrap_or_else(PoisonError::into_inner);
        let start = region.address(blocks.first);
        let _hold = self.hold(start, start.plus_pages(blocks.count));
        // Relaxed: changed by who holds the region.
        let is_tracked = region.is_tracked.load(Ordering::Relaxed);
        if !is_tracked || !self.regions.has(region) || !self.budget.allows(2) {
            return;
        }
        for run in whole_runs(region, blocks) {
            let runs = match grain {
                Grain::Block => self.huge_blocks(region, run),
                Grain::Page => vec![run],
            };
            for run in runs {
                if self.track_by(grain, region, run).is_err()
                    && self.track_by(Grain::Page, region, run).is_err()
                {
                    self.note_untracked(region, run);
                }
            }
        }
    }

    /// Ends the registration of whole blocks, which leaves them unprotected. The caller holds them.
    pub(crate) fn untrack(&self, region: &Region, pages: PageRange) {
        for (run, grain) in grains(region, pages) {
            let faults = match grain {
                Grain::Page => &self.guest_faults,
                Grain::Block => &self.block_faults,
            };
            let (start, bytes) = place(region, run);
            // SAFETY: absent pages of whole blocks are zero.
            let ended = unsafe { faults.unregister(start, bytes) };
            // If it fails, they stay tracked for nothing, and whoever waits there is served.
            if ended.is_ok() {
                region.set_grain(run, Grain::Page);
            }
        }
    }

    fn track_by(&self, grain: Grain, region: &Region, pages: PageRange) -> io::Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        self.untrack(region, pages);
        let faults = match grain {
            Grain::Page => &self.guest_faults,
            Grain::Block => &self.block_faults,
        };
        let (start, bytes) = place(region, pages);
        // SAFETY: writes are resolved by the kernel or the handler, and absent pages as ever.
        unsafe { faults.register(start, bytes, mode::WP)? };
        region.set_grain(pages, grain);
        self.budget.made(if grain == Grain::Block { 2 } else { 0 });
        Ok(())
    }

    /// The next scan that is to reach the region has all of it tracked anew, and reports `pages`.
    fn note_untracked(&self, region: &Region, pages: PageRange) {
        region.is_tracked.store(false, Ordering::Relaxed);
        region.add_pending(pages);
    }

    /// Returns the runs of blocks in `pages` that are huge pages.
    fn huge_blocks(&self, region: &Region, pages: PageRange) -> Vec<PageRange> {
        let (mut at, end) = (region.address(pages.first), place(region, pages).1);
        let end = at.plus(end);
        let mut extents = vec![Extent::default(); EXTENTS_PER_CALL_MAX];
        let mut runs: Vec<PageRange> = Vec::new();
        while at < end {
            // Where the kernel does not say, they are tracked by page.
            let scanned = self.pagemap.scan(at, end.0 - at.0, IN_HUGE_PAGES, &mut extents);
            let Ok(scanned) = scanned else { break };
            for extent in &extents[..scanned.extents] {
                let blocks = blocks_of(region, extent);
                match runs.last_mut() {
                    Some(last) if last.end() == blocks.first => last.count += blocks.count,
                    _ if blocks.is_empty() => {}
                    _ => runs.push(blocks),
                }
            }
            at = scanned.resume_at;
        }
        runs
    }

    /// Protects blocks tracked as such that a scan has reported. The caller holds them. What cannot be
    /// protected is reported again.
    pub(crate) fn protect_blocks(&self, region: &Region, blocks: PageRange) {
        if !blocks.is_empty() {
            let (start, bytes) = place(region, blocks);
            let _ = self.block_faults.write_protect(start, bytes, true);
        }
    }

    /// Lets threads write that wait for a block, all of it. Those that wait for one that is tracked otherwise by
    /// now try again: to end protection there would be to end what others rely on.
    pub(crate) fn let_write_block(&self, address: HostAddress) {
        let regions = self.regions.read();
        let region = regions.at(address);
        // Nobody tracks a block otherwise while the table is locked, or the block is held.
        let mut held = self.held.lock();
        if held.leave_to_holder(address) {
            return;
        }
        let lift = |start, bytes| self.block_faults.write_protect(start, bytes, false);
        let grain = region.map(|region| (region, region.grain(region.page(address))));
        let lifted = match grain {
            // No further than the region: what took the place of the rest of the block has its own protection.
            Some((region, Grain::Block)) => {
                let (start, bytes) = place(region, region.block(region.page(address)));
                lift(start, bytes).or_else(|_| lift(address, PAGE_BYTES)).is_ok()
            }
            Some((_, Grain::Page)) => false,
            // Memory that was forgotten: its owner answers for it.
            None => lift(address, PAGE_BYTES).is_ok(),
        };
        if !lifted {
            let woken = self.block_faults.wake(address, PAGE_BYTES);
            assert!(woken.is_ok(), "waking a page cannot fail");
        }
    }
}

/// Returns the blocks that lie in an extent and can be huge pages.
pub(crate) fn blocks_of(region: &Region, extent: &Extent) -> PageRange {
    let from = (extent.start as usize).next_multiple_of(HUGE_PAGE_BYTES);
    let end = extent.end as usize & !(HUGE_PAGE_BYTES - 1);
    if from >= end {
        return PageRange::default();
    }
    let first = region.page(HostAddress(from));
    // Memory that is aligned otherwise than it is numbered has no block that is one huge page.
    let is_aligned = first.0.is_multiple_of(BLOCK_PAGES);
    let count = if is_aligned { ((end - from) / PAGE_BYTES) as u32 } else { 0 };
    PageRange::new(first, count)
}

/// Returns the longest runs of `pages` whose blocks are tracked alike.
fn grains(region: &Region, pages: PageRange) -> Vec<(PageRange, Grain)> {
    let mut runs: Vec<(PageRange, Grain)> = Vec::new();
    for block in region.blocks(pages) {
        let (part, grain) = (block.intersection(pages), region.grain(block.first));
        match runs.last_mut() {
            Some((last, same)) if *same == grain => last.count += part.count,
            _ => runs.push((part, grain)),
        }
    }
    runs
}

/// Returns the longest runs of `pages` whose blocks are whole.
fn whole_runs(region: &Region, pages: PageRange) -> Vec<PageRange> {
    let mut runs: Vec<PageRange> = Vec::new();
    for block in region.blocks(pages).filter(|block| !region.is_split(block.first)) {
        let part = block.intersection(pages);
        match runs.last_mut() {
            Some(last) if last.end() == part.first => last.count += part.count,
            _ => runs.push(part),
        }
    }
    runs
}

const fn between(from: PageIndex, to: PageIndex) -> PageRange {
    PageRange::new(from, to.0 - from.0)
}

fn place(region: &Region, pages: PageRange) -> (HostAddress, usize) {
    (region.address(pages.first), pages.count as usize * PAGE_BYTES)
}
