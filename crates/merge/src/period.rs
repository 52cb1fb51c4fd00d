//! One period: every guest is observed, and what turned out stable goes from digest to merged in
//! rounds.
//!
//! ```text
//! admit     guests that came, went, or answered late          one thread
//! observe   losses and writes of each guest                   a task a guest
//! round:    examine  digests, index                           a task a batch of pages
//!           plan     homes, slots                              one thread a domain
//!           fill     contents into the store                  a task a fetch
//!           commit   leaves become canonical                  one thread a domain
//!           spread   contents of stretches get copies         one thread a domain
//!           apply    guests merge                             a task a guest
//!           sweep    slots that nobody maps are freed         one thread a domain
//! ```
//!
//! Phases are separated by joining the workers. That is what makes the rules simple: references are
//! given back only in `observe`, `spread` and `apply`, slots are found only in `examine`, and slots are
//! allocated and freed only between phases.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_guest::{GuestError, RegionChange};
use bindery_units::{PageIndex, PageRange};

use crate::apply::apply;
use crate::copies::spread;
use crate::domain::{Domain, locked_mut};
use crate::examine::{self, Batch};
use crate::fill::Plan;
use crate::member::{Health, Member};
use crate::observe::{self, observe};
use crate::settings::{DIGEST_PAGES, ROUND_PAGES};
use crate::workers::Workers;

/// All domains of an engine, by name.
pub(crate) type Domains = BTreeMap<String, Domain>;

/// Runs one period. `told` is called whenever figures have changed.
pub(crate) fn run_period(
    domains: &mut Domains,
    workers: &Workers,
    stop: &AtomicBool,
    mut told: impl FnMut(&Domains),
) {
    domains.values_mut().for_each(admit);
    observe_all(domains, workers);
    domains.values_mut().for_each(Domain::sweep);
    let mut agenda = Agenda::of(domains);
    while let Some(round) = agenda.next_round() {
        // Relaxed: stopping a little later does no harm.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        run_round(domains, &round, workers);
        told(domains);
    }
    for domain in domains.values_mut() {
        domain.members.values().for_each(|member| member.connection.rest());
        let breaks = domain.counts().breaks;
        let merged = domain.merged() + (breaks - domain.breaks_seen);
        let broken = if domain.backs_off { breaks - domain.breaks_seen } else { 0 };
        let shortage = locked_mut(&mut domain.shortage).take();
        domain.pressure.end_period(broken, merged, shortage);
        domain.breaks_seen = breaks;
        let keys = domain.index.len();
        domain.reshape_for(keys);
    }
    domains.retain(|_, domain| !domain.is_empty());
    told(domains);
}

/// Takes in what happened between periods: regions, late answers, closed connections, processes
/// that ended.
fn admit(domain: &mut Domain) {
    let numbers: Vec<u32> = domain.members.keys().copied().collect();
    for number in numbers {
        let mut member = domain.members.remove(&number).expect("the number was just listed");
        if let Err(error) = admit_one(domain, &mut member) {
            member.note(&error);
        }
        if member.connection.has_released() {
            domain.forget(member);
        } else if member.health() == Health::Lost {
            depart(domain, member);
        } else {
            domain.members.insert(number, member);
        }
    }
    for member in std::mem::take(&mut domain.departed) {
        release_returned(domain, &member);
        // A guest that steps aside ends its lanes first, and may be taken for lost meanwhile.
        let is_released = member.connection.has_released();
        let maps = member.merged() > 0 || !member.state().in_flight.is_empty();
        if maps && !is_released && !member.connection.has_ended() {
            domain.departed.push(member);
        } else {
            domain.forget(member);
        }
    }
    domain.sweep();
}

fn admit_one(domain: &Domain, member: &mut Member) -> Result<(), GuestError> {
    match member.health() {
        Health::Lost => return Ok(()),
        Health::Stalled if !member.connection.settle()? => {}
        Health::Stalled | Health::Failing | Health::Well => member.set_health(Health::Well),
    }
    // Shims never use a page index again: what was removed is gone for good.
    for change in member.connection.changes()? {
        match change {
            RegionChange::Removed(range) => {
                domain.unlink_range(member, range);
                member.links.trim(range);
                let state = member.state_mut();
                state.stable.forget(range);
                state.foreign.retain(|page| !range.contains(PageIndex(*page)));
            }
            // A guest of a daemon that ended: its pages may be merged, or watched since, and may
            // be told of only after it was asked for the first time.
            RegionChange::Added(_) => {
                let merged = member.connection.holds_other_stores();
                let doubt = &mut member.state_mut().doubt;
                doubt.present = true;
                doubt.merged |= merged;
            }
        }
    }
    let managed: Vec<PageRange> =
        member.connection.regions().iter().map(|region| region.pages).collect();
    if let Some(last) = managed.last() {
        member.links.grow(last.end());
    }
    let state = member.state_mut();
    state.managed = managed;
    state.transit_max_ns = 0;
    Ok(())
}

/// The connection failed, or is not wanted any more. Its candidates can no longer be asked for; what
/// it maps, it may map on.
fn depart(domain: &mut Domain, member: Member) {
    member.connection.close();
    let guard = bindery_index::pin();
    for (page, link) in member.links.linked(member.links.range()) {
        if matches!(link, crate::links::Link::Candidate(_)) {
            domain.unlink(&member, page, &guard);
        }
    }
    domain.departed.push(member);
}

/// Gives back what a departed guest's process has told over a new connection that it maps no more:
/// pages that it has reported, and not as merged with a store that it had before. Pages that it
/// does not tell of stay as they are.
fn release_returned(domain: &Domain, departed: &Member) {
    let old = departed.connection.identity();
    let returned = domain.members.values().find(|member| {
        let new = member.connection.identity();
        // The process id comes from the kernel: nobody else can claim to be this guest.
        new.pid == old.pid && new.instance == old.instance
    });
    let Some(returned) = returned.filter(|member| !member.state().doubt.merged) else { return };
    let told = returned.state();
    let is_released = |page: PageIndex| {
        told.managed.iter().any(|range| range.contains(page)) && !told.foreign.contains(&page.0)
    };
    let guard = bindery_index::pin();
    for (page, _) in departed.links.linked(departed.links.range()) {
        if is_released(page) {
            domain.unlink(departed, page, &guard);
        }
    }
    departed.state().in_flight.retain(|merge| {
        let released = is_released(merge.page);
        if released {
            domain.give_back(merge.slot);
        }
        !released
    });
}

fn observe_all(domains: &Domains, workers: &Workers) {
    let members = domains.values().flat_map(|domain| {
        let members = domain.members.values().filter(|member| member.is_well());
        members.map(move |member| (domain, member))
    });
    let tasks: Vec<(&Domain, &Member)> = members.collect();
    workers.each(&tasks, observe::Scratch::default, |scratch, (domain, member)| {
        observe(domain, member, scratch);
    });
}

/// Stable pages that are still to be looked at: domain, member, pages.
struct Agenda {
    left: Vec<Portion>,
}

/// Some stable pages of one guest.
struct Portion {
    domain: String,
    member: u32,
    pages: Vec<u32>,
}

impl Agenda {
    fn of(domains: &mut Domains) -> Self {
        let mut left = Vec::new();
        for (name, domain) in domains {
            for member in domain.members.values_mut() {
                let pages = std::mem::take(&mut member.state_mut().told);
                if !pages.is_empty() {
                    left.push(Portion { domain: name.clone(), member: member.number, pages });
                }
            }
        }
        // Taken from the end: guests that came first have their pages looked at first.
        left.reverse();
        Self { left }
    }

    /// The next pages, at most [`ROUND_PAGES`].
    fn next_round(&mut self) -> Option<Vec<Portion>> {
        let (mut round, mut room) = (Vec::new(), ROUND_PAGES);
        while room > 0
            && let Some(mut portion) = self.left.pop()
        {
            if portion.pages.len() > room {
                let pages = portion.pages.split_off(room);
                self.left.push(Portion { domain: portion.domain.clone(), pages, ..portion });
            }
            room -= portion.pages.len();
            round.push(portion);
        }
        (!round.is_empty()).then_some(round)
    }
}

fn run_round(domains: &mut Domains, round: &[Portion], workers: &Workers) {
    for (name, domain) in domains.iter_mut() {
        let portions = round.iter().filter(|portion| portion.domain == *name);
        let pages: usize = portions.map(|portion| portion.pages.len()).sum();
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
            Some(_) => batch.put_back(),
        }
    });
    drop(batches);
    for domain in domains.values_mut() {
        let mut plan = Plan::make(domain);
        plan.fill(domain, workers);
        plan.commit(domain);
        spread(domain);
    }
    let members = domains.values().flat_map(|domain| {
        let members = domain.members.values().filter(|member| member.state().has_merges());
        members.map(move |member| (domain, member))
    });
    let tasks: Vec<(&Domain, &Member)> = members.collect();
    workers.each(&tasks, Vec::new, |outcomes, (domain, member)| apply(domain, member, outcomes));
    domains.values_mut().for_each(Domain::sweep);
}

fn batches<'a>(domains: &'a Domains, portion: &'a Portion) -> impl Iterator<Item = Batch<'a>> {
    let domain = &domains[&portion.domain];
    let member = &domain.members[&portion.member];
    portion.pages.chunks(DIGEST_PAGES).map(move |pages| Batch { domain, member, pages })
}
