//! Writes and stability of a guest's pages, and when to ask for them.
//!
//! A period is [`begin_period`](Tracking::begin_period), then questions between
//! [`begin_asking`](Tracking::begin_asking) and [`end_asking`](Tracking::end_asking) whose answers are
//! [harvested](Tracking::harvest), [`end_period`](Tracking::end_period), then any number of
//! [`take_stable`](Tracking::take_stable).

use bindery_dirty::Reader;
use bindery_guest::{GuestError, Written};
use bindery_units::{PageIndex, PageRange};

use super::blocks::Blocks;
use crate::rhythm::Rhythm;
use crate::settings::{HARVEST_PAGES, HARVEST_RUNS};
use crate::stable::Stable;

/// Knowledge of a guest's writes.
#[derive(Default)]
pub(crate) struct Tracking {
    stable: Stable,
    rhythm: Rhythm,
    /// Pages that were written and not harvested yet, once there was memory to keep track of them.
    reader: Option<Reader>,
    /// The guest has to say which pages are there: all of them may have been written.
    needs_survey: bool,
    /// Stable pages that may be looked at in this period, and have not been.
    ready: u64,
}

impl Tracking {
    /// Begins with nothing known of any page of guest `number`.
    pub(crate) fn new(number: u32) -> Self {
        let rhythm = Rhythm::beginning_with(number);
        // Scans for an earlier daemon may have reported what is there, and a scan reports nothing twice.
        Self { rhythm, needs_survey: true, ..Self::default() }
    }

    /// Starts the next period.
    pub(crate) fn begin_period(&mut self) {
        self.stable.begin_period();
        self.rhythm.begin_period();
    }

    /// Settles which pages are stable. Returns how many were written lately, or wait.
    pub(crate) fn end_period(&mut self) -> u64 {
        let unsettled = self.stable.end_period();
        self.ready = unsettled.ready;
        unsettled.pages - unsettled.ready
    }

    /// Returns how many stable pages may be looked at in this period, and have not been.
    pub(crate) const fn ready(&self) -> u64 {
        self.ready
    }

    /// Holds stable pages back until the end of the next period that is observed.
    pub(crate) const fn hold_back(&mut self) {
        self.ready = 0;
    }

    /// Gives about `most` stable pages to `pages`. False once the guest's turn is over.
    pub(crate) fn take_stable(&mut self, most: usize, pages: &mut Vec<u32>) -> bool {
        let goes_on = self.stable.take(most, pages);
        // Pages may be among them that were put back before.
        self.ready = if goes_on { self.ready.saturating_sub(pages.len() as u64) } else { 0 };
        goes_on
    }

    /// Makes a survey due: any page may have been written, or be there.
    pub(crate) const fn require_survey(&mut self) {
        self.needs_survey = true;
    }

    /// Returns true if a survey is due.
    pub(crate) const fn needs_survey(&self) -> bool {
        self.needs_survey
    }

    /// Begins to ask what was written. Returns true if everything has to be asked for. A survey is due
    /// until [`end_asking`](Self::end_asking): if an answer is lost, so is what it would have said.
    pub(crate) const fn begin_asking(&mut self) -> bool {
        std::mem::replace(&mut self.needs_survey, true)
    }

    /// Takes in whether all answers came.
    pub(crate) const fn end_asking(&mut self, is_answered: bool) {
        self.needs_survey = !is_answered;
    }

    /// Returns the ranges of `managed` where it is time to ask.
    pub(crate) fn due(&self, managed: &[PageRange]) -> Vec<PageRange> {
        managed.iter().flat_map(|region| self.rhythm.due(*region)).collect()
    }

    /// Returns true if it is time to ask for any of `managed` in the next period.
    pub(crate) fn is_due_next(&self, managed: &[PageRange]) -> bool {
        managed.iter().any(|region| self.rhythm.is_due_next(*region))
    }

    /// Takes in that `range` is asked for.
    pub(crate) fn note_asked(&mut self, range: PageRange) {
        self.rhythm.note_asked(range);
    }

    /// Opens the guest's reader of written pages, once.
    ///
    /// # Errors
    /// [`GuestError::Daemon`] if there is no memory for it.
    pub(crate) fn join(&mut self, changes: &Written) -> Result<(), GuestError> {
        if self.reader.is_none() {
            let reader = changes.join().map_err(|error| GuestError::Daemon {
                doing: "keeping track of written pages",
                error: std::io::Error::other(error),
            })?;
            self.reader = Some(reader);
        }
        Ok(())
    }

    /// Takes in the pages of `managed` that were written, whoever asked for them, and passes them to
    /// `written`, some at a time. Nothing without [`join`](Self::join).
    pub(crate) fn harvest(
        &mut self,
        blocks: &mut Blocks,
        managed: &[PageRange],
        runs: &mut Vec<PageRange>,
        mut written: impl FnMut(PageRange),
    ) {
        let Self { stable, rhythm, reader, .. } = self;
        let Some(reader) = reader else { return };
        runs.resize(HARVEST_RUNS, PageRange::default());
        for region in managed {
            let harvested = reader.harvest_runs(*region, runs, |run| {
                for piece in run.pieces(HARVEST_PAGES) {
                    for (part, is_split) in blocks.take_written(piece) {
                        if is_split {
                            stable.note_written(part);
                            rhythm.note_written(part);
                        }
                        written(part);
                    }
                }
            });
            harvested.expect("regions lie within the pages that a guest may have");
        }
    }

    /// Takes in that a merged page was written: the next scan looks at its block.
    pub(crate) fn note_lost(&mut self, page: PageIndex) {
        self.rhythm.note_written(PageRange::new(page, 1));
    }

    /// Takes in that scans look at the pages of `block` from here on.
    pub(crate) fn note_split(&mut self, block: PageRange) {
        self.rhythm.note_written(block);
    }

    /// Returns how many pages of the block of `page` wait to be looked at, or will soon.
    pub(crate) fn waiting(&self, page: PageIndex) -> u32 {
        self.stable.waiting(page)
    }

    /// Returns whether `page` is known to have been written, and was not harvested yet.
    pub(crate) fn is_written(&self, page: PageIndex) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.is_marked(page.0))
    }

    /// Puts `page` back, to be taken in the next lap, or after `periods` more periods.
    pub(crate) fn put_back(&mut self, page: PageIndex, periods: u8) {
        self.stable.put_back(page, periods);
    }

    /// Puts `page` back for as many periods as it has breaks.
    pub(crate) fn put_back_later(&mut self, page: PageIndex) {
        self.stable.put_back_later(page);
    }

    /// Counts a break of `page`, or a merge that proved not worth the attempt.
    pub(crate) fn note_break(&mut self, page: PageIndex) {
        self.stable.note_break(page);
    }

    /// Forgets how often `page` broke: its content is gone.
    pub(crate) fn clear_breaks(&mut self, page: PageIndex) {
        self.stable.clear_breaks(page);
    }

    /// Never gives out `page` again.
    pub(crate) fn exclude(&mut self, page: PageIndex) {
        self.stable.exclude(page);
    }

    /// Forgets all about `range`: it is no longer managed.
    pub(crate) fn forget(&mut self, range: PageRange) {
        self.stable.forget(range);
    }

    /// Returns the memory held for `managed`, in bytes.
    pub(crate) fn memory_bytes(&self, managed: &[PageRange]) -> usize {
        self.stable.memory_bytes() + self.rhythm.memory_bytes() + reader_bytes(managed)
    }
}

/// Upper bound of a reader's tree of these pages, in bytes: a bit each, and its summaries.
fn reader_bytes(managed: &[PageRange]) -> usize {
    let pages: usize = managed.iter().map(|range| range.count as usize).sum();
    pages.div_ceil(8) * 65 / 64
}
