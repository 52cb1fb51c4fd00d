//! Blocks of a guest: when each is sampled, read, split, and made whole again. Pure.
//!
//! ```text
//! unseen ──► whole ──► examining ──► examined ──► confirming ──► split
//!   │          ▲           │            │              │           │
//!   │          └───────────┴─ changed ──┴──── hot ─────┘           │
//!   │          └──────────────── thin, or hot for long ────────────┘
//!   └──► split: of small pages, in which nothing can be lost
//! ```
//!
//! A block that is whole is *sampled*, ever more rarely while the answer is the same. Once samples agree it
//! is *examined*: all its pages are digested where they are, and looked up. If enough of them are zero, or
//! known elsewhere, it is read once more a period later: pages that changed meanwhile count for nothing, and
//! where many did the block is hot, and kept.

use std::collections::BTreeMap;

use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::{BLOCK_PAGES, BlockSample, BlockState};

use crate::huge::{HugePolicy, HugeSettings};

/// Longest rests between two samples, as powers of two of periods: of what is absent, changes, and has not
/// enough to gain; and of what was made whole again.
const ABSENT_REST: u8 = 2;
const HOT_REST: u8 = 4;
const QUIET_REST: u8 = 6;
const COLLAPSED_REST: u8 = 6;

/// Short digests of a block's pages, 0 for one that is zero or absent.
type Fingerprints = Box<[u16; BLOCK_PAGES as usize]>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Unseen,
    Whole,
    Examining,
    Examined,
    Confirming,
    Split,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    phase: Phase,
    was_huge: bool,
    /// Samples in a row that were the same.
    quiet: u8,
    rest_log2: u8,
    /// Periods in a row for which it was split for little, or written much.
    thin: u8,
    hot: u8,
    /// Pages written in this period.
    written: u16,
    /// Period in which it is to be sampled.
    due: u32,
    signature: u64,
}

/// Consequence of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Its pages are small: it is to be split.
    Split,
    /// All its pages are to be read.
    Examine,
    /// What was known of its pages holds no more.
    Forget,
    /// It turned out to be split.
    IsSplit,
}

/// Reading of a block for which a batch of its pages is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// To find out what a split would gain.
    First,
    /// To find out what has changed since.
    Second,
    /// For nothing: it changed before its turn came.
    Void,
}

/// Cause for which a block is made whole again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Thin,
    Hot,
}

/// Blocks of one guest, by number.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    fingerprints: BTreeMap<u32, Fingerprints>,
    period: u32,
    /// Settings of the last period.
    settings: HugeSettings,
}

fn number_of(page: PageIndex) -> u32 {
    page.0 / BLOCK_PAGES
}

/// Returns the numbers of the blocks that a range has pages of.
fn numbers(range: PageRange) -> std::ops::Range<u32> {
    number_of(range.first)..range.end().0.div_ceil(BLOCK_PAGES)
}

impl Blocks {
    /// Starts the next period. No block rests any longer if the settings are others than before.
    pub(crate) fn begin_period(&mut self, policy: &HugePolicy) {
        self.period = self.period.wrapping_add(1);
        if self.settings != policy.settings {
            self.settings = policy.settings;
            for block in &mut self.blocks {
                (block.due, block.rest_log2) = (self.period, 0);
            }
        }
    }

    fn block(&mut self, number: u32) -> &mut Block {
        let at = number as usize;
        if at >= self.blocks.len() {
            self.blocks.resize(at + 1, Block::default());
        }
        &mut self.blocks[at]
    }

    fn get(&self, number: u32) -> Block {
        self.blocks.get(number as usize).copied().unwrap_or_default()
    }

    /// Returns the first pages of the blocks of `managed` that are to be sampled in this period. `gain` says
    /// what is known to be gained by splitting the block of a page.
    pub(crate) fn due(
        &self,
        managed: &[PageRange],
        policy: &HugePolicy,
        gain: impl Fn(PageIndex) -> u32,
    ) -> Vec<u32> {
        let wanted = policy.gain_pages();
        let is_due = |number: &u32| {
            let block = self.get(*number);
            let is_worth_it = || {
                block.phase == Phase::Examined
                    && wanted.is_some_and(|wanted| gain(first_of(*number)) >= wanted)
            };
            block.phase != Phase::Split
                && (block.due.wrapping_sub(self.period).cast_signed() <= 0 || is_worth_it())
        };
        let numbers = managed.iter().flat_map(|range| numbers(*range)).filter(is_due);
        numbers.map(|number| first_of(number).0).collect()
    }

    /// Takes in a sample of the block that begins with `first`, of which a split is known to gain `gain` pages.
    pub(crate) fn take_sample(
        &mut self,
        first: PageIndex,
        sample: &BlockSample,
        policy: &HugePolicy,
        gain: u32,
    ) -> Step {
        let (number, period) = (number_of(first), self.period);
        match sample.state {
            BlockState::Split => {
                self.note_split(first);
                Step::IsSplit
            }
            BlockState::Small => Step::Split,
            BlockState::Unmanaged | BlockState::Absent => {
                self.fingerprints.remove(&number);
                let block = self.block(number);
                let was_known = block.phase > Phase::Whole;
                block.phase = Phase::Unseen;
                block.rest(period, ABSENT_REST);
                if was_known { Step::Forget } else { Step::Nothing }
            }
            BlockState::Huge => self.take_huge(number, sample.signature, policy, gain),
        }
    }

    fn take_huge(&mut self, number: u32, signature: u64, policy: &HugePolicy, gain: u32) -> Step {
        let (period, wanted) = (self.period, policy.gain_pages());
        let has_read = self.fingerprints.contains_key(&number);
        let block = self.block(number);
        let is_new = block.phase == Phase::Unseen;
        let has_changed = block.signature != signature && policy.samples_first();
        let was_known = block.phase > Phase::Whole;
        block.was_huge = true;
        block.signature = signature;
        if is_new || has_changed || wanted.is_none() {
            block.phase = Phase::Whole;
            block.quiet = 0;
            let most = if wanted.is_none() { QUIET_REST } else { HOT_REST };
            if is_new {
                block.look_next(period)
            } else {
                block.rest(period, most)
            }
            self.fingerprints.remove(&number);
            let examines = is_new && wanted.is_some() && !policy.samples_first();
            return match (examines, was_known) {
                (true, _) => self.examine(number, Phase::Examining),
                (false, true) => Step::Forget,
                (false, false) => Step::Nothing,
            };
        }
        block.quiet = block.quiet.saturating_add(1);
        match block.phase {
            Phase::Whole => self.examine(number, Phase::Examining),
            Phase::Examined if wanted.is_some_and(|wanted| gain >= wanted) => {
                let phase = if has_read { Phase::Confirming } else { Phase::Examining };
                self.examine(number, phase)
            }
            Phase::Examined => {
                block.rest(period, QUIET_REST);
                self.fingerprints.remove(&number);
                Step::Nothing
            }
            // Its pages wait for their turn.
            _ => {
                block.look_next(period);
                Step::Nothing
            }
        }
    }

    fn examine(&mut self, number: u32, phase: Phase) -> Step {
        let period = self.period;
        let block = self.block(number);
        block.phase = phase;
        block.rest_log2 = 0;
        block.look_next(period);
        Step::Examine
    }

    /// Returns what the pages of the block that begins with `first` are read for.
    pub(crate) fn reading(&self, first: PageIndex) -> Reading {
        match self.get(number_of(first)).phase {
            Phase::Examining => Reading::First,
            Phase::Confirming => Reading::Second,
            _ => Reading::Void,
        }
    }

    /// Takes in the fingerprints of a block's pages, of its first reading.
    pub(crate) fn note_examined(&mut self, first: PageIndex, fingerprints: Fingerprints) {
        let number = number_of(first);
        self.block(number).phase = Phase::Examined;
        self.fingerprints.insert(number, fingerprints);
    }

    /// Returns the fingerprints of a block's first reading, for its second.
    pub(crate) fn take_fingerprints(&mut self, first: PageIndex) -> Option<Fingerprints> {
        self.fingerprints.remove(&number_of(first))
    }

    /// Takes in that a block is kept: it is hot, or had less to gain than it seemed, or cannot be split.
    pub(crate) fn note_kept(&mut self, first: PageIndex) {
        let period = self.period;
        let block = self.block(number_of(first));
        block.phase = Phase::Whole;
        block.quiet = 0;
        block.rest(period, HOT_REST);
    }

    /// Takes in that a block is split.
    pub(crate) fn note_split(&mut self, first: PageIndex) {
        let number = number_of(first);
        self.fingerprints.remove(&number);
        let block = self.block(number);
        (block.phase, block.thin, block.hot, block.written) = (Phase::Split, 0, 0, 0);
    }

    /// Takes in that pages of `range` were written. Returns those of split blocks.
    pub(crate) fn split_parts(&mut self, range: PageRange) -> Vec<PageRange> {
        let whole = |number| PageRange::new(first_of(number), BLOCK_PAGES);
        let mut parts: Vec<PageRange> = Vec::new();
        for part in numbers(range).map(|number| whole(number).intersection(range)) {
            match parts.last_mut() {
                _ if !self.note_written(part) => {}
                Some(last) if last.end() == part.first => last.count += part.count,
                _ => parts.push(part),
            }
        }
        parts
    }

    /// Takes in that pages of one block were written. Returns true if it is split. A whole one is new again.
    fn note_written(&mut self, range: PageRange) -> bool {
        let number = number_of(range.first);
        let block = self.block(number);
        if block.phase == Phase::Split {
            block.written = block.written.saturating_add(range.count as u16);
            return true;
        }
        if block.phase > Phase::Whole {
            (block.phase, block.quiet) = (Phase::Whole, 0);
            self.fingerprints.remove(&number);
        }
        false
    }

    /// Ends a period for the split blocks of `managed` that were huge. Returns the first pages of those that
    /// are to be whole again, and why. `merged` says how many pages of a block are merged, or zero.
    pub(crate) fn end_period(
        &mut self,
        managed: &[PageRange],
        policy: &HugePolicy,
        merged: impl Fn(PageRange) -> u32,
    ) -> Vec<(u32, Cause)> {
        let patience = policy.settings.patience.max(1);
        let mut wanted = Vec::new();
        for number in managed.iter().flat_map(|range| numbers(*range)) {
            let Some(block) = self.blocks.get_mut(number as usize) else { continue };
            if block.phase != Phase::Split || !block.was_huge {
                continue;
            }
            let is_hot = policy.is_hot(block.written.into());
            let is_thin = policy.is_thin(merged(PageRange::new(first_of(number), BLOCK_PAGES)));
            block.written = 0;
            block.hot = if is_hot { block.hot.saturating_add(1) } else { 0 };
            block.thin = if is_thin { block.thin.saturating_add(1) } else { 0 };
            let cause = if block.hot >= patience { Cause::Hot } else { Cause::Thin };
            if block.hot.max(block.thin) >= patience {
                wanted.push((first_of(number).0, cause));
            }
        }
        wanted
    }

    /// Takes in that a block was asked to be whole again: whether it is, the next sample says.
    pub(crate) fn note_asked_whole(&mut self, first: PageIndex) {
        let period = self.period;
        let block = self.block(number_of(first));
        (block.phase, block.quiet, block.thin, block.hot) = (Phase::Unseen, 0, 0, 0);
        block.look_next(period);
    }

    /// Takes in that a block is whole again: for long it is not looked at.
    pub(crate) fn note_whole(&mut self, first: PageIndex) {
        let period = self.period;
        let block = self.block(number_of(first));
        block.phase = Phase::Whole;
        block.rest_log2 = COLLAPSED_REST;
        block.rest(period, COLLAPSED_REST);
    }

    /// Forgets all blocks of `range`: it is no longer managed.
    pub(crate) fn forget(&mut self, range: PageRange) {
        for number in numbers(range) {
            self.fingerprints.remove(&number);
            if let Some(block) = self.blocks.get_mut(number as usize) {
                *block = Block::default();
            }
        }
    }

    /// Returns how many blocks of `managed` are huge pages, and how many that were are split.
    pub(crate) fn count(&self, managed: &[PageRange]) -> (u64, u64) {
        let blocks = || managed.iter().flat_map(|range| numbers(*range)).map(|at| self.get(at));
        let huge = blocks().filter(|block| !matches!(block.phase, Phase::Unseen | Phase::Split));
        let split = blocks().filter(|block| block.phase == Phase::Split && block.was_huge);
        (huge.count() as u64, split.count() as u64)
    }

    /// Returns the memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
            + self.fingerprints.len() * (BLOCK_PAGES as usize * size_of::<u16>() + 64)
    }
}

fn first_of(number: u32) -> PageIndex {
    PageIndex(number * BLOCK_PAGES)
}

impl Block {
    /// Has the block sampled after a rest, and the next one last twice as long, up to a limit.
    fn rest(&mut self, period: u32, most_log2: u8) {
        self.due = period.wrapping_add(1 << self.rest_log2.min(most_log2));
        self.rest_log2 = (self.rest_log2 + 1).min(most_log2);
    }

    fn look_next(&mut self, period: u32) {
        self.due = period.wrapping_add(1);
    }
}
