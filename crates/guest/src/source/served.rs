//! Account of a source that was served.

use std::time::Duration;

use bindery_units::PageRange;

/// The most runs that are recorded.
const TOUCHED_MAX: usize = 1 << 20;

/// Account of what a source has served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Pages sent because somebody waited for one of them, in order. What was pushed before it was touched is
    /// not among them.
    pub touched: Vec<PageRange>,
    /// Pages whose content is lost, in the order in which they were sent.
    pub damaged: Vec<PageRange>,
    /// Number of faults that were answered.
    pub faults: u64,
    /// Number of pages sent with content, in answer to faults or pushed.
    pub content_pages: u64,
    /// Number of zero pages.
    pub zero_pages: u64,
    /// Number of pages that were pushed.
    pub pushed_pages: u64,
    /// Longest time from a fault's arrival here to its answer.
    pub longest_fault: Duration,
}

impl Served {
    pub(super) fn note_touched(&mut self, run: PageRange) {
        if let Some(last) = self.touched.last_mut().filter(|last| last.end() == run.first) {
            last.count += run.count;
        } else if self.touched.len() < TOUCHED_MAX {
            self.touched.push(run);
        }
    }
}
