//! Guests are asked to merge: zero pages before contents have room made for them in the store, which
//! can then use the memory that they gave back; pages that share contents afterwards.
//!
//! Each page that is asked for holds a reference of its slot, and keeps it only if the guest says
//! that it maps the slot now. An answer that does not come leaves them *in flight* until the guest
//! has reported what it maps (see `resync`).

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_guest::{GuestError, Lane, Segment};
use bindery_units::{PageIndex, Slot};
use bindery_wire::lane::{PageOutcome, RUN_PAGES_MAX, Run, RunTarget, SEGMENTS_MAX};

use crate::domain::Domain;
use crate::guest::{Guest, Inferred, State};
use crate::links::Link;
use crate::patience::TimedLane;
use crate::runs::{Merge, cut, cut_zeros, fit, mappings, merges_of};
use crate::settings::MERGE_PAGES;
use crate::stable::BACK_OFF_MAX;
use crate::store::{Store, StoreError};
use crate::workers::Workers;

/// Lanes that merge for one guest at a time, at most: changes of its mappings exclude each other, and each lane
/// waits for all the others.
const LANES_MAX: u32 = 4;

/// Pages that are asked for over one lane, at least, one request after the other: some 8 ms in long runs. Fewer
/// in tests, so that several lanes work for one guest. A run alone fits.
const PIECE_PAGES: u32 = if cfg!(test) { 2 * RUN_PAGES_MAX } else { 8192 };

/// Order for one guest: the runs that it is asked to merge in a round, which several lanes of it may share.
pub(crate) struct Order<'a> {
    domain: &'a Domain,
    guest: &'a Guest,
    runs: Vec<Run>,
    inferred: Inferred,
    /// The guest has said that it has no room for mappings.
    refused: AtomicBool,
}

impl<'a> Order<'a> {
    /// Orders the zero page for each page of a guest that a round has found to be zero.
    pub(crate) fn of_zeros(domain: &'a Domain, guest: &'a Guest) -> Self {
        let runs = cut_zeros(&guest.state().round.take_zeros());
        Self::new(domain, guest, runs, Inferred::default())
    }

    /// Orders what a round has planned for a guest, as far as there is room for mappings. What is left is put
    /// back.
    pub(crate) fn of_merges(domain: &'a Domain, guest: &'a Guest) -> Self {
        let mut state = guest.state();
        // Sorted when they were given their places.
        let runs = cut(&state.round.take_merges());
        let inferred = state.round.take_inferred();
        drop(state);
        let mut order = Self::new(domain, guest, runs, inferred);
        order.fit();
        order
    }

    fn new(domain: &'a Domain, guest: &'a Guest, runs: Vec<Run>, inferred: Inferred) -> Self {
        Self { domain, guest, runs, inferred, refused: AtomicBool::new(false) }
    }

    /// Puts back what there is no room for mappings for.
    fn fit(&mut self) {
        let mut guard = self.guest.state();
        let state = &mut *guard;
        let slot_at = |page| match self.guest.links.get(page) {
            Link::Merged(slot) => Some(slot),
            _ => None,
        };
        let room = state.usage.mappings_left();
        let rest = fit(&mut self.runs, room, |run| mappings(run, slot_at));
        state.usage.is_short_of_mappings = state.round.take_left_out() || !rest.is_empty();
        self.put_back(state, &rest, BACK_OFF_MAX);
    }

    /// Returns the runs in pieces, each for one lane.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let all: u32 = self.runs.iter().map(|run| run.count).sum();
        // A piece ends before the run that does not fit.
        let most = (all.div_ceil(LANES_MAX) + RUN_PAGES_MAX).max(PIECE_PAGES);
        let mut rest = &self.runs[..];
        std::iter::from_fn(move || {
            let mut pages = 0;
            let fits = rest.iter().take_while(|run| {
                pages += run.count;
                pages <= most
            });
            let (runs, behind) = rest.split_at(fits.count());
            rest = behind;
            (!runs.is_empty()).then_some(Piece { order: self, runs })
        })
    }
}

/// Some of the runs of an order.
pub(crate) struct Piece<'a> {
    order: &'a Order<'a>,
    runs: &'a [Run],
}

impl Piece<'_> {
    /// Asks the guest for all of it over a lane. What is not asked for, because the guest has no lane or fails,
    /// is put back.
    pub(crate) fn apply(&self, workers: &Workers, outcomes: &mut Vec<PageOutcome>) {
        let Order { domain, guest, .. } = self.order;
        if self.order.is_refused() {
            return self.order.put_back(&mut guest.state(), self.runs, BACK_OFF_MAX);
        }
        let Some(mut lane) = guest.lane() else {
            return self.order.put_back(&mut guest.state(), self.runs, 0);
        };
        let mut applying = Applying { order: self.order, domain, guest, workers, outcomes };
        if let Err(error) = applying.request(&mut lane, self.runs) {
            guest.note(&error);
            guest.note_gauges(&mut lane, &mut guest.state().usage);
        }
    }
}

struct Applying<'a> {
    order: &'a Order<'a>,
    domain: &'a Domain,
    guest: &'a Guest,
    workers: &'a Workers,
    outcomes: &'a mut Vec<PageOutcome>,
}

impl Applying<'_> {
    /// Sends runs, some at a time. Those that are not sent after an error are put back.
    fn request(&mut self, lane: &mut TimedLane<'_>, runs: &[Run]) -> Result<(), GuestError> {
        let mut rest = runs;
        while !rest.is_empty() {
            if self.order.is_refused() {
                self.put_back(rest, BACK_OFF_MAX);
                return Ok(());
            }
            if self.guest.connection.written().is_hushed() {
                // Its memory is about to be read as it is at one time.
                self.put_back(rest, 0);
                return Ok(());
            }
            // What was not asked for is in no doubt.
            self.guest.lateness.check("to merge").inspect_err(|_| self.put_back(rest, 0))?;
            let (some, later) = rest.split_at(batch(rest, &self.domain.store));
            let shared = match share(some, &self.domain.store) {
                Ok(shared) => shared,
                Err(error) => {
                    self.domain.note_store_error(&error);
                    self.put_back(rest, BACK_OFF_MAX);
                    return Ok(());
                }
            };
            let segments: Vec<Segment<'_>> =
                shared.iter().map(|(number, file)| (*number, file.as_fd())).collect();
            self.guest.state().doubt.begin_request();
            // The state is locked under it, and in this phase nobody waits for it with the state locked.
            let silence = self.guest.connection.written().silence();
            if let Err(error) = lane.merge(self.guest.store(), &segments, some, self.outcomes) {
                drop(silence);
                self.unanswered(some, &error);
                self.put_back(later, 0);
                return Err(error);
            }
            let mut state = self.guest.state();
            state.doubt.end_request();
            self.report_unread(&state, some);
            drop(silence);
            self.take_outcomes(&mut state, some);
            self.guest.note_gauges(lane, &mut state.usage);
            drop(state);
            self.workers.breathe();
            rest = later;
        }
        Ok(())
    }

    fn put_back(&self, runs: &[Run], periods: u8) {
        self.order.put_back(&mut self.guest.state(), runs, periods);
    }

    /// Takes in that a request has no answer. Unless the shim says that it has done nothing, it may have merged
    /// any of its pages.
    fn unanswered(&self, runs: &[Run], error: &GuestError) {
        let mut state = self.guest.state();
        if matches!(error, GuestError::Refused { .. } | GuestError::Failed { .. }) {
            state.doubt.end_request();
            return self.order.put_back(&mut state, runs, BACK_OFF_MAX);
        }
        let (zeros, slots): (Vec<Run>, Vec<Run>) =
            runs.iter().partition(|run| run.target == RunTarget::Zeros);
        state.doubt.give_request_up(slots.iter().flat_map(merges_of));
        self.order.put_back(&mut state, &zeros, 0);
    }

    fn take_outcomes(&self, state: &mut State, runs: &[Run]) {
        let merges = runs.iter().flat_map(|run| {
            let zero = run.target == RunTarget::Zeros;
            merges_of(run).map(move |merge| (merge, zero))
        });
        for ((merge, zero), outcome) in merges.zip(&*self.outcomes) {
            self.take_outcome(state, merge, zero, *outcome);
        }
    }

    /// Reports pages to watchers whose merge they may not have seen: pages written since they were
    /// digested, and inferred pages (see [`infer`](crate::examine)).
    fn report_unread(&self, state: &State, runs: &[Run]) {
        let written = self.guest.connection.written();
        if !written.is_watched() {
            return;
        }
        let is_unread = |page: &PageIndex| {
            self.order.inferred.contains(*page) || state.tracking.is_written(*page)
        };
        let pages = runs.iter().flat_map(merges_of).map(|merge| merge.page);
        pages.filter(is_unread).for_each(|page| written.note_changed(page));
    }

    fn take_outcome(&self, state: &mut State, merge: Merge, zero: bool, outcome: PageOutcome) {
        let Merge { page, slot } = merge;
        if matches!(outcome, PageOutcome::Merged | PageOutcome::Already) {
            state.foreign.remove(page);
            let link = if zero { Link::Zero } else { Link::Merged(slot) };
            match self.guest.link(page, link) {
                Link::None => {}
                // It has moved to another slot: see `compact`.
                Link::Merged(old) if !zero => self.domain.give_back(old),
                old => panic!("{page:?} was asked to merge while linked to {old:?}"),
            }
            return;
        }
        if !zero {
            self.domain.give_back(slot);
        }
        if outcome == PageOutcome::NoMappings {
            self.order.refuse(state);
        }
        if !self.order.stays_merged(page) {
            self.left_private(state, page, outcome);
        }
    }

    /// Puts back a page that was not merged, for as long as the outcome says.
    fn left_private(&self, state: &mut State, page: PageIndex, outcome: PageOutcome) {
        let State { tracking, counts, foreign, .. } = state;
        match outcome {
            PageOutcome::Different => {
                // Written since it was digested, or not like its neighbours: the next scan reports it,
                // like everything that was moved; it counts as a break, so that a page that never turns out as
                // digested is tried ever more rarely, and one that was inferred apart from its ends.
                counts.digest_different += 1;
                if self.domain.backs_off {
                    tracking.note_break(page);
                }
                // What another daemon's store holds is compared where it is, and no scan reports it.
                if foreign.contains(page) {
                    tracking.put_back_later(page);
                }
            }
            PageOutcome::Busy => {
                counts.pages_busy += 1;
                if self.domain.backs_off {
                    tracking.note_break(page);
                }
                tracking.put_back_later(page);
            }
            PageOutcome::NoMappings => tracking.put_back(page, BACK_OFF_MAX),
            PageOutcome::Never => {
                counts.pages_never += 1;
                tracking.exclude(page);
            }
            PageOutcome::Merged | PageOutcome::Already => unreachable!("a page that is merged"),
        }
    }
}

impl Order<'_> {
    /// Takes in that the guest has no room for mappings: nothing more is asked for.
    fn refuse(&self, state: &mut State) {
        // Relaxed, here and below: whoever sees it late asks in vain.
        self.refused.store(true, Ordering::Relaxed);
        state.usage.is_short_of_mappings = true;
    }

    fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns true if a page that was to move has another slot, which it keeps.
    fn stays_merged(&self, page: PageIndex) -> bool {
        matches!(self.guest.links.get(page), Link::Merged(_))
    }

    /// Puts pages back that were not asked for: they are looked at after `periods` more periods. Those
    /// that were only inferred come before, alone, to be digested: they may be zero, which takes no mapping.
    fn put_back(&self, state: &mut State, runs: &[Run], periods: u8) {
        for run in runs {
            for merge in merges_of(run) {
                if run.target == RunTarget::Slots {
                    self.domain.give_back(merge.slot);
                }
                if !self.stays_merged(merge.page) {
                    let periods = if self.inferred.contains(merge.page) { 0 } else { periods };
                    state.tracking.put_back(merge.page, periods);
                }
            }
        }
    }
}

/// Returns how many of `runs` go into one request: few enough that it is answered in time, that the
/// mappings it makes are counted before more are asked for, and that the segments fit.
fn batch(runs: &[Run], store: &Store) -> usize {
    let (mut pages, mut segments) = (0, BTreeSet::new());
    let fits = runs.iter().take_while(|run| {
        pages += run.count as usize;
        segments.extend(segments_of(run, store));
        pages <= MERGE_PAGES && segments.len() <= SEGMENTS_MAX
    });
    fits.count().max(1)
}

/// Returns the segments that `runs` touch, ascending.
fn share(runs: &[Run], store: &Store) -> Result<Vec<(u32, Arc<File>)>, StoreError> {
    let numbers: BTreeSet<u32> = runs.iter().flat_map(|run| segments_of(run, store)).collect();
    numbers.into_iter().map(|number| Ok((number, store.share(number)?))).collect()
}

fn segments_of(run: &Run, store: &Store) -> RangeInclusive<u32> {
    if run.target == RunTarget::Zeros {
        // None.
        return RangeInclusive::new(1, 0);
    }
    let last = Slot(run.slot + run.count - 1);
    store.segment_of(Slot(run.slot))..=store.segment_of(last)
}

const _: () = {
    use bindery_wire::lane::{MERGE_PAGES_MAX, MERGE_RUNS_MAX};
    // A run alone fits.
    assert!(RUN_PAGES_MAX as usize <= SEGMENTS_MAX);
    assert!(MERGE_PAGES <= MERGE_PAGES_MAX && MERGE_PAGES <= MERGE_RUNS_MAX);
    assert!(RUN_PAGES_MAX as usize <= MERGE_PAGES && RUN_PAGES_MAX <= PIECE_PAGES);
};
