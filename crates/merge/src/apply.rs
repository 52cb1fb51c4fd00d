//! The fourth phase: guests are asked to merge.
//!
//! Each page that is asked for holds a reference of its slot, and keeps it only if the guest says
//! that it maps the slot now. An answer that does not come leaves them *in flight* until the guest
//! has reported what it maps (see `resync`).

use bindery_guest::{GuestError, LaneLease};
use bindery_space::wire::lane::{Run, outcome};
use bindery_units::PageIndex;

use crate::domain::Domain;
use crate::links::Link;
use crate::member::{Member, State};
use crate::runs::{Merge, cut, cut_zeros, fit, mappings, merges_of};
use crate::settings::MERGE_PAGES;
use crate::stable::BACK_OFF_MAX;
use crate::workers::Workers;

/// Merges what a round has planned for one guest.
pub(crate) fn apply(domain: &Domain, member: &Member, workers: &Workers, outcomes: &mut Vec<u8>) {
    let mut guard = member.state();
    let state = &mut *guard;
    let mut zeros = std::mem::take(&mut state.zeros);
    // Sorted when they were given their places.
    let merges = std::mem::take(&mut state.merges);
    zeros.sort_unstable();
    let mut work = Applying { domain, member, workers, state, outcomes, refused: false };
    let Some(mut lane) = member.lane() else {
        work.put_back(&cut_zeros(&zeros), 0);
        return work.put_back(&cut(&merges), 0);
    };
    if let Err(error) = work.merge_all(&mut lane, &zeros, &merges) {
        member.note(&error);
    }
    member.take_gauges(&mut lane, work.state);
}

struct Applying<'a> {
    domain: &'a Domain,
    member: &'a Member,
    workers: &'a Workers,
    state: &'a mut State,
    outcomes: &'a mut Vec<u8>,
    /// The guest has said that it has no room for mappings.
    refused: bool,
}

impl Applying<'_> {
    fn merge_all(
        &mut self,
        lane: &mut LaneLease<'_>,
        zeros: &[u32],
        merges: &[Merge],
    ) -> Result<(), GuestError> {
        // Zero pages first: they cost no mapping and give memory back to work with.
        let (zeros, mut runs) = (cut_zeros(zeros), cut(merges));
        if let Err(error) = self.request(lane, &zeros) {
            self.put_back(&runs, 0);
            return Err(error);
        }
        // The first answer of this period has said how many mappings there are.
        self.member.take_gauges(lane, self.state);
        let room = self.state.mappings_max.saturating_sub(self.state.mappings);
        let slot_at = |page| match self.member.links.get(page) {
            Link::Merged(slot) => Some(slot),
            _ => None,
        };
        let rest = fit(&mut runs, room, |run| mappings(run, slot_at));
        self.put_back(&rest, BACK_OFF_MAX);
        let result = self.request(lane, &runs);
        self.state.mappings_short = self.refused || !rest.is_empty();
        result
    }

    /// Sends runs, some at a time. Those that are not sent after an error are put back.
    fn request(&mut self, lane: &mut LaneLease<'_>, runs: &[Run]) -> Result<(), GuestError> {
        let mut rest = runs;
        while !rest.is_empty() {
            let (some, later) = rest.split_at(batch(rest));
            self.state.doubt.merged = true;
            if let Err(error) = lane.merge(self.member.store(), some, self.outcomes) {
                self.unanswered(some, &error);
                self.put_back(later, 0);
                return Err(error);
            }
            self.state.doubt.merged = false;
            self.take_outcomes(some);
            self.member.take_gauges(lane, self.state);
            self.workers.breathe();
            rest = later;
            if self.refused {
                self.put_back(rest, BACK_OFF_MAX);
                return Ok(());
            }
        }
        Ok(())
    }

    /// A request has no answer. Unless the shim says that it has done nothing, it may have merged
    /// any of its pages.
    fn unanswered(&mut self, runs: &[Run], error: &GuestError) {
        if matches!(error, GuestError::Refused { .. }) {
            self.state.doubt.merged = false;
            return self.put_back(runs, BACK_OFF_MAX);
        }
        let (zeros, slots): (Vec<Run>, Vec<Run>) = runs.iter().partition(|run| run.zero != 0);
        self.state.in_flight.extend(slots.iter().flat_map(merges_of));
        self.put_back(&zeros, 0);
    }

    fn take_outcomes(&mut self, runs: &[Run]) {
        let outcomes = std::mem::take(self.outcomes);
        let merges = runs.iter().flat_map(|run| {
            let zero = run.zero != 0;
            merges_of(run).map(move |merge| (merge, zero))
        });
        for ((merge, zero), outcome) in merges.zip(&outcomes) {
            self.take_outcome(merge, zero, *outcome);
        }
        *self.outcomes = outcomes;
    }

    fn take_outcome(&mut self, merge: Merge, zero: bool, outcome: u8) {
        let Merge { page, slot } = merge;
        if matches!(outcome, outcome::MERGED | outcome::ALREADY) {
            self.state.foreign.remove(&page.0);
            let link = if zero { Link::Zero } else { Link::Merged(slot) };
            let old = self.member.link(page, link);
            assert!(old == Link::None, "{page:?} was asked to merge while linked to {old:?}");
            return;
        }
        if !zero {
            self.domain.give_back(slot);
        }
        self.left_private(page, outcome);
    }

    /// A page was not merged: when is it to be looked at again?
    fn left_private(&mut self, page: PageIndex, outcome: u8) {
        let State { stable, counts, .. } = &mut *self.state;
        match outcome {
            outcome::DIFFERENT => {
                // Written since it was digested: the next scan tells, and it counts as a break,
                // so that a page that never turns out as digested is tried ever more rarely.
                counts.digest_different += 1;
                if self.domain.backs_off {
                    stable.note_break(page);
                }
            }
            outcome::BUSY => {
                counts.pages_busy += 1;
                if self.domain.backs_off {
                    stable.note_break(page);
                }
                stable.tell_after_back_off(page);
            }
            outcome::NO_MAPPINGS => {
                self.refused = true;
                stable.tell_again(page, BACK_OFF_MAX);
            }
            _ => {
                counts.pages_never += 1;
                stable.never_tell(page);
            }
        }
    }

    /// Pages that were not asked for are told again, after `periods` more periods.
    fn put_back(&mut self, runs: &[Run], periods: u8) {
        for run in runs {
            for merge in merges_of(run) {
                if run.zero == 0 {
                    self.domain.give_back(merge.slot);
                }
                self.state.stable.tell_again(merge.page, periods);
            }
        }
    }
}

/// How many of `runs` go into one request: few enough that it is answered in time, and that the
/// mappings it makes are counted before more are asked for.
fn batch(runs: &[Run]) -> usize {
    let mut pages = 0;
    let fits = runs.iter().take_while(|run| {
        pages += run.count as usize;
        pages <= MERGE_PAGES
    });
    fits.count().max(1)
}

const _: () = {
    use bindery_space::wire::lane::{MERGE_PAGES_MAX, MERGE_RUNS_MAX, RUN_PAGES_MAX};
    assert!(MERGE_PAGES <= MERGE_PAGES_MAX && MERGE_PAGES <= MERGE_RUNS_MAX);
    assert!(RUN_PAGES_MAX as usize <= MERGE_PAGES);
};
