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

use crate::domain::Domain;
use crate::links::Link;
use crate::member::{Member, State};
use crate::patience::TimedLane;
use crate::runs::Merge;
use crate::settings::REPORT_PAGES;

/// Asks a guest what is merged and makes the links agree with it.
pub(crate) fn resynchronise(
    domain: &Domain,
    member: &Member,
    lane: &mut TimedLane<'_>,
    state: &mut State,
) -> Result<(), GuestError> {
    let mut spans = Vec::new();
    for region in state.managed.clone() {
        for piece in region.pieces(REPORT_PAGES) {
            let mut rest = piece;
            loop {
                let resume = lane.report(rest, &mut spans)?;
                let end = resume.unwrap_or(rest.end());
                let told = PageRange::new(rest.first, end.0 - rest.first.0);
                agree(domain, member, state, told, &spans)?;
                if resume.is_none() {
                    break;
                }
                rest = PageRange::new(end, rest.end().0 - end.0);
            }
        }
    }
    // What is mapped has references of its own now.
    for Merge { page, slot } in std::mem::take(&mut state.in_flight) {
        domain.give_back(slot);
        // Nobody knows when it was merged, and it may not have been read before.
        member.connection.written().note_changed(page);
        if member.links.get(page) == Link::None {
            state.stable.tell_again(page, 0);
        }
    }
    state.doubt.merged = false;
    state.laps = 0;
    Ok(())
}

/// Makes the links of `told` agree with a report of all that is merged in it.
fn agree(
    domain: &Domain,
    member: &Member,
    state: &mut State,
    told: PageRange,
    spans: &[MergedSpan],
) -> Result<(), GuestError> {
    let mut from = told.first;
    for span in spans {
        let merged = PageRange::new(PageIndex(span.page), span.count);
        private(domain, member, state, PageRange::new(from, merged.first.0 - from.0));
        for (offset, page) in merged.pages().enumerate() {
            if span.store == u32::from(member.store().0) {
                own(domain, member, state, page, Slot(span.slot + offset as u32))?;
            } else {
                foreign(domain, member, state, page);
            }
        }
        from = merged.end();
    }
    private(domain, member, state, PageRange::new(from, told.end().0 - from.0));
    Ok(())
}

/// Nothing in `range` is merged.
fn private(domain: &Domain, member: &Member, state: &mut State, range: PageRange) {
    let guard = pin();
    for (page, link) in member.links.linked(range) {
        if matches!(link, Link::Merged(_)) {
            domain.unlink(member, page, &guard);
        }
    }
    let foreign = state.foreign.range(range.first.0..range.end().0).copied();
    for page in foreign.collect::<Vec<_>>() {
        state.foreign.remove(&page);
    }
}

/// `page` maps `slot` of the domain's store.
fn own(
    domain: &Domain,
    member: &Member,
    state: &mut State,
    page: PageIndex,
    slot: Slot,
) -> Result<(), GuestError> {
    state.foreign.remove(&page.0);
    if member.links.get(page) == Link::Merged(slot) {
        return Ok(());
    }
    // Whatever a guest may map has a reference: of the page's link, or of a merge in flight.
    if !domain.slots.take_claimed(slot) {
        let what = format!("page {} merged with slot {}, which is free", page.0, slot.0);
        return Err(GuestError::Nonsense { what });
    }
    domain.unlink(member, page, &pin());
    member.link(page, Link::Merged(slot));
    Ok(())
}

/// `page` maps a store of a daemon that ended.
fn foreign(domain: &Domain, member: &Member, state: &mut State, page: PageIndex) {
    if matches!(member.links.get(page), Link::Merged(_)) {
        domain.unlink(member, page, &pin());
    }
    if state.foreign.insert(page.0) {
        state.stable.tell_again(page, 0);
    }
}
