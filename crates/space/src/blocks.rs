//! Blocks: the 2 MiB that a huge page holds. Whole ones are the kernel's own; split ones are watched.
//!
//! A block that is *whole* lives under the kernel's own faults, as if it were not managed: nobody serves
//! its faults, none of its pages is protected, and it is a huge page if the kernel makes it one. Reading
//! it, to sample or digest it, changes nothing. A block that is *split* is registered, page by page: only
//! there pages are merged, and writes tracked by scans.
//!
//! ```text
//!   whole ──── split: registered as it is ────► split
//!     ▲                                           │
//!     └── collapse: unmerged, in one mapping, ◄───┘
//!         registered no more, made huge
//! ```
//!
//! A block is split by who moves a page of it away, while the page is held, and made whole by who holds all
//! of it.

use std::{io, thread, time::Duration};

use bindery_sys::{
    huge::Policy,
    mapping::{self, HUGE_PAGE_BYTES, Mapping},
    maps,
    pagemap::{Query, category},
    userfault::mode,
};
use bindery_units::{HostAddress, PAGE_BYTES, PageRange};
use bindery_wire::lane::{BLOCK_PAGES, BlockOutcome};

use crate::{
    Core,
    advice::bind,
    region::Region,
    return_pages::give_back,
    spare::Spare,
    tracking::Grain,
    transfer::{HERE, PageSet, WINDOW_PAGES, find_pages, take},
};

/// `MADV_COLLAPSE` (Linux 6.1).
const MADV_COLLAPSE: i32 = 25;

/// Windows of a block.
const WINDOWS: u32 = BLOCK_PAGES / WINDOW_PAGES;

/// Blocks that are mapped at a time for others to be joined in.
const CHUNK_BLOCKS: usize = 16;

/// Pages of a block that are there, at least, if it is to become a huge page: the others take memory by that.
const PRESENT_MIN: u32 = BLOCK_PAGES / 4 * 3;

/// Pages that are there, and not zeros that the kernel made.
const IN_MEMORY: Query = Query {
    require: category::PRESENT | category::ZERO,
    any_of: 0,
    invert: category::ZERO,
    report: category::PRESENT,
    protect: false,
    refuse_unprotectable: false,
};

/// Outcome of making a block whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// Block left as it was.
    Nothing,
    Whole,
    /// Whole block in which nothing is there.
    Hole,
}

impl Core {
    /// Splits the blocks that `pages` have a part of, which the caller holds. Two mappings more, at most, for
    /// each run of blocks.
    ///
    /// # Errors
    /// As `UFFDIO_REGISTER`: `EBUSY` if another userfaultfd has the block, `ENOMEM` without a mapping.
    pub(crate) fn split(&self, region: &Region, pages: PageRange) -> io::Result<()> {
        for block in region.blocks(pages).filter(|block| !region.is_split(block.first)) {
            if !self.budget.allows(2) {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            let (start, bytes) = place(region, block);
            if region.grain(block.first) == Grain::Block {
                // Two contexts cannot have it. All of it counts as written.
                self.untrack(region, block);
            }
            // SAFETY: faults are served by the handler. No page of a whole block is held elsewhere: absent
            // ones are zero.
            unsafe { self.guest_faults.register(start, bytes, mode::MISSING | mode::WP) }
                .inspect_err(|_| self.track_anew(region, block))?;
            self.budget.made(2);
            region.set_split(block.first, true);
        }
        Ok(())
    }

    /// Makes a split block whole: private, in one mapping and unwatched, and a huge page, or a hole if it is
    /// zero. One that would be neither stays split. Blocks all that touch it meanwhile, some 0.2 ms.
    pub(crate) fn collapse(
        &self,
        region: &Region,
        block: PageRange,
        spare: &mut Spare,
        joints: &mut Joints,
    ) -> BlockOutcome {
        let (start, bytes) = place(region, block);
        let is_zero = block.count == BLOCK_PAGES && self.has_only_zeros(start);
        if !is_zero && !self.is_worth_collapsing(region, block) {
            return BlockOutcome::Stuck;
        }
        let unmerged = self.unmerge(region, block, u32::MAX, spare);
        let hold = self.hold(start, start.plus(bytes));
        let is_private = block.pages().all(|page| region.entry(page).is_anonymous());
        let made = match unmerged.stuck == 0 && is_private {
            true => self.make_whole(region, block, joints),
            false => Made::Nothing,
        };
        if made == Made::Nothing {
            return BlockOutcome::Stuck;
        }
        region.set_split(block.first, false);
        self.track_anew(region, block);
        drop(hold);
        if made == Made::Whole && is_collapsed(start, bytes) {
            BlockOutcome::Huge
        } else {
            BlockOutcome::Whole
        }
    }

    /// Returns true if a block may become a huge page that takes little more memory than its pages, none of
    /// which is a copy of the kernel's.
    fn is_worth_collapsing(&self, region: &Region, block: PageRange) -> bool {
        let policy = Policy::of_machine().unwrap_or(Policy::Never);
        let stays = |page| region.entry(page).kind().is_untracked();
        may_be_huge(region, block, policy)
            && !block.pages().any(stays)
            && self.present(region.address(block.first)) >= PRESENT_MIN
    }

    /// Returns how many pages of a block are there, zeros that the kernel made apart.
    fn present(&self, start: HostAddress) -> u32 {
        let windows = (0..WINDOWS).map(|window| start.plus_pages(window * WINDOW_PAGES));
        let found = windows.map(|from| {
            let pages = find_pages(&self.pagemap, from, WINDOW_PAGES, IN_MEMORY);
            pages.map_or(0, |pages| pages.0.count_ones())
        });
        found.sum()
    }

    /// Ends the registration of a private block that is held, in one mapping.
    fn make_whole(&self, region: &Region, block: PageRange, joints: &mut Joints) -> Made {
        let (start, bytes) = place(region, block);
        let may_be_hole = block.count == BLOCK_PAGES && self.has_only_zeros(start);
        if is_one_mapping(start, bytes) && !may_be_hole {
            // SAFETY: the block is held, no page of it is in transit, and absent ones are zero.
            let unregistered = unsafe { self.guest_faults.unregister(start, bytes) };
            self.budget.made(2);
            return if unregistered.is_ok() { Made::Whole } else { Made::Nothing };
        }
        match block.count == BLOCK_PAGES {
            true => self.join(region, block, joints),
            false => Made::Nothing,
        }
    }

    /// Moves the pages of a block into one mapping, and that over the block.
    fn join(&self, region: &Region, block: PageRange, joints: &mut Joints) -> Made {
        let (start, bytes) = place(region, block);
        let (advised, alike) = region.advised_run(block.first, block);
        if alike != block || !self.budget.allows(2) {
            return Made::Nothing;
        }
        let Ok(joint) = joints.take() else { return Made::Nothing };
        // SAFETY: the joint is ours, and empty. The target of a move must be registered, for writes only,
        // since nobody but us touches it.
        let ready = unsafe {
            bind(advised.nodes, joint, bytes);
            let mut advice = advised.changes_of_new();
            let advised = advice.try_for_each(|advice| mapping::advise(joint, bytes, advice));
            advised.and_then(|()| self.guest_faults.register(joint, bytes, mode::WP))
        };
        let made = match ready {
            // SAFETY: the block is held and private; the joint is empty and ours.
            Ok(()) => unsafe { self.replace_block(region, joint, start, bytes) },
            Err(_) => Made::Nothing,
        };
        if made == Made::Nothing {
            // If it cannot be cut out of its neighbours, it stays mapped for nothing.
            // SAFETY: the joint is ours, and what may be left in it is wanted no more.
            let _ = unsafe { mapping::unmap(joint, bytes) };
        } else {
            self.budget.made(2);
        }
        made
    }

    /// Moves all pages of a block to a joint, and that over the block; without them if all are zero.
    ///
    /// # Safety
    /// The caller holds the block, which is the region's, and owns the joint, which is empty and registered.
    unsafe fn replace_block(
        &self,
        region: &Region,
        joint: HostAddress,
        start: HostAddress,
        bytes: usize,
    ) -> Made {
        // SAFETY: the caller's contract. Nobody else has the joint: what is in it is so until it is placed.
        unsafe {
            if !self.move_block(region, joint, start) {
                self.move_block_back(region, joint, start);
                return Made::Nothing;
            }
            let is_hole = self.has_only_zeros(joint);
            // Not registered any more, the joint is joined with what it comes to lie beside.
            let placed = self.guest_faults.unregister(joint, bytes).is_ok()
                && put_block(joint, start, bytes, is_hole).is_ok();
            match (placed, is_hole) {
                (true, true) => Made::Hole,
                (true, false) => Made::Whole,
                (false, _) => {
                    self.move_block_back(region, joint, start);
                    Made::Nothing
                }
            }
        }
    }

    /// Returns true if nothing is in a block's place but zeros that the kernel made.
    fn has_only_zeros(&self, start: HostAddress) -> bool {
        (0..WINDOWS).all(|window| {
            let from = start.plus_pages(window * WINDOW_PAGES);
            find_pages(&self.pagemap, from, WINDOW_PAGES, Query::CONTENT)
                == Some(PageSet::default())
        })
    }

    /// Moves all pages of a block to a joint. Returns false if one stays, pinned or locked.
    ///
    /// # Safety
    /// As for [`replace_block`](Self::replace_block).
    unsafe fn move_block(&self, region: &Region, joint: HostAddress, start: HostAddress) -> bool {
        (0..WINDOWS).all(|window| {
            let (from, to) = windows(window, start, joint);
            let here = find_pages(&self.pagemap, from, WINDOW_PAGES, HERE);
            // SAFETY: the caller's contract.
            let moved = here.and_then(|here| unsafe { take(self, region, to, from, here) });
            moved.is_some() && moved == here
        })
    }

    /// Moves the pages of a block back that are in a joint.
    ///
    /// # Safety
    /// As for [`replace_block`](Self::replace_block), but that pages of the block may be in the joint.
    unsafe fn move_block_back(&self, region: &Region, joint: HostAddress, start: HostAddress) {
        for (from, to) in (0..WINDOWS).map(|window| windows(window, joint, start)) {
            let here = find_pages(&self.pagemap, from, WINDOW_PAGES, HERE);
            // Where the kernel does not say, each may be in either place.
            let pages = here.unwrap_or(PageSet::first(WINDOW_PAGES));
            // SAFETY: the caller's contract: a page that is not in the joint is where it was.
            let _copies_go_with_the_joint = unsafe { give_back(self, region, from, to, pages) };
        }
    }
}

/// Returns true if the machine and the VMM want huge pages for a block that has room for one.
pub(crate) fn may_be_huge(region: &Region, block: PageRange, policy: Policy) -> bool {
    let (advised, alike) = region.advised_run(block.first, block);
    alike.count == BLOCK_PAGES && policy.allows(advised.huge)
}

fn place(region: &Region, pages: PageRange) -> (HostAddress, usize) {
    (region.address(pages.first), pages.count as usize * PAGE_BYTES)
}

/// Returns where a window of a block begins in each of two places of the block.
fn windows(window: u32, one: HostAddress, other: HostAddress) -> (HostAddress, HostAddress) {
    (one.plus_pages(window * WINDOW_PAGES), other.plus_pages(window * WINDOW_PAGES))
}

/// Returns true if all of a range lies in one mapping.
fn is_one_mapping(start: HostAddress, bytes: usize) -> bool {
    let areas = maps::between(start, start.plus(bytes));
    areas.is_ok_and(|areas| areas.len() == 1 && areas[0].end.0 - areas[0].start.0 == bytes)
}

/// Makes a huge page of a block, by the kernel. Returns true if it is one.
fn is_collapsed(start: HostAddress, bytes: usize) -> bool {
    // SAFETY: a huge page has the content of the pages that it is made of.
    unsafe { mapping::advise(start, bytes, MADV_COLLAPSE) }.is_ok()
}

/// Moves a joint over a block, in one step; empty if it `is_hole`, of zeros alone. If it fails, the block is
/// absent, and what is not zero is in the joint.
///
/// # Safety
/// The caller holds the block and owns the joint.
unsafe fn put_block(
    joint: HostAddress,
    start: HostAddress,
    bytes: usize,
    is_hole: bool,
) -> io::Result<()> {
    if is_hole {
        // SAFETY: the joint is ours, and has the kernel's zeros alone.
        unsafe { mapping::advise(joint, bytes, libc::MADV_DONTNEED)? };
    }
    loop {
        // SAFETY: the caller's contract.
        match unsafe { mapping::remap_over(joint, start, bytes) } {
            // The kernel has unmapped the block, whose content is in the joint: there is nothing to do but to
            // try again.
            Err(_) if !mapping::is_mapped(start, bytes) => thread::sleep(Duration::from_millis(1)),
            result => return result,
        }
    }
}

/// A stock of blocks of address space, for one thread: what blocks are joined in. Those that follow one
/// another lie side by side, so that the kernel joins the mappings of blocks that do.
#[derive(Debug, Default)]
pub(crate) struct Joints {
    next: HostAddress,
    left: usize,
}

impl Joints {
    /// Takes an empty block, whose mapping is the caller's to move or to unmap.
    ///
    /// # Errors
    /// As mmap(2).
    fn take(&mut self) -> io::Result<HostAddress> {
        if self.left == 0 {
            let chunk = Mapping::anonymous_aligned(CHUNK_BLOCKS * HUGE_PAGE_BYTES)?;
            // Mappings are joined if they were one when it was first written.
            // SAFETY: the chunk is ours, and nothing is in it.
            unsafe {
                chunk.as_ptr().write_volatile(1);
                // It may have been given a huge page.
                mapping::advise(chunk.address(), HUGE_PAGE_BYTES, libc::MADV_DONTNEED)?;
            }
            (self.next, self.left) = (chunk.address(), CHUNK_BLOCKS);
            // Unmapped as far as it is not taken.
            std::mem::forget(chunk);
        }
        let taken = self.next;
        (self.next, self.left) = (taken.plus(HUGE_PAGE_BYTES), self.left - 1);
        Ok(taken)
    }
}

impl Drop for Joints {
    fn drop(&mut self) {
        if self.left > 0 {
            // If it cannot be cut out of its neighbours, it stays mapped for nothing, and empty.
            // SAFETY: what was not taken is ours, and nobody knows of it.
            let _ = unsafe { mapping::unmap(self.next, self.left * HUGE_PAGE_BYTES) };
        }
    }
}
