//! Between periods: guests that came, went, or answered late.

use bindery_guest::{GuestError, RegionChange};
use bindery_index::pin;
use bindery_units::{PageIndex, PageRange};

use crate::domain::Domain;
use crate::guest::{Guest, Health};
use crate::links::Link;
use crate::patience::Lateness;

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
                state.tracking.forget(range);
                state.blocks.forget(range);
                state.foreign.remove_range(range);
            }
            // A guest that was here before, or at a daemon that ended: its pages may be merged, or
            // watched since, and may be reported only after it was asked for the first time.
            RegionChange::Added(_) => {
                let has_past = guest.has_past;
                let state = guest.state_mut();
                state.tracking.require_survey();
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
        guest.gains.grow(last.end());
    }
    guest.state_mut().managed = managed;
    Ok(())
}

/// Closes a guest's connection and unlinks its candidates, which nobody can ask for any more; merged
/// pages stay counted, since its process may map them on.
fn depart(domain: &mut Domain, guest: Guest) {
    guest.connection.close();
    let epoch = pin();
    for (page, link) in guest.links.linked(guest.links.range()) {
        if matches!(link, Link::Candidate(_)) {
            domain.unlink(&guest, page, &epoch);
        }
    }
    domain.departed.push(guest);
}

/// Gives back the references of a departed guest for pages that its process, connected anew, manages
/// and does not map from an older store. Pages outside its regions keep theirs.
fn release_returned(domain: &Domain, departed: &Guest) {
    let old = departed.connection.identity();
    let returned = domain.guests.values().find(|guest| guest.is_of_process(old));
    let Some(returned) = returned.filter(|guest| !guest.state().doubt.is_raised()) else { return };
    let reported = returned.state();
    let is_released = |page: PageIndex| {
        reported.managed.iter().any(|range| range.contains(page))
            && !reported.foreign.contains(page)
    };
    let epoch = pin();
    for (page, _) in departed.links.linked(departed.links.range()) {
        if is_released(page) {
            domain.unlink(departed, page, &epoch);
        }
    }
    for merge in departed.state().doubt.extract_in_flight(is_released) {
        domain.give_back(merge.slot);
    }
}
