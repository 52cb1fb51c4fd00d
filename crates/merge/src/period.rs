//! One period: every guest is observed, and what turned out stable goes from digest to merged in
//! rounds.
//!
//! ```text
//! admit     guests that came, went, or answered late          one thread
//! observe   losses and writes of each guest                   a task a guest
//! rehome    pages that nobody else has leave old stores      a task a guest
//! compact   slots leave segments that have few of them       one thread a domain, a task a guest
//! round:    examine  digests, index                           a task a batch of pages
//!           zeros    guests get the zero page                  a task a guest
//!           plan     homes, slots                              one thread a domain
//!           fill     contents into the store                  a task a fetch
//!           commit   leaves become canonical                  one thread a domain
//!           spread   contents of stretches get copies         one thread a domain
//!           apply    guests merge                             a task a guest
//!           sweep    slots that no guest maps are freed       one thread a domain
//! ```
//!
//! Phases are separated by joining the workers. That is what makes the rules simple: references are
//! given back only in `observe`, `compact`, `spread` and `apply`, slots are found only in `examine`, and are
//! allocated and freed only between phases.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bindery_guest::{GuestError, RegionChange};
use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::PageOutcome;

use crate::apply::{apply, apply_zeros};
use crate::classes::Classes;
use crate::compact::Moves;
use crate::domain::{Domain, Domains};
use crate::examine::{self, Batch};
use crate::fill::Plan;
use crate::guest::{Guest, Health, State};
use crate::lock::locked_mut;
use crate::meter::Meter;
use crate::observe::{self, observe};
use crate::pace::{Moment, Pacer};
use crate::patience::Lateness;
use crate::pressure::Shortage;
use crate::queue::Queue;
use crate::rehome::rehome_all;
use crate::settings::DIGEST_PAGES;
use crate::spread::spread;
use crate::stop::Stop;
use crate::workers::Workers;

/// How often a rest looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs one period. It ends when all stable pages were looked at, or at `deadline`, but not before the
/// first round. `publish` is called whenever figures have changed.
pub(crate) fn run_period(
    domains: &mut Domains,
    turn: &mut Turn,
    means: &mut Means<'_>,
    deadline: Instant,
    mut publish: impl FnMut(&Domains, &Pacer),
) {
    domains.values_mut().for_each(admit);
    observe_all(domains, means.workers);
    domains.values_mut().for_each(Domain::sweep);
    if !means.is_idle {
        rehome_all(domains, means.workers);
        compact_all(domains, means.workers);
    }
    let mut agenda = if means.is_idle { Agenda::default() } else { Agenda::of(domains, turn) };
    let now = means.now();
    means.pacer.begin_period(agenda.pages_left(domains), now);
    while !means.stop.is_set() && !means.rest(deadline) {
        let round = agenda.next_round(domains, means.pacer.round_pages());
        if round.is_empty() {
            let now = means.now();
            means.pacer.note_drained(now);
            break;
        }
        means.take_round(domains, &round, &agenda);
        publish(domains, means.pacer);
        // Not before the first round: observing alone may take a period.
        if Instant::now() >= deadline || means.is_awaited() {
            break;
        }
    }
    *turn = agenda.turn();
    domains.values_mut().for_each(end_period);
    domains.retain(|_, domain| !domain.is_empty());
    means.workers.lap();
    publish(domains, means.pacer);
}

/// What a period works with.
pub(crate) struct Means<'a> {
    pub(crate) workers: &'a Workers,
    pub(crate) pacer: &'a mut Pacer,
    pub(crate) meter: &'a Meter,
    pub(crate) stop: &'a Stop,
    /// Where others wait for the period to end.
    pub(crate) queue: &'a Queue,
    /// Whether merging waits.
    pub(crate) is_idle: bool,
}

impl Means<'_> {
    fn take_round(&mut self, domains: &mut Domains, round: &[Portion], agenda: &Agenda) {
        let workers = self.workers;
        let (start, rested) = (Instant::now(), workers.rested());
        run_round(domains, round, workers);
        let busy = start.elapsed().saturating_sub(workers.rested() - rested);
        let pages = round.iter().map(|portion| portion.pages.len() as u64).sum();
        let now = self.now();
        self.pacer.end_round(pages, busy, agenda.pages_left(domains), now);
    }

    fn now(&self) -> Moment {
        self.workers.lap();
        Moment { at: Instant::now(), cpu_us: self.meter.total_us() }
    }

    /// Rests as the pacer says, or until somebody waits for the period to end. True if the period is to
    /// end before the next round.
    fn rest(&self, deadline: Instant) -> bool {
        while let Some(rest) = self.pacer.rest_left(Instant::now()) {
            if Instant::now() + rest >= deadline || self.is_awaited() || self.stop.is_set() {
                return true;
            }
            self.stop.sleep(rest.min(LOOK_EVERY));
        }
        false
    }

    /// Whether somebody waits for the period to end.
    fn is_awaited(&self) -> bool {
        self.queue.is_awaited()
    }
}

fn end_period(domain: &mut Domain) {
    for guest in domain.guests.values() {
        guest.connection.rest();
        guest.end_period();
    }
    let breaks = domain.counts().breaks;
    let merged = domain.merged() + (breaks - domain.breaks_seen);
    let broken = if domain.backs_off { breaks - domain.breaks_seen } else { 0 };
    let shortage = locked_mut(&mut domain.shortage).take();
    let is_short = matches!(shortage, Some(Shortage::Memory | Shortage::Descriptors));
    if !is_short && domain.troubles.is_over(domain.writes()) {
        tracing::info!(domain = domain.grant.name(), "merging goes on");
    }
    domain.finish_segments();
    domain.pressure.end_period(broken, merged, shortage);
    domain.breaks_seen = breaks;
    let keys = domain.index.len();
    domain.reshape_for(keys);
}

/// Takes in what happened between periods: regions, late answers, closed connections, processes
/// that ended. Between phases only.
pub(crate) fn admit(domain: &mut Domain) {
    let numbers: Vec<u32> = domain.guests.keys().copied().collect();
    for number in numbers {
        let mut guest = domain.guests.remove(&number).expect("the number was just listed");
        if let Err(error) = admit_one(domain, &mut guest) {
            guest.note(&error);
        }
        if guest.connection.has_released() {
            domain.forget(guest);
        } else if guest.health() == Health::Lost {
            depart(domain, guest);
        } else {
            domain.guests.insert(number, guest);
        }
    }
    for guest in std::mem::take(&mut domain.departed) {
        release_returned(domain, &guest);
        // A guest that steps aside ends its lanes first, and may be taken for lost meanwhile.
        let is_released = guest.connection.has_released();
        let maps = guest.merged() > 0 || !guest.state().doubt.in_flight().is_empty();
        if maps && !is_released && !guest.connection.has_ended() {
            domain.departed.push(guest);
        } else {
            domain.forget(guest);
        }
    }
    domain.sweep();
}

fn admit_one(domain: &Domain, guest: &mut Guest) -> Result<(), GuestError> {
    guest.lateness = Lateness::none();
    match guest.health() {
        Health::Lost => return Ok(()),
        Health::Stalled if !guest.connection.settle()? => {}
        Health::Stalled | Health::Failing | Health::Well => guest.set_health(Health::Well),
    }
    // Shims never use a page index again: what was removed is gone for good.
    for change in guest.connection.changes()? {
        match change {
            RegionChange::Removed(range) => {
                domain.unlink_range(guest, range);
                guest.links.trim(range);
                let state = guest.state_mut();
                state.tracking.stable().forget(range);
                state.foreign.remove_range(range);
            }
            // A guest that was here before, or at a daemon that ended: its pages may be merged, or
            // watched since, and may be reported only after it was asked for the first time.
            RegionChange::Added(_) => {
                let has_past = guest.has_past;
                let state = guest.state_mut();
                state.tracking.doubt();
                if has_past {
                    state.doubt.raise();
                }
            }
        }
    }
    let managed: Vec<PageRange> =
        guest.connection.regions().iter().map(|region| region.pages).collect();
    if let Some(last) = managed.last() {
        guest.links.grow(last.end());
        guest.tally.grow(last.end());
    }
    guest.state_mut().managed = managed;
    Ok(())
}

/// The connection failed, or is not wanted any more. Its candidates can no longer be asked for; what
/// it maps, it may map on.
fn depart(domain: &mut Domain, guest: Guest) {
    guest.connection.close();
    let guard = bindery_index::pin();
    for (page, link) in guest.links.linked(guest.links.range()) {
        if matches!(link, crate::links::Link::Candidate(_)) {
            domain.unlink(&guest, page, &guard);
        }
    }
    domain.departed.push(guest);
}

/// Gives back what a departed guest's process has reported over a new connection to map no more:
/// pages that it has reported, and not as merged with a store that it had before. Pages that it
/// does not report stay as they are.
fn release_returned(domain: &Domain, departed: &Guest) {
    let old = departed.connection.identity();
    let returned = domain.guests.values().find(|guest| guest.is_of_process(old));
    let Some(returned) = returned.filter(|guest| !guest.state().doubt.is_raised()) else { return };
    let reported = returned.state();
    let is_released = |page: PageIndex| {
        reported.managed.iter().any(|range| range.contains(page))
            && !reported.foreign.contains(page)
    };
    let guard = bindery_index::pin();
    for (page, _) in departed.links.linked(departed.links.range()) {
        if is_released(page) {
            domain.unlink(departed, page, &guard);
        }
    }
    for merge in departed.state().doubt.extract_in_flight(is_released) {
        domain.give_back(merge.slot);
    }
}

fn observe_all(domains: &Domains, workers: &Workers) {
    let guests = domains.values().flat_map(|domain| {
        let guests = domain.guests.values().filter(|guest| guest.is_well());
        guests.map(move |guest| (domain, guest))
    });
    let tasks: Vec<(&Domain, &Guest)> = guests.collect();
    workers.each(&tasks, observe::Scratch::default, |scratch, (domain, guest)| {
        observe(domain, guest, workers, scratch);
    });
}

fn compact_all(domains: &mut Domains, workers: &Workers) {
    let moves: Vec<Option<Moves>> = domains.values_mut().map(Moves::plan).collect();
    if moves.iter().all(Option::is_none) {
        return;
    }
    ask_guests(domains, workers, |state| state.round.merges().len(), apply);
    for (domain, moves) in domains.values_mut().zip(moves) {
        if let Some(moves) = moves {
            moves.settle(domain);
        }
    }
}

/// The guest whose turn it is: its domain, and its number there.
pub(crate) type Turn = Option<(String, u32)>;

/// Guests that have stable pages to be looked at in this period, in order.
#[derive(Default)]
struct Agenda {
    left: VecDeque<(String, u32)>,
}

/// Some stable pages of one guest.
struct Portion {
    domain: String,
    guest: u32,
    pages: Vec<u32>,
}

impl Agenda {
    /// Begins with the guest whose turn it is: where a period is too short for all, each has its own.
    fn of(domains: &Domains, turn: &Turn) -> Self {
        let merging = domains.iter().filter(|(_, domain)| domain.pressure.merges());
        let mut left: VecDeque<(String, u32)> = merging
            .flat_map(|(name, domain)| {
                // What was not scanned in this period is not known to be stable.
                let ready = domain.guests.values().filter(|guest| guest.ready() > 0);
                ready.map(move |guest| (name.clone(), guest.number))
            })
            .collect();
        if let Some(turn) = turn {
            let at = left.partition_point(|guest| guest < turn);
            left.rotate_left(at % left.len().max(1));
        }
        Self { left }
    }

    /// Whose turn it is in the next period.
    fn turn(&self) -> Turn {
        self.left.front().cloned()
    }

    /// Stable pages that are still to be looked at.
    fn pages_left(&self, domains: &Domains) -> u64 {
        self.left.iter().map(|guest| well_guest(domains, guest).map_or(0, Guest::ready)).sum()
    }

    /// The next pages, about `most`: none if there are none left.
    fn next_round(&mut self, domains: &mut Domains, most: usize) -> Vec<Portion> {
        let (mut round, mut count) = (Vec::new(), 0);
        while count < most
            && let Some(guest) = self.left.front()
        {
            let mut pages = Vec::new();
            let goes_on = well_guest(domains, guest)
                .is_some_and(|guest| guest.state().begin_round(most - count, &mut pages));
            count += pages.len();
            if !pages.is_empty() {
                round.push(Portion { domain: guest.0.clone(), guest: guest.1, pages });
            }
            // Its turn is over, however much of it has become stable meanwhile.
            if !goes_on {
                self.left.pop_front();
            }
        }
        round
    }
}

/// A guest of the agenda, unless something went wrong with it or its domain in this period.
fn well_guest<'a>(domains: &'a Domains, (name, number): &(String, u32)) -> Option<&'a Guest> {
    let domain = domains.get(name).filter(|domain| domain.shortage().is_none())?;
    domain.guests.get(number).filter(|guest| guest.is_well())
}

fn run_round(domains: &mut Domains, round: &[Portion], workers: &Workers) {
    for (name, domain) in domains.iter_mut() {
        let portions = round.iter().filter(|portion| portion.domain == *name);
        let pages: usize = portions.map(|portion| portion.pages.len()).sum();
        domain.classes = Classes::of_round(pages);
        // Half of what is new is a guess: what proves too wide is narrowed after the period.
        let keys = (domain.index.len() + pages as u64 / 2).max(1);
        if keys.ilog2() > domain.index.root_bits() {
            domain.reshape_for(keys);
        }
    }
    let batches: Vec<Batch<'_>> =
        round.iter().flat_map(|portion| batches(domains, portion)).collect();
    workers.each(&batches, examine::Scratch::default, |scratch, batch| {
        match batch.domain.shortage() {
            None => batch.examine(scratch),
            Some(_) => batch.postpone(),
        }
    });
    drop(batches);
    ask_guests(domains, workers, |state| state.round.zeros().len(), apply_zeros);
    for domain in domains.values_mut() {
        let mut plan = Plan::make(domain);
        plan.fill(domain, workers);
        plan.commit(domain);
        spread(domain);
    }
    // A guest that was short of mappings may not be any more.
    let asked =
        |state: &State| state.round.merges().len() + usize::from(state.usage.is_short_of_mappings);
    ask_guests(domains, workers, asked, apply);
    domains.values_mut().for_each(Domain::sweep);
}

/// Does `apply` for every guest that a round has pages for, each in a task: those with the most of them
/// first, so that workers end together.
fn ask_guests(
    domains: &Domains,
    workers: &Workers,
    pages: impl Fn(&State) -> usize,
    apply: impl Fn(&Domain, &Guest, &Workers, &mut Vec<PageOutcome>) + Sync,
) {
    let guests = domains
        .values()
        .flat_map(|domain| domain.guests.values().map(move |guest| (domain, guest)));
    let counted = guests.map(|(domain, guest)| (pages(&guest.state()), domain, guest));
    let mut tasks: Vec<_> = counted.filter(|(pages, ..)| *pages > 0).collect();
    tasks.sort_by_key(|(pages, ..)| Reverse(*pages));
    workers.each(&tasks, Vec::new, |outcomes, (_, domain, guest)| {
        apply(domain, guest, workers, outcomes);
    });
}

fn batches<'a>(domains: &'a Domains, portion: &'a Portion) -> impl Iterator<Item = Batch<'a>> {
    let domain = &domains[&portion.domain];
    let guest = &domain.guests[&portion.guest];
    portion.pages.chunks(DIGEST_PAGES).map(move |pages| Batch { domain, guest, pages })
}
