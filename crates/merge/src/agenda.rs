//! Order in which guests' stable pages are looked at: each has its turn, in a period or in the next.

use std::collections::VecDeque;

use bindery_units::PageIndex;

use crate::domain::{DomainId, Domains};
use crate::guest::Guest;

/// Pages that a round has of a guest, at least, while it is to have so many: 32 MiB.
const SLICE_PAGES: usize = 1 << 13;

/// Guest whose turn it is: its domain, and its number there.
pub(crate) type Turn = Option<(DomainId, u32)>;

/// Guests that have stable pages to be looked at in this period, in order.
#[derive(Default)]
pub(crate) struct Agenda {
    left: VecDeque<(DomainId, u32)>,
}

/// Some stable pages of one guest.
pub(crate) struct Portion {
    pub(crate) domain: DomainId,
    pub(crate) guest: u32,
    /// Pages of split blocks.
    pub(crate) pages: Vec<u32>,
    /// Pages of whole blocks, each of which is here with all its pages.
    pub(crate) whole: Vec<u32>,
}

impl Portion {
    /// Returns how many pages it has.
    pub(crate) fn len(&self) -> usize {
        self.pages.len() + self.whole.len()
    }
}

impl Agenda {
    /// Begins with the guest whose turn it is: where a period is too short for all, each has its own.
    pub(crate) fn of(domains: &Domains, turn: &Turn) -> Self {
        let merging = domains.iter().filter(|(_, domain)| domain.pressure.merges());
        let mut left: VecDeque<(DomainId, u32)> = merging
            .flat_map(|(id, domain)| {
                // What was not scanned in this period is not known to be stable.
                let ready = domain.guests.values().filter(|guest| guest.ready() > 0);
                ready.map(move |guest| (id.clone(), guest.number))
            })
            .collect();
        if let Some(turn) = turn {
            let at = left.partition_point(|guest| guest < turn);
            left.rotate_left(at % left.len().max(1));
        }
        Self { left }
    }

    /// Returns the guest that the next period begins with.
    pub(crate) fn turn(&self) -> Turn {
        self.left.front().cloned()
    }

    /// Stable pages that are still to be looked at.
    pub(crate) fn pages_left(&self, domains: &Domains) -> u64 {
        self.left.iter().map(|guest| well_guest(domains, guest).map_or(0, Guest::ready)).sum()
    }

    /// Returns the next pages, about `most`, from as many guests as there are slices in it: none if there are
    /// none left. Guests take turns from round to round.
    pub(crate) fn next_round(&mut self, domains: &mut Domains, most: usize) -> Vec<Portion> {
        let slice = (most / self.left.len().max(1)).max(SLICE_PAGES);
        let (mut round, mut count) = (Vec::new(), 0);
        for _ in 0..self.left.len() {
            if count >= most {
                break;
            }
            let guest = self.left.pop_front().expect("as many are left");
            let (portion, goes_on) = take_portion(domains, &guest, slice.min(most - count));
            count += portion.as_ref().map_or(0, Portion::len);
            round.extend(portion);
            // Otherwise its turn is over, however much of it has become stable meanwhile.
            if goes_on {
                self.left.push_back(guest);
            }
        }
        round
    }
}

/// Takes about `most` stable pages of a guest. Returns them, and whether there may be more.
fn take_portion(
    domains: &Domains,
    guest: &(DomainId, u32),
    most: usize,
) -> (Option<Portion>, bool) {
    let Some(well) = well_guest(domains, guest) else { return (None, false) };
    let mut pages = Vec::new();
    let goes_on = well.state().take_stable(most, &mut pages);
    if pages.is_empty() {
        return (None, goes_on);
    }
    let is_split = |page: &u32| well.gains.is_split(PageIndex(*page));
    let (pages, whole) = pages.into_iter().partition(is_split);
    let (domain, guest) = guest.clone();
    (Some(Portion { domain, guest, pages, whole }), goes_on)
}

/// Returns a guest of the agenda, unless something went wrong with it or its domain in this period.
fn well_guest<'a>(domains: &'a Domains, (id, number): &(DomainId, u32)) -> Option<&'a Guest> {
    let domain = domains.get(id).filter(|domain| domain.shortage().is_none())?;
    domain.guests.get(number).filter(|guest| guest.is_well())
}
