//! Looking at a guest's blocks: which are huge pages, which change, and which are to be split or made whole.

use bindery_guest::{GuestError, Lane};
use bindery_index::{Handle, pin};
use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::{BLOCK_PAGES, BlockOutcome, BlockSample, BlockState, Lost};

use crate::guest::{Cause, Gained, State, Step};
use crate::links::Link;
use crate::settings::{COLLAPSED_BLOCKS, SAMPLED_BLOCKS};
use crate::tally::LinkCounts;
use crate::visit::Visit;
use crate::workers::Workers;

/// Room for answers, used again for every guest.
#[derive(Default)]
pub(crate) struct Samples {
    /// First pages of the blocks that are to be sampled in this period.
    pub(crate) due: Vec<u32>,
    samples: Vec<BlockSample>,
    outcomes: Vec<BlockOutcome>,
    handles: Vec<Handle>,
}

fn block_of(first: u32) -> PageRange {
    PageRange::new(PageIndex(first), BLOCK_PAGES)
}

impl Visit<'_> {
    /// Forgets what pages were said to hold that proved to hold something else, and has them looked at.
    pub(crate) fn forget_stale(&mut self) {
        let epoch = pin();
        for page in std::mem::take(&mut self.state.stale).into_iter().map(PageIndex) {
            if matches!(self.guest.links.get(page), Link::Candidate(_)) {
                self.domain.unlink(self.guest, page, &epoch);
                self.state.tracking.put_back(page, 0);
            }
        }
    }

    /// Samples the guest's blocks that are due, splits those of small pages and those that are worth
    /// it, and has those read that may be.
    pub(crate) fn look_at_blocks(
        &mut self,
        workers: &Workers,
        room: &mut Samples,
    ) -> Result<(), GuestError> {
        if !self.domain.looks {
            return Ok(());
        }
        let due = std::mem::take(&mut room.due);
        for some in due.chunks(SAMPLED_BLOCKS) {
            if workers.are_stopping() {
                return Ok(());
            }
            self.lane.sample(some, &mut room.samples)?;
            let (mut small, mut huge) = (Vec::new(), Vec::new());
            for (at, first) in some.iter().enumerate() {
                let sample = room.samples[at];
                match (self.take_sample(*first, sample, room), sample.state) {
                    (Step::Split, BlockState::Huge) => huge.push(*first),
                    (Step::Split, _) => small.push(*first),
                    _ => {}
                }
            }
            self.split(&small, room)?;
            // Nothing could be merged there.
            let huge = if self.state.usage.is_short_of_mappings { Vec::new() } else { huge };
            for block in self.split(&huge, room)? {
                self.state.counts.huge_splits += 1;
                self.state.blocks.note_split_as_read(block.first);
                self.have_read(block);
            }
            self.note_gauges();
            workers.breathe();
        }
        Ok(())
    }

    /// Counts the blocks that are huge pages, and those that could be.
    pub(crate) fn count_blocks(&mut self) {
        let State { blocks, counts, managed, .. } = &mut *self.state;
        (counts.huge_pages, counts.huge_pages_split) = blocks.count(managed);
    }

    fn take_sample(&mut self, first: u32, sample: BlockSample, room: &mut Samples) -> Step {
        let (block, policy) = (block_of(first), self.domain.huge);
        let gain = self.guest.gains.of(block.first);
        let is_watched = self.guest.connection.written().is_watched();
        if is_watched && sample.state == BlockState::Small && self.state.blocks.is_huge(block.first)
        {
            // Its writes are tracked for whoever watches, and it is a huge page again after that.
            self.state.blocks.note_kept(block.first);
            self.forget_block(block, room);
            return Step::Nothing;
        }
        let step = self.state.blocks.take_sample(block.first, &sample, &policy, gain);
        match step {
            Step::Nothing | Step::Split => {}
            Step::Forget => self.forget_block(block, room),
            Step::IsSplit => self.note_split(block),
            Step::Read => self.have_read(block),
        }
        step
    }

    /// Puts all pages of a block back, to be looked at in this period or when it is their turn.
    fn have_read(&mut self, block: PageRange) {
        for managed in self.state.managed.iter().map(|range| range.intersection(block)) {
            managed.pages().for_each(|page| self.state.tracking.put_back(page, 0));
        }
    }

    /// Splits blocks. Returns those that are split.
    fn split(&mut self, blocks: &[u32], room: &mut Samples) -> Result<Vec<PageRange>, GuestError> {
        if blocks.is_empty() {
            return Ok(Vec::new());
        }
        self.lane.split(blocks, &mut room.outcomes)?;
        let outcomes = blocks.iter().map(|first| block_of(*first)).zip(&room.outcomes);
        let (split, kept): (Vec<_>, Vec<_>) =
            outcomes.partition(|(_, outcome)| **outcome == BlockOutcome::Split);
        kept.iter().for_each(|(block, _)| self.state.blocks.note_kept(block.first));
        for (block, _) in &split {
            self.state.blocks.note_split(block.first);
            self.note_split(*block);
        }
        Ok(split.into_iter().map(|(block, _)| block).collect())
    }

    /// Takes in that scans look at the pages of a block from here on.
    fn note_split(&mut self, block: PageRange) {
        self.guest.gains.set_split(block.first, true);
        self.state.tracking.note_split(block);
    }

    /// Forgets what was known of the pages of a whole block.
    fn forget_block(&mut self, block: PageRange, room: &mut Samples) {
        self.domain.unlink_written(self.guest, block, &mut room.handles);
        self.guest.gains.set_split(block.first, false);
    }

    /// Makes blocks whole again that are split for little, or in which much is written, and holes of those that
    /// are zero. Their merged pages are lost, and taken in as such.
    pub(crate) fn make_whole(
        &mut self,
        workers: &Workers,
        room: &mut Samples,
        lost: &mut Vec<Lost>,
    ) -> Result<(), GuestError> {
        let (domain, tally, links) = (self.domain, &self.guest.tally, &self.guest.links);
        let State { blocks, tracking, managed, .. } = &mut *self.state;
        let gained = |block: PageRange| {
            let LinkCounts { merged, zero, .. } = tally.count(block);
            Gained { merged, zero, waiting: tracking.waiting(block.first) }
        };
        let alone = |block: PageRange| {
            let is_alone =
                |link| matches!(link, Link::Merged(slot) if domain.slots.references(slot) == 1);
            links.linked(block).filter(|(_, link)| is_alone(*link)).count() as u32
        };
        let mut wanted = blocks.end_period(managed, &domain.huge, gained, alone);
        // Writes are tracked page by page for whoever watches, and pages of another daemon's store are
        // looked at first.
        let waits = self.guest.connection.written().is_watched() || !self.state.foreign.is_empty();
        if waits || wanted.is_empty() {
            return Ok(());
        }
        wanted.truncate(COLLAPSED_BLOCKS);
        let blocks: Vec<u32> = wanted.iter().map(|(first, _)| *first).collect();
        // Should the answer be lost, samples say what became of them.
        blocks.iter().for_each(|first| {
            self.state.blocks.note_asked_whole(PageIndex(*first));
            self.guest.gains.set_split(PageIndex(*first), false);
        });
        let silence = self.guest.connection.written().silence();
        self.lane.collapse(&blocks, &mut room.outcomes).inspect_err(|_| {
            // Pages of those that stay split are known no more.
            self.state.tracking.require_survey();
        })?;
        drop(silence);
        for (at, (first, cause)) in wanted.iter().enumerate() {
            self.take_collapsed(block_of(*first), *cause, room.outcomes.get(at).copied(), room);
        }
        self.note_gauges();
        workers.breathe();
        self.take_losses(lost)
    }

    fn take_collapsed(
        &mut self,
        block: PageRange,
        cause: Cause,
        outcome: Option<BlockOutcome>,
        room: &mut Samples,
    ) {
        match outcome {
            Some(BlockOutcome::Whole | BlockOutcome::Huge) => {
                // What was zero rests no longer than other memory that is new.
                if cause != Cause::Empty {
                    self.state.blocks.note_whole(block.first);
                }
                self.domain.unlink_written(self.guest, block, &mut room.handles);
                match cause {
                    Cause::Thin => self.state.counts.collapses_thin += 1,
                    Cause::Hot => self.state.counts.collapses_hot += 1,
                    Cause::Empty => self.state.counts.collapses_empty += 1,
                }
            }
            Some(BlockOutcome::Unmanaged) => {}
            // There was no time for it, or it cannot be done now.
            None | Some(BlockOutcome::Stuck | BlockOutcome::Split) => {
                self.state.blocks.note_stuck(block.first);
                self.guest.gains.set_split(block.first, true);
            }
        }
    }
}
