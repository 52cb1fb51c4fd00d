//! Blocks of a guest: when each is sampled, read, split, and made whole again. Pure.
//!
//! ```text
//! unseen ──► first reading ──► second reading ──► examined ──► split
//!   │             ▲                  │                │          │
//!   │             │               changed             │          │
//!   │             └─── whole ◄───────┴────────────────┘          │
//!   │                    ▲                                       │
//!   │                    └───── thin, alone, or hot for long ────┘
//!   └──► split: of small pages, in which nothing can be lost
//! ```
//!
//! A block that is whole is *sampled*, ever more rarely while the answer is the same. Once samples agree all
//! its pages are *read*, twice, a period apart: where many changed in between the block is hot, and kept. The
//! others are looked up: if enough are zero, or known elsewhere, the block is split. One that was read long
//! ago, before others came to have what it has, is read again first.

use std::collections::BTreeMap;

use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::{BLOCK_PAGES, BlockSample, BlockState};

use crate::huge::{Gain, HugePolicy, HugeSettings};

/// Longest rests between two samples, as powers of two of periods: of what is absent, changes, proved hot by
/// being read, and has not enough to gain; and of what was made whole again.
const ABSENT_REST: u8 = 2;
const CHANGED_REST: u8 = 4;
const HOT_REST: u8 = 6;
const QUIET_REST: u8 = 6;
const COLLAPSED_REST: u8 = 6;

/// Periods after which pages of a block that was split may be merged.
const SETTLING: u32 = 4;

/// Periods between two counts of the merged pages of a split block that nobody else has; and how many counts in a row
/// have to find too little besides. Guests of one image come and go within minutes where jobs are run in them,
/// and what one leaves is what the next one shares.
const COUNT_EVERY: u32 = 128;
const ALONE_COUNTS: u8 = 2;

/// Periods for which the last reading of a block holds.
const READ_LATELY: u32 = 4;

/// Short digests of a block's pages, 0 for one that is zero or absent.
pub(crate) type Fingerprints = Box<[u16; BLOCK_PAGES as usize]>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Unseen,
    Whole,
    /// Block of which much changed between its readings.
    Hot,
    /// Block whose pages wait for their first reading.
    First,
    /// Block of which all pages were read once.
    Read,
    /// Block whose pages wait for their second reading.
    Second,
    /// Block that was read twice, and whose gain is known.
    Examined,
    Split,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    phase: Phase,
    may_be_huge: bool,
    rest_log2: u8,
    /// Periods in a row for which it was split for little.
    thin: u8,
    /// Counts in a row by which it is split for pages that nobody else has, and the period of the next count.
    alone: u8,
    count_due: Option<u32>,
    /// Periods in which it was written much, less those since in which it was not; of one that is whole, how
    /// many times in a row it proved hot.
    hot: u8,
    /// Times in a row that it could not be made whole.
    stuck: u8,
    /// Pages written in this period.
    written: u16,
    /// Period in which it is to be sampled; of a split one, from which on it is judged.
    due: u32,
    /// Period of its last reading.
    read_in: u32,
    /// Period in which it was split for what was read.
    split_in: Option<u32>,
    signature: u64,
}

/// Consequence of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Split the block: its pages are small, or enough is gained.
    Split,
    /// Read all pages of the block.
    Read,
    /// Forget what was known of the pages of the block.
    Forget,
    /// Take in that the block is split already.
    IsSplit,
}

/// Reading of a block for which a batch of its pages is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// To find out by the next what changes.
    First,
    /// To find out what a split would gain.
    Second,
    /// For nothing: it changed before its turn came.
    Void,
}

/// Cause for which a block is made whole again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Few pages of it are gained.
    Thin,
    Hot,
    /// All pages of the block are zero.
    Empty,
}

/// Pages of a split block that are merged, that are zero, and that may turn out to be either soon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gained {
    pub(crate) merged: u32,
    pub(crate) zero: u32,
    pub(crate) waiting: u32,
}

/// Blocks of one guest, by number.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    fingerprints: BTreeMap<u32, Fingerprints>,
    period: u32,
    /// Period in which split blocks were judged last.
    judged_in: u32,
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
    /// Starts the next period. No whole block rests any longer if the settings are others than before.
    pub(crate) fn begin_period(&mut self, policy: &HugePolicy) {
        self.period = self.period.wrapping_add(1);
        if self.settings != policy.settings {
            self.settings = policy.settings;
            for block in self.blocks.iter_mut().filter(|block| block.phase != Phase::Split) {
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
        gain: impl Fn(PageIndex) -> Gain,
    ) -> Vec<u32> {
        let is_due = |number: &u32| {
            let block = self.get(*number);
            let is_worth_it =
                || block.phase == Phase::Examined && policy.is_worth(gain(first_of(*number)));
            block.phase != Phase::Split
                && (block.due.wrapping_sub(self.period).cast_signed() <= 0 || is_worth_it())
        };
        let numbers = managed.iter().flat_map(|range| numbers(*range)).filter(is_due);
        numbers.map(|number| first_of(number).0).collect()
    }

    /// Returns true if a block of `managed` is split.
    pub(crate) fn has_split(&self, managed: &[PageRange]) -> bool {
        let mut numbers = managed.iter().flat_map(|range| numbers(*range));
        numbers.any(|number| self.get(number).phase == Phase::Split)
    }

    /// Takes in a sample of the block that begins with `first`, of which a split is known to gain `gain`.
    pub(crate) fn take_sample(
        &mut self,
        first: PageIndex,
        sample: &BlockSample,
        policy: &HugePolicy,
        gain: Gain,
    ) -> Step {
        let (number, period) = (number_of(first), self.period);
        match sample.state {
            BlockState::Split => {
                self.note_split(first);
                self.block(number).may_be_huge |= sample.may_be_huge != 0;
                Step::IsSplit
            }
            BlockState::Small => {
                self.block(number).may_be_huge |= sample.may_be_huge != 0;
                Step::Split
            }
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

    fn take_huge(&mut self, number: u32, signature: u64, policy: &HugePolicy, gain: Gain) -> Step {
        let period = self.period;
        let block = self.block(number);
        let is_new = block.phase == Phase::Unseen;
        let has_changed = block.signature != signature && policy.samples_first();
        let was_known = block.phase > Phase::Whole;
        block.may_be_huge = true;
        block.signature = signature;
        if !policy.splits() {
            block.phase = Phase::Whole;
            block.rest(period, QUIET_REST);
            return if was_known { self.forget_reading(number) } else { Step::Nothing };
        }
        if block.phase == Phase::Hot {
            block.phase = Phase::Whole;
            block.due = period.wrapping_add(1 << block.hot);
            return self.forget_reading(number);
        }
        if has_changed && !is_new {
            block.phase = Phase::Whole;
            block.rest(period, CHANGED_REST);
            return if was_known { self.forget_reading(number) } else { Step::Nothing };
        }
        match block.phase {
            Phase::Unseen | Phase::Whole => self.read(number, Phase::First),
            Phase::Read => self.read(number, Phase::Second),
            Phase::Examined if !policy.is_worth(gain) => {
                block.rest(period, QUIET_REST);
                Step::Nothing
            }
            Phase::Examined if period.wrapping_sub(block.read_in) > READ_LATELY => {
                self.read(number, Phase::First)
            }
            Phase::Examined => Step::Split,
            // Its pages wait for their turn.
            Phase::First | Phase::Second | Phase::Split | Phase::Hot => {
                block.rest(period, QUIET_REST);
                Step::Nothing
            }
        }
    }

    fn read(&mut self, number: u32, phase: Phase) -> Step {
        let period = self.period;
        let block = self.block(number);
        block.phase = phase;
        block.rest_log2 = 0;
        block.look_next(period);
        Step::Read
    }

    fn forget_reading(&mut self, number: u32) -> Step {
        self.fingerprints.remove(&number);
        Step::Forget
    }

    /// Returns true if the block that begins with `first` was a huge page when it was sampled last.
    pub(crate) fn is_huge(&self, first: PageIndex) -> bool {
        !matches!(self.get(number_of(first)).phase, Phase::Unseen | Phase::Split)
    }

    /// Returns what the pages of the block that begins with `first` are read for.
    pub(crate) fn reading(&self, first: PageIndex) -> Reading {
        match self.get(number_of(first)).phase {
            Phase::First => Reading::First,
            Phase::Second => Reading::Second,
            _ => Reading::Void,
        }
    }

    /// Takes in the fingerprints of a block's pages, of its first reading.
    pub(crate) fn note_first(&mut self, first: PageIndex, fingerprints: Fingerprints) {
        let (number, period) = (number_of(first), self.period);
        let block = self.block(number);
        (block.phase, block.read_in) = (Phase::Read, period);
        block.look_next(period);
        self.fingerprints.insert(number, fingerprints);
    }

    /// Returns the fingerprints of a block's first reading, for its second, and how many periods ago that was.
    pub(crate) fn take_fingerprints(&mut self, first: PageIndex) -> Option<(Fingerprints, u32)> {
        let number = number_of(first);
        let periods = self.period.wrapping_sub(self.get(number).read_in);
        Some((self.fingerprints.remove(&number)?, periods.max(1)))
    }

    /// Takes in that a block was read twice, and that its gain is known.
    pub(crate) fn note_second(&mut self, first: PageIndex) {
        let period = self.period;
        let block = self.block(number_of(first));
        (block.phase, block.read_in, block.hot) = (Phase::Examined, period, 0);
        block.look_next(period);
    }

    /// Takes in that a block is hot: nothing that is known of its pages holds any more, which the next sample
    /// says, and it is not read again for long.
    pub(crate) fn note_hot(&mut self, first: PageIndex) {
        let period = self.period;
        let block = self.block(number_of(first));
        (block.phase, block.hot) = (Phase::Hot, (block.hot + 1).min(HOT_REST));
        block.look_next(period);
    }

    /// Takes in that a block cannot be split now.
    pub(crate) fn note_kept(&mut self, first: PageIndex) {
        let period = self.period;
        let block = self.block(number_of(first));
        block.phase = Phase::Whole;
        block.rest(period, CHANGED_REST);
    }

    /// Takes in that a block is split.
    pub(crate) fn note_split(&mut self, first: PageIndex) {
        let number = number_of(first);
        self.fingerprints.remove(&number);
        let due = self.period.wrapping_add(SETTLING);
        let block = self.block(number);
        *block = Block {
            phase: Phase::Split,
            thin: 0,
            alone: 0,
            hot: 0,
            written: 0,
            count_due: None,
            due,
            split_in: None,
            ..*block
        };
    }

    /// Takes in that a block was split in this period for what was read of it.
    pub(crate) fn note_split_as_read(&mut self, first: PageIndex) {
        self.note_split(first);
        let period = self.period;
        self.block(number_of(first)).split_in = Some(period);
    }

    /// Takes in that pages of `range` were written. Returns those of which that is news, each part with
    /// whether its blocks are split: all pages of a block that was read and then split count as written at
    /// the first scan.
    pub(crate) fn take_written(&mut self, range: PageRange) -> Vec<(PageRange, bool)> {
        let whole = |number| PageRange::new(first_of(number), BLOCK_PAGES);
        let mut parts: Vec<(PageRange, bool)> = Vec::new();
        for part in numbers(range).map(|number| whole(number).intersection(range)) {
            let block = self.get(number_of(part.first));
            if block.phase == Phase::Split && block.split_in == Some(self.period) {
                continue;
            }
            let is_split = self.note_written(part);
            match parts.last_mut() {
                Some((last, was_split)) if last.end() == part.first && *was_split == is_split => {
                    last.count += part.count;
                }
                _ => parts.push((part, is_split)),
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
            block.phase = Phase::Whole;
            self.fingerprints.remove(&number);
        }
        false
    }

    /// Ends a period for the split blocks of `managed` that were huge. Returns the first pages of those that
    /// are to be whole again, and why. `gained` says what was gained in a block, and `alone` how many of its
    /// merged pages nobody else has, which takes longer and is asked rarely.
    pub(crate) fn end_period(
        &mut self,
        managed: &[PageRange],
        policy: &HugePolicy,
        gained: impl Fn(PageRange) -> Gained,
        alone: impl Fn(PageRange) -> u32,
    ) -> Vec<(u32, Cause)> {
        let mut wanted = Vec::new();
        // In between the guest was at rest.
        let periods = self.period.wrapping_sub(self.judged_in);
        self.judged_in = self.period;
        for number in managed.iter().flat_map(|range| numbers(*range)) {
            let Some(block) = self.blocks.get_mut(number as usize) else { continue };
            if block.phase != Phase::Split || !block.may_be_huge {
                continue;
            }
            let is_hot = policy.is_hot(block.written.into());
            block.written = 0;
            if block.due.wrapping_sub(self.period).cast_signed() > 0 {
                continue;
            }
            let pages = PageRange::new(first_of(number), BLOCK_PAGES);
            let gained = gained(pages);
            if gained.zero == BLOCK_PAGES {
                wanted.push((pages.first.0, Cause::Empty));
                continue;
            }
            let alone = block.begin_count(self.period, number).then(|| alone(pages));
            let cause = block.judge(policy, periods, is_hot, gained, alone);
            wanted.extend(cause.map(|cause| (pages.first.0, cause)));
        }
        wanted
    }

    /// Takes in that a block was asked to be whole again: whether it is, the next sample says.
    pub(crate) fn note_asked_whole(&mut self, first: PageIndex) {
        let period = self.period;
        let block = self.block(number_of(first));
        (block.phase, block.thin, block.alone, block.hot) = (Phase::Unseen, 0, 0, 0);
        block.look_next(period);
    }

    /// Takes in that a split block cannot be made whole now: the next try is after twice as long, and after two more
    /// counts if nobody else has its pages.
    pub(crate) fn note_stuck(&mut self, first: PageIndex) {
        let number = number_of(first);
        let stuck = self.get(number).stuck;
        self.note_split(first);
        let due = self.period.wrapping_add(SETTLING << stuck);
        let block = self.block(number);
        (block.due, block.stuck) = (due, (stuck + 1).min(QUIET_REST));
    }

    /// Takes in that a block is whole again: for long it is not looked at.
    pub(crate) fn note_whole(&mut self, first: PageIndex) {
        let period = self.period;
        let block = self.block(number_of(first));
        (block.phase, block.stuck) = (Phase::Whole, 0);
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

    /// Returns how many blocks of `managed` are huge pages, and how many that could be are split.
    pub(crate) fn count(&self, managed: &[PageRange]) -> (u64, u64) {
        let blocks = || managed.iter().flat_map(|range| numbers(*range)).map(|at| self.get(at));
        let huge = blocks().filter(|block| !matches!(block.phase, Phase::Unseen | Phase::Split));
        let split = blocks().filter(|block| block.phase == Phase::Split && block.may_be_huge);
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
    /// Returns true if it is time to count a split block's pages that nobody else has, and schedules the next count.
    /// The first one is at a time of its own number's, so that not all of a guest's blocks are counted at once.
    fn begin_count(&mut self, period: u32, number: u32) -> bool {
        if self.count_due.is_some_and(|due| due.wrapping_sub(period).cast_signed() > 0) {
            return false;
        }
        let wait = if self.count_due.is_some() { COUNT_EVERY } else { 1 + number % COUNT_EVERY };
        self.count_due.replace(period.wrapping_add(wait)).is_some()
    }

    /// Takes in what the last `periods` showed of a split block. Returns why it is to be whole again, if it is. `alone` is
    /// the number of its merged pages that nobody else has, where they were counted.
    fn judge(
        &mut self,
        policy: &HugePolicy,
        periods: u32,
        is_hot: bool,
        gained: Gained,
        alone: Option<u32>,
    ) -> Option<Cause> {
        let all = gained.merged + gained.zero + gained.waiting;
        let add = |count: u8, more: u32, is_so| {
            if is_so { count.saturating_add(more.min(255) as u8) } else { 0 }
        };
        // What it was in the periods in which nobody looked is known if it was so before.
        let thin_periods = if self.thin > 0 { periods } else { 1 };
        self.hot = if is_hot { self.hot.saturating_add(1) } else { self.hot.saturating_sub(1) };
        self.thin = add(self.thin, thin_periods, policy.is_thin(all));
        if let Some(alone) = alone {
            self.alone = add(self.alone, 1, policy.is_thin(all - alone));
        }
        let patience = policy.settings.patience.max(1);
        if self.hot >= patience {
            return Some(Cause::Hot);
        }
        // A count holds for the period that it is made in: others may come to have the pages.
        let is_alone = alone.is_some() && self.alone >= ALONE_COUNTS;
        (self.thin >= patience || is_alone).then_some(Cause::Thin)
    }

    /// Schedules the next sample after a rest, and makes the rest after that twice as long, up to a limit.
    fn rest(&mut self, period: u32, most_log2: u8) {
        self.due = period.wrapping_add(1 << self.rest_log2.min(most_log2));
        self.rest_log2 = (self.rest_log2 + 1).min(most_log2);
    }

    fn look_next(&mut self, period: u32) {
        self.due = period.wrapping_add(1);
    }
}
