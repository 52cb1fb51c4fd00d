//! State of a guest, in parts that a phase borrows.

use bindery_units::PageRange;

use crate::guest::blocks::Blocks;
use crate::guest::breaks::Breaks;
use crate::guest::doubt::Doubt;
use crate::guest::foreign::Foreign;
use crate::guest::mending::Mending;
use crate::guest::round::Round;
use crate::guest::tracking::Tracking;
use crate::guest::usage::Usage;
use crate::status::Counts;

/// A guest's state, changed by one worker at a time.
pub(crate) struct State {
    /// Managed pages, ascending.
    pub(crate) managed: Vec<PageRange>,
    pub(crate) blocks: Blocks,
    /// Pages that stand in the index for another content than theirs, until the next period.
    pub(crate) stale: Vec<u32>,
    pub(crate) tracking: Tracking,
    pub(crate) round: Round,
    pub(crate) doubt: Doubt,
    pub(crate) foreign: Foreign,
    pub(crate) mending: Mending,
    pub(crate) breaks: Breaks,
    pub(crate) usage: Usage,
    pub(crate) counts: Counts,
    /// Unmerged by an operator: left alone until `merge` is called.
    pub(crate) is_unmerged: bool,
}

impl State {
    /// Creates a state of guest `number`, without pages; `has_past` says that pages may be merged already.
    pub(crate) fn new(number: u32, has_past: bool) -> Self {
        Self {
            managed: Vec::new(),
            blocks: Blocks::default(),
            stale: Vec::new(),
            tracking: Tracking::new(number),
            round: Round::default(),
            doubt: Doubt::new(has_past),
            foreign: Foreign::default(),
            mending: Mending::default(),
            breaks: Breaks::default(),
            usage: Usage::default(),
            counts: Counts::default(),
            is_unmerged: false,
        }
    }

    /// Gives about `most` stable pages to `pages`, for a round. False once the guest's turn is
    /// over.
    pub(crate) fn take_stable(&mut self, most: usize, pages: &mut Vec<u32>) -> bool {
        self.round.drop_inferred();
        let goes_on = self.tracking.take_stable(most, pages);
        if !goes_on {
            self.foreign.end_lap();
        }
        goes_on
    }

    /// Returns how many pages are managed.
    pub(crate) fn pages_managed(&self) -> u64 {
        self.managed.iter().map(|range| u64::from(range.count)).sum()
    }

    /// Returns the memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.memory_bytes()
            + self.round.memory_bytes()
            + self.doubt.memory_bytes()
            + self.foreign.memory_bytes()
            + self.tracking.memory_bytes(&self.managed)
    }
}
