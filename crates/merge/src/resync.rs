//! Finding out what a guest really maps: after an answer that never came, and when a guest comes
//! from a daemon that ended.
//!
//! The guest reports its merged pages, and the links are made to agree. Losses that it reports
//! afterwards were either taken in by the report (then the page is linked to something else, or to
//! nothing, and they are ignored) or came after it. Pages merged with another store than the
//! domain's are *foreign*: they hold no reference of ours, and are digested at once, through their
//! mapping, so that they find a slot of ours and the old store can go.

use bindery_guest::{GuestError, Lane};
use bindery_index::pin;
use bindery_units::{PageIndex, PageRange, Slot};
use bindery_wire::lane::MergedSpan;

use crate::links::Link;
use crate::runs::Merge;
use crate::settings::REPORT_PAGES;
use crate::visit::Visit;

impl Visit<'_> {
    /// Asks the guest what is merged and makes the links agree with it.
    pub(crate) fn resynchronise(&mut self) -> Result<(), GuestError> {
        let mut spans = Vec::new();
        let managed = self.state.managed.clone();
        for piece in managed.iter().flat_map(|region| region.pieces(REPORT_PAGES)) {
            self.take_report(piece, &mut spans)?;
        }
        // What is mapped has references of its own now.
        for Merge { page, slot } in self.state.doubt.take_in_flight() {
            self.domain.give_back(slot);
            // Nobody knows when it was merged, and it may not have been read before.
            self.guest.connection.written().note_changed(page);
            if self.guest.links.get(page) == Link::None {
                self.state.tracking.put_back(page, 0);
            }
        }
        self.state.doubt.lower();
        self.state.foreign.begin_laps();
        Ok(())
    }

    /// Asks what is merged in `piece`, in as many answers as the guest gives.
    fn take_report(
        &mut self,
        piece: PageRange,
        spans: &mut Vec<MergedSpan>,
    ) -> Result<(), GuestError> {
        let mut rest = piece;
        while !rest.is_empty() {
            let resume = self.lane.report(rest, spans)?;
            let end = resume.unwrap_or(rest.end());
            let reported = PageRange::new(rest.first, end.0 - rest.first.0);
            self.agree(reported, spans)?;
            rest = PageRange::new(end, rest.end().0 - end.0);
        }
        Ok(())
    }

    /// Makes the links of `reported` agree with a report of all that is merged in it.
    fn agree(&mut self, reported: PageRange, spans: &[MergedSpan]) -> Result<(), GuestError> {
        let mut from = reported.first;
        for span in spans {
            let merged = PageRange::new(PageIndex(span.page), span.count);
            self.note_private(PageRange::new(from, merged.first.0 - from.0));
            for (offset, page) in merged.pages().enumerate() {
                if span.store == u32::from(self.guest.store().0) {
                    self.note_own(page, Slot(span.slot + offset as u32))?;
                } else {
                    self.note_foreign(page);
                }
            }
            from = merged.end();
        }
        self.note_private(PageRange::new(from, reported.end().0 - from.0));
        Ok(())
    }

    /// Takes in that nothing in `range` is merged.
    fn note_private(&mut self, range: PageRange) {
        let epoch = pin();
        for (page, link) in self.guest.links.linked(range) {
            if matches!(link, Link::Merged(_)) {
                self.domain.unlink(self.guest, page, &epoch);
            }
        }
        self.state.foreign.remove_range(range);
    }

    /// Takes in that `page` maps `slot` of the domain's store.
    fn note_own(&mut self, page: PageIndex, slot: Slot) -> Result<(), GuestError> {
        self.state.foreign.remove(page);
        if self.guest.links.get(page) == Link::Merged(slot) {
            return Ok(());
        }
        // Whatever a guest may map has a reference: of the page's link, or of a merge in flight.
        if !self.domain.slots.take_claimed(slot) {
            let what = format!("page {} merged with slot {}, which is free", page.0, slot.0);
            return Err(GuestError::Nonsense { what });
        }
        self.domain.unlink(self.guest, page, &pin());
        self.guest.link(page, Link::Merged(slot));
        Ok(())
    }

    /// Takes in that `page` maps a store of a daemon that ended.
    fn note_foreign(&mut self, page: PageIndex) {
        if matches!(self.guest.links.get(page), Link::Merged(_)) {
            self.domain.unlink(self.guest, page, &pin());
        }
        if self.state.foreign.insert(page) {
            self.state.tracking.put_back(page, 0);
        }
    }
}
