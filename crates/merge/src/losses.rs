//! Merged pages that a guest lost: written to, discarded, or brought back.

use bindery_guest::{GuestError, Lane};
use bindery_index::pin;
use bindery_units::{PageIndex, Slot};
use bindery_wire::lane::{LossCause, Lost};

use crate::links::Link;
use crate::visit::Visit;

/// Losses that any guest may report in one go, whatever it has.
const LOSSES_MIN: u64 = 1024;

impl Visit<'_> {
    /// Makes sure that what is linked as merged is merged.
    pub(crate) fn settle_losses(&mut self, lost: &mut Vec<Lost>) -> Result<(), GuestError> {
        if self.state.doubt.is_raised() {
            self.resynchronise()?;
        }
        self.take_losses(lost)
    }

    /// Takes in which merged pages the guest lost.
    pub(crate) fn take_losses(&mut self, lost: &mut Vec<Lost>) -> Result<(), GuestError> {
        // Each page is lost once before it is merged again, so an honest guest comes to an end.
        let mut left = LOSSES_MIN + 2 * self.state.pages_managed();
        loop {
            self.state.doubt.raise();
            let more = self.lane.lost(lost)?;
            self.state.doubt.lower();
            for loss in lost.iter() {
                self.note_loss(*loss);
            }
            left = left.saturating_sub(lost.len().max(1) as u64);
            match (more, left) {
                (false, _) => return Ok(()),
                (true, 0) => {
                    let what = "more pages lost than it has".to_owned();
                    return Err(GuestError::Nonsense { what });
                }
                (true, _) => {}
            }
        }
    }

    fn note_loss(&mut self, loss: Lost) {
        let page = PageIndex(loss.page);
        let is_own = loss.store == u32::from(self.guest.store().0);
        // Something else is linked if the region went and came back meanwhile, or if the guest
        // has reported the page since: then this is old news.
        let is_news = if is_own {
            self.guest.links.get(page) == Link::Merged(Slot(loss.slot))
        } else {
            self.state.foreign.remove(page)
        };
        if is_news {
            self.domain.unlink(self.guest, page, &pin());
            self.count_loss(page, loss.cause);
        }
    }

    fn count_loss(&mut self, page: PageIndex, cause: LossCause) {
        match cause {
            LossCause::Write => {
                self.state.counts.breaks += 1;
                self.state.mending.note_break();
                self.state.tracking.note_lost(page);
                if self.domain.backs_off {
                    self.state.tracking.note_break(page);
                }
            }
            LossCause::Discard => {
                self.state.counts.discards += 1;
                self.state.tracking.clear_breaks(page);
            }
            LossCause::Unmerge => {}
        }
    }
}
