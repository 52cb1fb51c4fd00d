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

use bindery_guest::{GuestError, Lane, Segment};
use bindery_units::{PageIndex, Slot};
use bindery_wire::lane::{PageOutcome, Run, RunTarget, SEGMENTS_MAX};

use crate::domain::Domain;
use crate::guest::{Guest, Inferred, State};
use crate::links::Link;
use crate::patience::TimedLane;
use crate::runs::{Merge, cut, cut_zeros, fit, mappings, merges_of};
use crate::settings::MERGE_PAGES;
use crate::stable::BACK_OFF_MAX;
use crate::store::{Store, StoreError};
use crate::workers::Workers;

/// Gives one guest the zero page for each page that a round has found to be zero.
pub(crate) fn apply_zeros(
    domain: &Domain,
    guest: &Guest,
    workers: &Workers,
    outcomes: &mut Vec<PageOutcome>,
) {
    let mut guard = guest.state();
    let state = &mut *guard;
    let runs = cut_zeros(&state.round.take_zeros());
    let inferred = Inferred::default();
    Applying { domain, guest, workers, state, outcomes, inferred, refused: false }
        .ask(&runs, |work, lane| work.request(lane, &runs));
}

/// Merges what a round has planned for one guest.
pub(crate) fn apply(
    domain: &Domain,
    guest: &Guest,
    workers: &Workers,
    outcomes: &mut Vec<PageOutcome>,
) {
    let mut guard = guest.state();
    let state = &mut *guard;
    // Sorted when they were given their places.
    let runs = cut(&state.round.take_merges());
    let inferred = state.round.take_inferred();
    Applying { domain, guest, workers, state, outcomes, inferred, refused: false }
        .ask(&runs, |work, lane| work.request_what_fits(lane, &runs));
}

struct Applying<'a> {
    domain: &'a Domain,
    guest: &'a Guest,
    workers: &'a Workers,
    state: &'a mut State,
    outcomes: &'a mut Vec<PageOutcome>,
    inferred: Inferred,
    /// The guest has said that it has no room for mappings.
    refused: bool,
}

impl Applying<'_> {
    /// Asks over a lane of the guest for all of `runs`, which are put back if it has none.
    fn ask(
        mut self,
        runs: &[Run],
        request: impl FnOnce(&mut Self, &mut TimedLane<'_>) -> Result<(), GuestError>,
    ) {
        let Some(mut lane) = self.guest.lane() else { return self.put_back(runs, 0) };
        if let Err(error) = request(&mut self, &mut lane) {
            self.guest.note(&error);
        }
        self.guest.note_gauges(&mut lane, &mut self.state.usage);
    }

    /// Sends those of `runs` that there is room for mappings for.
    fn request_what_fits(
        &mut self,
        lane: &mut TimedLane<'_>,
        runs: &[Run],
    ) -> Result<(), GuestError> {
        let mut runs = runs.to_vec();
        // Answers in this period have said how many mappings there are.
        self.guest.note_gauges(lane, &mut self.state.usage);
        let room = self.state.usage.mappings_left();
        let slot_at = |page| match self.guest.links.get(page) {
            Link::Merged(slot) => Some(slot),
            _ => None,
        };
        let rest = fit(&mut runs, room, |run| mappings(run, slot_at));
        self.put_back(&rest, BACK_OFF_MAX);
        let result = self.request(lane, &runs);
        self.state.usage.is_short_of_mappings = self.refused || !rest.is_empty();
        result
    }

    /// Sends runs, some at a time. Those that are not sent after an error are put back.
    fn request(&mut self, lane: &mut TimedLane<'_>, runs: &[Run]) -> Result<(), GuestError> {
        let mut rest = runs;
        while !rest.is_empty() {
            // What was not asked for is in no doubt.
            self.guest.lateness.check("to merge").inspect_err(|_| self.put_back(rest, 0))?;
            let (some, later) = rest.split_at(batch(rest, &self.domain.grant.store));
            let shared = match share(some, &self.domain.grant.store) {
                Ok(shared) => shared,
                Err(error) => {
                    self.domain.note_store_error(&error);
                    self.put_back(rest, BACK_OFF_MAX);
                    return Ok(());
                }
            };
            let segments: Vec<Segment<'_>> =
                shared.iter().map(|(number, file)| (*number, file.as_fd())).collect();
            self.state.doubt.raise();
            let silence = self.guest.connection.written().silence();
            let store = self.guest.store();
            if let Err(error) = lane.merge(store, &segments, some, self.outcomes) {
                drop(silence);
                self.unanswered(some, &error);
                self.put_back(later, 0);
                return Err(error);
            }
            self.state.doubt.lower();
            self.report_unread(some);
            drop(silence);
            self.take_outcomes(some);
            self.guest.note_gauges(lane, &mut self.state.usage);
            self.workers.breathe();
            rest = later;
            if self.refused {
                self.put_back(rest, BACK_OFF_MAX);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes in that a request has no answer. Unless the shim says that it has done nothing, it may have merged
    /// any of its pages.
    fn unanswered(&mut self, runs: &[Run], error: &GuestError) {
        if matches!(error, GuestError::Refused { .. } | GuestError::Failed { .. }) {
            self.state.doubt.lower();
            return self.put_back(runs, BACK_OFF_MAX);
        }
        let (zeros, slots): (Vec<Run>, Vec<Run>) =
            runs.iter().partition(|run| run.target == RunTarget::Zeros);
        self.state.doubt.add_in_flight(slots.iter().flat_map(merges_of));
        self.put_back(&zeros, 0);
    }

    fn take_outcomes(&mut self, runs: &[Run]) {
        let outcomes = std::mem::take(self.outcomes);
        let merges = runs.iter().flat_map(|run| {
            let zero = run.target == RunTarget::Zeros;
            merges_of(run).map(move |merge| (merge, zero))
        });
        for ((merge, zero), outcome) in merges.zip(&outcomes) {
            self.take_outcome(merge, zero, *outcome);
        }
        *self.outcomes = outcomes;
    }

    /// Reports pages to watchers whose merge they may not have seen: pages written since they were
    /// digested, and inferred pages (see [`infer`](crate::examine)).
    fn report_unread(&self, runs: &[Run]) {
        let written = self.guest.connection.written();
        if !written.is_watched() {
            return;
        }
        let is_unread = |page: &PageIndex| {
            self.inferred.contains(*page) || self.state.tracking.is_written(*page)
        };
        let pages = runs.iter().flat_map(merges_of).map(|merge| merge.page);
        pages.filter(is_unread).for_each(|page| written.note_changed(page));
    }

    fn take_outcome(&mut self, merge: Merge, zero: bool, outcome: PageOutcome) {
        let Merge { page, slot } = merge;
        if matches!(outcome, PageOutcome::Merged | PageOutcome::Already) {
            self.state.foreign.remove(page);
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
        if self.stays_merged(page) {
            self.refused |= outcome == PageOutcome::NoMappings;
        } else {
            self.left_private(page, outcome);
        }
    }

    /// Returns true if a page that was to move has another slot, which it keeps.
    fn stays_merged(&self, page: PageIndex) -> bool {
        matches!(self.guest.links.get(page), Link::Merged(_))
    }

    /// Puts back a page that was not merged, for as long as the outcome says.
    fn left_private(&mut self, page: PageIndex, outcome: PageOutcome) {
        let State { tracking, counts, foreign, .. } = &mut *self.state;
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
            PageOutcome::NoMappings => {
                self.refused = true;
                tracking.put_back(page, BACK_OFF_MAX);
            }
            PageOutcome::Never => {
                counts.pages_never += 1;
                tracking.exclude(page);
            }
            PageOutcome::Merged | PageOutcome::Already => unreachable!("a page that is merged"),
        }
    }

    /// Puts pages back that were not asked for: they are looked at after `periods` more periods. Those
    /// that were only inferred come before, alone, to be digested: they may be zero, which takes no mapping.
    fn put_back(&mut self, runs: &[Run], periods: u8) {
        for run in runs {
            for merge in merges_of(run) {
                if run.target == RunTarget::Slots {
                    self.domain.give_back(merge.slot);
                }
                if !self.stays_merged(merge.page) {
                    let periods = if self.inferred.contains(merge.page) { 0 } else { periods };
                    self.state.tracking.put_back(merge.page, periods);
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
    use bindery_wire::lane::{MERGE_PAGES_MAX, MERGE_RUNS_MAX, RUN_PAGES_MAX};
    // A run alone fits.
    assert!(RUN_PAGES_MAX as usize <= SEGMENTS_MAX);
    assert!(MERGE_PAGES <= MERGE_PAGES_MAX && MERGE_PAGES <= MERGE_RUNS_MAX);
    assert!(RUN_PAGES_MAX as usize <= MERGE_PAGES);
};
