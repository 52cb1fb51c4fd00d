//! The first phase: what did each guest lose and write since the last period?
//!
//! Losses first, then writes: a page that broke is reported as lost, and as written by the scan
//! that follows or by the next one. In steady state these two requests are all that a guest is
//! asked, and not one of its pages is read.

use bindery_dirty::Reader;
use bindery_guest::{ANSWER_PATIENCE, GuestError, Lane, Written};
use bindery_index::{Handle, pin};
use bindery_units::{PageIndex, PageRange, Slot};
use bindery_wire::lane::{LossCause, Lost};

use crate::domain::Domain;
use crate::links::Link;
use crate::member::{Member, State};
use crate::patience::TimedLane;
use crate::resync::resynchronise;
use crate::settings::{HARVEST_PAGES, HARVEST_RUNS, MEND_BREAKS, MEND_BREAKS_MAX, MEND_PAGES};
use crate::workers::Workers;

/// Room for answers, used again for every guest.
#[derive(Default)]
pub(crate) struct Scratch {
    lost: Vec<Lost>,
    runs: Vec<PageRange>,
    handles: Vec<Handle>,
}

/// Takes in what a guest lost and wrote; leaves how many of its pages are stable in
/// [`State::ready`].
pub(crate) fn observe(domain: &Domain, member: &Member, workers: &Workers, scratch: &mut Scratch) {
    let mut state = member.state();
    state.ready = 0;
    state.transit_max_ns = 0;
    if workers.are_stopping() {
        return;
    }
    let Some(mut lane) = member.lane() else { return };
    if state.unmerged {
        // What could not be brought back may still be lost.
        let lost = &mut scratch.lost;
        if let Err(error) = settle_losses(domain, member, &mut lane, &mut state, lost) {
            member.note(&error);
        }
        return;
    }
    state.stable.begin_period();
    state.rhythm.begin_period();
    let result = look(domain, member, workers, &mut lane, &mut state, scratch);
    member.take_gauges(&mut lane, &mut state);
    let unsettled = state.stable.end_period();
    state.counts.pages_volatile = unsettled.pages - unsettled.ready;
    state.ready = unsettled.ready;
    match result {
        Ok(()) if state.ready == 0 => state.end_lap(),
        Ok(()) => {}
        Err(error) => member.note(&error),
    }
}

fn look(
    domain: &Domain,
    member: &Member,
    workers: &Workers,
    lane: &mut TimedLane<'_>,
    state: &mut State,
    scratch: &mut Scratch,
) -> Result<(), GuestError> {
    settle_losses(domain, member, lane, state, &mut scratch.lost)?;
    scan_all(domain, member, workers, lane, state, scratch)?;
    mend(lane, state)
}

/// Has mappings joined that breaks left apart, if they are many and mappings get short.
fn mend(lane: &mut TimedLane<'_>, state: &mut State) -> Result<(), GuestError> {
    let breaks = state.unmended_breaks;
    if breaks < state.mend_after || state.mappings < state.mappings_max / 2 {
        return Ok(());
    }
    let mut saved = 0;
    for region in state.managed.clone() {
        for piece in region.pieces(MEND_PAGES) {
            saved += u64::from(lane.mend(piece)?);
        }
    }
    state.unmended_breaks = 0;
    // Pages that broke alone, among merged ones, cannot be joined with anything.
    let futile = saved < breaks / 16;
    state.mend_after =
        if futile { (state.mend_after * 4).min(MEND_BREAKS_MAX) } else { MEND_BREAKS };
    Ok(())
}

/// Makes sure that what is linked as merged is merged.
pub(crate) fn settle_losses(
    domain: &Domain,
    member: &Member,
    lane: &mut TimedLane<'_>,
    state: &mut State,
    lost: &mut Vec<Lost>,
) -> Result<(), GuestError> {
    if state.doubt.merged {
        resynchronise(domain, member, lane, state)?;
    }
    take_losses(domain, member, lane, state, lost)
}

/// Takes in which merged pages a guest lost.
pub(crate) fn take_losses(
    domain: &Domain,
    member: &Member,
    lane: &mut TimedLane<'_>,
    state: &mut State,
    lost: &mut Vec<Lost>,
) -> Result<(), GuestError> {
    // Each page is lost once before it is merged again, so an honest guest comes to an end.
    let mut left = 1024 + 2 * state.managed.iter().map(|range| u64::from(range.count)).sum::<u64>();
    loop {
        state.doubt.merged = true;
        let more = lane.lost(lost)?;
        state.doubt.merged = false;
        for loss in lost.iter() {
            take_loss(domain, member, state, *loss);
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

fn take_loss(domain: &Domain, member: &Member, state: &mut State, loss: Lost) {
    let page = PageIndex(loss.page);
    if loss.store == u32::from(member.store().0) {
        // Something else is linked if the region went and came back meanwhile, or if the guest
        // has reported the page since: then this is old news.
        if member.links.get(page) != Link::Merged(Slot(loss.slot)) {
            return;
        }
        domain.unlink(member, page, &pin());
    } else {
        if !state.foreign.remove(&loss.page) {
            return;
        }
        domain.unlink(member, page, &pin());
    }
    match loss.cause {
        LossCause::Write => {
            state.counts.breaks += 1;
            state.unmended_breaks += 1;
            if domain.backs_off {
                state.stable.note_break(page);
            }
        }
        LossCause::Discard => {
            state.counts.discards += 1;
            state.stable.clear_breaks(page);
        }
        LossCause::Unmerge => {}
    }
}

/// Takes in which pages were written, where it is time to ask; or, where that is not known, which
/// are there. What others asked meanwhile is taken in as well.
fn scan_all(
    domain: &Domain,
    member: &Member,
    workers: &Workers,
    lane: &mut TimedLane<'_>,
    state: &mut State,
    scratch: &mut Scratch,
) -> Result<(), GuestError> {
    let changes = member.connection.written();
    let written = match state.written.take() {
        Some(written) => written,
        None => join(changes)?,
    };
    // Until it is done: if an answer is lost, so is what it would have said.
    let survey = std::mem::replace(&mut state.doubt.present, true) || changes.is_in_doubt();
    let asked = if survey {
        ask_for_all(member, changes, lane, state)
    } else {
        ask_for_changes(member, workers, lane, state)
    };
    take_written(domain, member, state, &written, scratch);
    state.written = Some(written);
    state.doubt.present = asked.is_err();
    asked
}

fn join(changes: &Written) -> Result<Reader, GuestError> {
    changes.join().map_err(|error| GuestError::Daemon {
        doing: "keeping track of written pages",
        error: std::io::Error::other(error),
    })
}

/// Asks what was written where it is time to.
fn ask_for_changes(
    member: &Member,
    workers: &Workers,
    lane: &mut TimedLane<'_>,
    state: &mut State,
) -> Result<(), GuestError> {
    let due = state.managed.iter().flat_map(|region| state.rhythm.due(*region));
    for range in due.collect::<Vec<_>>() {
        if let Err(error) = member.lateness.check("a scan") {
            // What is left is due in the next period as well: no answer was lost.
            member.note(&error);
        }
        if !member.is_well() || workers.are_stopping() {
            break;
        }
        note_asked(state, range);
        member.connection.written().collect(lane, range)?;
        // A large guest has many ranges.
        member.take_gauges(lane, state);
        workers.breathe();
    }
    Ok(())
}

/// Asks for all that is there, unless a request that nobody waits for any more is still to be done: it
/// would take what is written now for what was.
fn ask_for_all(
    member: &Member,
    changes: &Written,
    lane: &mut TimedLane<'_>,
    state: &mut State,
) -> Result<(), GuestError> {
    let doubt = changes.doubt();
    if !member.connection.settle()? {
        return Err(GuestError::Stalled { request: "a survey", patience: ANSWER_PATIENCE });
    }
    let managed = state.managed.clone();
    managed.iter().for_each(|range| note_asked(state, *range));
    changes.survey(lane, &managed, doubt)
}

fn note_asked(state: &mut State, range: PageRange) {
    state.counts.pages_scanned += u64::from(range.count);
    state.rhythm.note_asked(range);
}

/// Takes in the written pages that are known of, where they are managed still.
fn take_written(
    domain: &Domain,
    member: &Member,
    state: &mut State,
    written: &Reader,
    scratch: &mut Scratch,
) {
    let Scratch { runs, handles, .. } = scratch;
    runs.resize(HARVEST_RUNS, PageRange::default());
    for region in state.managed.clone() {
        let harvested = written.harvest_runs(region, runs, |run| {
            run.pieces(HARVEST_PAGES)
                .for_each(|piece| note_written(domain, member, state, piece, handles));
        });
        harvested.expect("regions lie within the pages that a guest may have");
    }
}

/// Takes in that pages were written: nothing that was known of them holds any more, except that
/// merged ones are lost only when their guest says so.
fn note_written(
    domain: &Domain,
    member: &Member,
    state: &mut State,
    range: PageRange,
    handles: &mut Vec<Handle>,
) {
    state.stable.note_written(range);
    state.rhythm.note_written(range);
    handles.clear();
    for (page, link) in member.links.linked(range) {
        match link {
            Link::Candidate(leaf) => {
                member.link(page, Link::None);
                handles.push(Handle::from_bits(leaf));
            }
            Link::Zero => {
                member.link(page, Link::None);
            }
            Link::Merged(_) | Link::None => {}
        }
    }
    if !handles.is_empty() {
        let deleted = domain.index.delete_many(handles, &pin());
        assert!(deleted == handles.len() as u64, "a candidate's leaf lives as long as its link");
    }
}
