//! Asking a guest what it wrote, where it is time to; or, where that is in doubt, what is there.

use bindery_guest::{ANSWER_PATIENCE, GuestError, Written};
use bindery_index::Handle;
use bindery_units::PageRange;

use crate::guest::State;
use crate::visit::Visit;
use crate::workers::Workers;

/// Room for what was written, used again for every guest.
#[derive(Default)]
pub(crate) struct Harvest {
    runs: Vec<PageRange>,
    handles: Vec<Handle>,
}

impl Visit<'_> {
    /// Takes in which pages were written. What others asked meanwhile is taken in as well.
    pub(crate) fn scan(
        &mut self,
        workers: &Workers,
        harvest: &mut Harvest,
    ) -> Result<(), GuestError> {
        let changes = self.guest.connection.written();
        self.state.tracking.join(changes)?;
        let needs_survey = self.state.tracking.begin_asking() || changes.is_in_doubt();
        let asked = if needs_survey {
            self.ask_for_all(changes)
        } else {
            self.ask_for_changes(changes, workers)
        };
        self.take_written(harvest);
        self.state.tracking.end_asking(asked.is_ok());
        asked
    }

    /// Asks what was written where it is time to.
    fn ask_for_changes(&mut self, changes: &Written, workers: &Workers) -> Result<(), GuestError> {
        for range in self.state.tracking.due(&self.state.managed) {
            if let Err(error) = self.guest.lateness.check("a scan") {
                // What is left is due in the next period as well: no answer was lost.
                self.guest.note(&error);
            }
            if !self.guest.is_well() || workers.are_stopping() {
                break;
            }
            self.note_asked(range);
            changes.collect(&mut self.lane, range)?;
            // A large guest has many ranges.
            self.note_gauges();
            workers.breathe();
        }
        Ok(())
    }

    /// Asks for all that is there, unless a request that nobody waits for any more is still to be done:
    /// it would take what is written now for what was.
    fn ask_for_all(&mut self, changes: &Written) -> Result<(), GuestError> {
        let doubt = changes.doubt();
        if !self.guest.connection.settle()? {
            return Err(GuestError::Stalled { request: "a survey", patience: ANSWER_PATIENCE });
        }
        let managed = self.state.managed.clone();
        managed.iter().for_each(|range| self.note_asked(*range));
        changes.survey(&mut self.lane, &managed, doubt)
    }

    fn note_asked(&mut self, range: PageRange) {
        self.state.counts.pages_scanned += u64::from(range.count);
        self.state.tracking.note_asked(range);
    }

    /// Takes in the written pages that are known of, where they are managed still.
    fn take_written(&mut self, harvest: &mut Harvest) {
        let Harvest { runs, handles } = harvest;
        let (domain, guest) = (self.domain, self.guest);
        let State { tracking, blocks, managed, .. } = &mut *self.state;
        tracking.harvest(blocks, managed, runs, |range| {
            domain.unlink_written(guest, range, handles);
        });
    }
}
