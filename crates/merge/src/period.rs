//! One period: every guest is observed, and what turned out stable goes from digest to merged in
//! rounds.
//!
//! ```text
//! admit     guests that came, went, or answered late          one thread
//! observe   losses and writes of each guest                   a task a guest
//! rehome    pages that nobody else has leave old stores      a task a guest
//! compact   slots leave segments that have few of them       one thread a domain; then as cut and apply
//! round:    gather   stable pages of several guests            one thread
//!           examine  digests, index; whole blocks are         a task a batch of pages
//!                    appraised, and split
//!           zeros    guests get the zero page                  a task a piece of a guest's pages
//!           plan     homes, room for mappings, slots           one thread a domain
//!           fill     contents into the store                  a task a fetch
//!           commit   leaves become canonical                  one thread a domain
//!           spread   contents of stretches get copies         one thread a domain
//!           cut      merges into runs, as mappings allow       a task a guest
//!           apply    guests merge                             a task a piece of a guest's pages
//!           sweep    slots that no guest maps are freed       one thread a domain
//! ```
//!
//! Phases are separated by joining the workers. That is what makes the rules simple: references are
//! given back only in `observe`, `compact`, `spread`, `cut` and `apply`, slots are found only in `examine`, and are
//! allocated and freed only between phases.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bindery_wire::lane::BLOCK_PAGES;

use crate::admit::admit;
use crate::agenda::{Agenda, Portion, Turn};
use crate::apply::Order;
use crate::appraise::Appraisal;
use crate::classes::Classes;
use crate::compact::Moves;
use crate::domain::{Domain, Domains};
use crate::examine::{self, Batch};
use crate::fill::Plan;
use crate::guest::{Guest, State};
use crate::huge::HugePolicy;
use crate::lock::{locked, locked_mut};
use crate::meter::Meter;
use crate::observe::{self, observe};
use crate::pace::{Moment, Pacer};
use crate::phases::PhaseName;
use crate::pressure::Shortage;
use crate::queue::Queue;
use crate::rehome::rehome_all;
use crate::settings::DIGEST_PAGES;
use crate::spread::spread;
use crate::stop::Stop;
use crate::workers::Workers;

/// Pause between two looks whether a rest is to end.
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
    let workers = means.workers;
    for domain in domains.values_mut() {
        domain.huge = means.huge;
        domain.looks = !means.is_idle && domain.pressure.merges();
        workers.alone(PhaseName::Admit, || admit(domain));
    }
    observe_all(domains, workers);
    sweep_all(domains, workers);
    if !means.is_idle {
        rehome_all(domains, workers);
        compact_all(domains, workers);
    }
    let mut agenda = if means.is_idle { Agenda::default() } else { Agenda::of(domains, turn) };
    let now = means.now();
    means.pacer.begin_period(agenda.pages_left(domains), now);
    while !means.stop.is_set() && !means.rest(deadline) {
        let most = means.pacer.round_pages();
        let round = workers.alone(PhaseName::Gather, || agenda.next_round(domains, most));
        if round.is_empty() {
            let now = means.now();
            means.pacer.note_drained(now);
            break;
        }
        means.take_round(domains, &round, &agenda);
        workers.alone(PhaseName::Publish, || publish(domains, means.pacer));
        // Not before the first round: observing alone may take a period.
        if Instant::now() >= deadline || means.is_awaited() {
            break;
        }
    }
    *turn = agenda.turn();
    domains.values_mut().for_each(end_period);
    domains.retain(|_, domain| !domain.is_empty());
    workers.lap();
    workers.alone(PhaseName::Publish, || publish(domains, means.pacer));
}

/// Means of a period.
pub(crate) struct Means<'a> {
    pub(crate) workers: &'a Workers,
    pub(crate) pacer: &'a mut Pacer,
    pub(crate) meter: &'a Meter,
    pub(crate) stop: &'a Stop,
    /// Queue of those who wait for the period to end.
    pub(crate) queue: &'a Queue,
    /// True while merging waits.
    pub(crate) is_idle: bool,
    pub(crate) huge: HugePolicy,
}

impl Means<'_> {
    fn take_round(&mut self, domains: &mut Domains, round: &[Portion], agenda: &Agenda) {
        let workers = self.workers;
        let (start, rested) = (Instant::now(), workers.rested());
        run_round(domains, round, workers);
        let busy = start.elapsed().saturating_sub(workers.rested() - rested);
        let pages = round.iter().map(|portion| portion.len() as u64).sum();
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

    /// Returns true if somebody waits for the period to end.
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
    let lately: u64 = domain.guests.values().map(|guest| guest.state().breaks.take()).sum();
    let broken = if domain.backs_off { lately } else { 0 };
    let shortage = locked_mut(&mut domain.shortage).take();
    let is_short = matches!(shortage, Some(Shortage::Memory | Shortage::Descriptors));
    if !is_short && domain.troubles.is_over(domain.writes()) {
        tracing::info!(domain = %domain.id, "merging goes on");
    }
    domain.finish_segments();
    domain.pressure.end_period(broken, merged, shortage);
    domain.breaks_seen = breaks;
    let keys = domain.index.len();
    domain.reshape_for(keys);
}

fn observe_all(domains: &Domains, workers: &Workers) {
    let guests = domains.values().flat_map(|domain| {
        let guests = domain.guests.values().filter(|guest| guest.is_well());
        guests.map(move |guest| (domain, guest))
    });
    let tasks: Vec<(&Domain, &Guest)> = guests.collect();
    workers.each(
        PhaseName::Observe,
        &tasks,
        observe::Scratch::default,
        |scratch, (domain, guest)| {
            observe(domain, guest, workers, scratch);
        },
    );
}

fn compact_all(domains: &mut Domains, workers: &Workers) {
    let plan = || domains.values_mut().map(Moves::plan).collect();
    let moves: Vec<Option<Moves>> = workers.alone(PhaseName::Compact, plan);
    if moves.iter().all(Option::is_none) {
        return;
    }
    ask_guests(
        domains,
        (workers, PhaseName::Compact),
        |state| state.round.merges().len(),
        Order::of_merges,
    );
    for (domain, moves) in domains.values_mut().zip(moves) {
        if let Some(moves) = moves {
            workers.alone(PhaseName::Compact, || moves.settle(domain));
        }
    }
}

fn run_round(domains: &mut Domains, round: &[Portion], workers: &Workers) {
    for (id, domain) in domains.iter_mut() {
        let portions = round.iter().filter(|portion| portion.domain == *id);
        let pages: usize = portions.map(Portion::len).sum();
        domain.classes = Classes::of_round(pages);
        // Half of what is new is a guess: what proves too wide is narrowed after the period.
        let keys = (domain.index.len() + pages as u64 / 2).max(1);
        if keys.ilog2() > domain.index.root_bits() {
            domain.reshape_for(keys);
        }
    }
    let tasks: Vec<ExamineTask<'_>> =
        round.iter().flat_map(|portion| examine_tasks(domains, portion)).collect();
    workers.each(PhaseName::Examine, &tasks, examine::Scratch::default, |scratch, task| {
        task.examine(scratch)
    });
    drop(tasks);
    ask_guests(
        domains,
        (workers, PhaseName::Zeros),
        |state| state.round.zeros().len(),
        Order::of_zeros,
    );
    for domain in domains.values_mut() {
        let mut plan = workers.alone(PhaseName::Plan, || Plan::make(domain));
        plan.fill(domain, workers);
        workers.alone(PhaseName::Commit, || plan.commit(domain));
        workers.alone(PhaseName::Spread, || spread(domain));
    }
    // A guest that was short of mappings may not be any more.
    let asked = |state: &State| {
        let is_short = state.usage.is_short_of_mappings || state.round.has_left_out();
        state.round.merges().len() + usize::from(is_short)
    };
    ask_guests(domains, (workers, PhaseName::Apply), asked, Order::of_merges);
    sweep_all(domains, workers);
}

fn sweep_all(domains: &mut Domains, workers: &Workers) {
    workers.alone(PhaseName::Sweep, || domains.values_mut().for_each(Domain::sweep));
}

/// Asks every guest that there are pages for: its order is taken, and applied in pieces.
fn ask_guests<'a>(
    domains: &'a Domains,
    (workers, phase): (&Workers, PhaseName),
    pages: impl Fn(&State) -> usize,
    take_order: fn(&'a Domain, &'a Guest) -> Order<'a>,
) {
    let guests = domains
        .values()
        .flat_map(|domain| domain.guests.values().map(move |guest| (domain, guest)));
    let tasks: Vec<_> = guests.filter(|(_, guest)| pages(&guest.state()) > 0).collect();
    let orders = Mutex::new(Vec::new());
    workers.each(
        PhaseName::Cut,
        &tasks,
        || (),
        |(), (domain, guest)| {
            let order = take_order(domain, guest);
            locked(&orders).push(order);
        },
    );
    let orders = orders.into_inner().expect("no worker panics with it");
    let pieces = by_turns(orders.iter().map(|order| order.pieces().collect()).collect());
    workers.each(phase, &pieces, Vec::new, |outcomes, piece| piece.apply(workers, outcomes));
}

/// Returns pieces of all lists, of each as long as it has any: so that workers are with different guests, whose
/// address spaces can change at the same time, and end together.
fn by_turns<T>(lists: Vec<Vec<T>>) -> Vec<T> {
    let mut numbered: Vec<(usize, T)> =
        lists.into_iter().flat_map(|list| list.into_iter().enumerate()).collect();
    numbered.sort_by_key(|(number, _)| *number);
    numbered.into_iter().map(|(_, item)| item).collect()
}

/// Task of the examination: pages to be merged, or whole blocks to be appraised.
enum ExamineTask<'a> {
    Batch(Batch<'a>),
    Appraisal(Appraisal<'a>),
}

impl ExamineTask<'_> {
    fn examine(&self, scratch: &mut examine::Scratch) {
        let domain = match self {
            Self::Batch(batch) => batch.domain,
            Self::Appraisal(appraisal) => appraisal.domain,
        };
        match (self, domain.shortage()) {
            (Self::Batch(batch), None) => batch.examine(scratch),
            (Self::Batch(batch), Some(_)) => batch.postpone(),
            (Self::Appraisal(appraisal), None) => appraisal.appraise(scratch),
            (Self::Appraisal(appraisal), Some(_)) => appraisal.postpone(),
        }
    }
}

fn examine_tasks<'a>(
    domains: &'a Domains,
    portion: &'a Portion,
) -> impl Iterator<Item = ExamineTask<'a>> {
    let domain = &domains[&portion.domain];
    let guest = &domain.guests[&portion.guest];
    let batches = portion.pages.chunks(DIGEST_PAGES);
    let batches = batches.map(move |pages| ExamineTask::Batch(Batch { domain, guest, pages }));
    let appraisals = pieces_of_blocks(&portion.whole, DIGEST_PAGES);
    batches.chain(
        appraisals.map(move |pages| ExamineTask::Appraisal(Appraisal { domain, guest, pages })),
    )
}

/// Divides pages, which ascend, into pieces of about `most`, none of which ends within a block.
fn pieces_of_blocks(pages: &[u32], most: usize) -> impl Iterator<Item = &[u32]> {
    let mut rest = pages;
    std::iter::from_fn(move || {
        let mut end = 0;
        for block in rest.chunk_by(|a, b| a / BLOCK_PAGES == b / BLOCK_PAGES) {
            if end > 0 && end + block.len() > most {
                break;
            }
            end += block.len();
        }
        let (piece, behind) = rest.split_at(end);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}
