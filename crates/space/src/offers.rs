//! Memory that was offered, and rests until it comes under management.
//!
//! Offered memory is the kernel's own until it has rested for a while: what is filled right after it was
//! offered is filled by the kernel's faults, in huge pages, and a program that maps, offers and unmaps
//! all the time never pays for management. Nor is anything taken before there is a daemon to merge it.
//!
//! Whatever changes the mappings of offered memory (`munmap`, `mremap`, `mprotect`, `mlock`, another
//! userfaultfd, …) withdraws the offer, as it gives back managed memory. The lock of the offers is held
//! while one is taken, so a call about that memory comes either before, and withdraws it, or after, and
//! finds it managed: whoever asks for both asks for offers first, for one that is taken is a region before
//! it is an offer no more. What discards offered memory keeps it from being taken meanwhile.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bindery_units::HostAddress;

use crate::advice::{LastingAdvice, Noted};
use crate::extents::Extents;
use crate::regions::Regions;

/// How long offered memory rests before it is taken.
pub(crate) const REST: Duration = Duration::from_millis(500);

/// Ranges that were offered and are not managed yet.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    resting: Mutex<BTreeMap<HostAddress, Offer>>,
    /// Bounds of the ranges, for those who may not wait.
    extents: Extents,
}

/// One range, by its first byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) end: HostAddress,
    since: Instant,
    /// True if no advice was given before the offer that memory keeps for good.
    pub(crate) is_plain: bool,
    /// What was advised for good since.
    pub(crate) noted: Noted,
}

impl Offer {
    fn rested_at(&self) -> Instant {
        self.since + REST
    }
}

type Resting = BTreeMap<HostAddress, Offer>;

impl Offers {
    fn lock(&self) -> MutexGuard<'_, Resting> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a range. `is_plain`: no advice was given for it that memory keeps for good.
    pub(crate) fn add(&self, start: HostAddress, end: HostAddress, is_plain: bool) {
        let mut resting = self.lock();
        cut(&mut resting, start, end);
        let since = Instant::now();
        resting.insert(start, Offer { end, since, is_plain, noted: Noted::default() });
        self.follow(&resting, Some((start, end)));
    }

    /// Withdraws what was offered between two addresses. Waits while any of it is taken. Returns how
    /// many bytes that were.
    pub(crate) fn withdraw(&self, start: HostAddress, end: HostAddress) -> usize {
        if !self.extents.may_overlap(start, end) {
            return 0;
        }
        let mut resting = self.lock();
        let bytes = cut(&mut resting, start, end);
        if bytes > 0 {
            self.follow(&resting, None);
        }
        bytes
    }

    /// Notes advice for what is offered between two addresses. Ranges are divided there.
    pub(crate) fn note_advice(&self, start: HostAddress, end: HostAddress, advice: LastingAdvice) {
        if !self.extents.may_overlap(start, end) {
            return;
        }
        let mut resting = self.lock();
        divide(&mut resting, start);
        divide(&mut resting, end);
        for (_, offer) in resting.range_mut(start..end.max(start)) {
            offer.noted.note(advice);
        }
    }

    /// Returns true if anything between two addresses is offered. Takes no lock where nothing is.
    pub(crate) fn overlaps(&self, start: HostAddress, end: HostAddress) -> bool {
        self.extents.may_overlap(start, end) && !overlapping(&self.lock(), start, end).is_empty()
    }

    /// Returns true if anything between two addresses is offered, or in a region. Takes no lock where
    /// nothing is.
    pub(crate) fn overlap_with(
        &self,
        regions: &Regions,
        start: HostAddress,
        end: HostAddress,
    ) -> bool {
        // Offers first: one that is taken meanwhile is a region before it is an offer no more.
        self.overlaps(start, end)
            || (regions.may_overlap(start, end)
                && regions.read().overlapping(start, end).next().is_some())
    }

    /// Calls `act`. Nothing that is offered between two addresses is taken meanwhile.
    pub(crate) fn while_resting<T>(
        &self,
        start: HostAddress,
        end: HostAddress,
        act: impl FnOnce() -> T,
    ) -> T {
        let resting = self.extents.may_overlap(start, end).then(|| self.lock());
        let _held = resting.filter(|resting| !overlapping(resting, start, end).is_empty());
        act()
    }

    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns when the next range will have rested.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.lock().values().map(Offer::rested_at).min()
    }

    /// Returns the ranges that have rested, ascending.
    pub(crate) fn rested(&self) -> Vec<(HostAddress, Offer)> {
        let now = Instant::now();
        let resting = self.lock();
        let rested = resting.iter().filter(|(_, offer)| offer.rested_at() <= now);
        rested.map(|(start, offer)| (*start, *offer)).collect()
    }

    /// Calls `take` with a range that has rested, unless it was withdrawn or changed meanwhile, and
    /// removes it. Whoever withdraws waits for that.
    pub(crate) fn take<T>(
        &self,
        start: HostAddress,
        rested: Offer,
        take: impl FnOnce(Offer) -> T,
    ) -> Option<T> {
        let mut resting = self.lock();
        let same = |now: &&Offer| now.end == rested.end && now.since == rested.since;
        let offer = resting.get(&start).filter(same).copied()?;
        let taken = take(offer);
        resting.remove(&start);
        self.follow(&resting, None);
        Some(taken)
    }

    fn follow(&self, resting: &Resting, grown: Option<(HostAddress, HostAddress)>) {
        self.extents.follow(resting.iter().map(|(start, offer)| (*start, offer.end)), grown);
    }
}

/// Returns the first bytes of the ranges that have a byte between two addresses.
fn overlapping(resting: &Resting, start: HostAddress, end: HostAddress) -> Vec<HostAddress> {
    let before = resting.range(..start).next_back().filter(|(_, offer)| start < offer.end);
    let within = resting.range(start..end.max(start));
    before.into_iter().chain(within).map(|(first, _)| *first).collect()
}

/// Makes two ranges of one that begins before an address and ends after it.
fn divide(resting: &mut Resting, at: HostAddress) {
    let before = resting.range_mut(..at).next_back();
    if let Some((_, offer)) = before.filter(|(_, offer)| at < offer.end) {
        let second = *offer;
        offer.end = at;
        resting.insert(at, second);
    }
}

/// Removes what is between two addresses. Returns how many bytes that were.
fn cut(resting: &mut Resting, start: HostAddress, end: HostAddress) -> usize {
    let mut bytes = 0;
    for first in &overlapping(resting, start, end) {
        let offer = resting.remove(first).expect("it was just found");
        bytes += offer.end.min(end).0 - start.max(*first).0;
        if *first < start {
            resting.insert(*first, Offer { end: start, ..offer });
        }
        if end < offer.end {
            resting.insert(end, offer);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use bindery_sys::maps::Advised;

    use super::*;
    use crate::region::Region;
    use bindery_wire::control::Region as Announced;

    fn at(page: usize) -> HostAddress {
        HostAddress(page << 12)
    }

    fn ranges(offers: &Offers) -> Vec<(usize, usize)> {
        offers.lock().iter().map(|(start, offer)| (start.0 >> 12, offer.end.0 >> 12)).collect()
    }

    #[test]
    fn withdrawing_a_part_leaves_the_rest() {
        let offers = Offers::default();
        offers.add(at(10), at(20), true);
        offers.add(at(30), at(40), true);
        assert_eq!(offers.withdraw(at(15), at(16)), 1 << 12);
        assert_eq!(offers.withdraw(at(38), at(99)), 2 << 12);
        assert_eq!(offers.withdraw(at(0), at(10)), 0);
        assert_eq!(ranges(&offers), [(10, 15), (16, 20), (30, 38)]);
        assert!(!offers.overlaps(at(15), at(16)) && offers.overlaps(at(15), at(17)));
        offers.add(at(18), at(31), true);
        assert_eq!(ranges(&offers), [(10, 15), (16, 18), (18, 31), (31, 38)]);
    }

    #[test]
    fn advice_since_the_offer_is_what_counts() {
        let offers = Offers::default();
        offers.add(at(1), at(2), false);
        offers.note_advice(at(0), at(9), LastingAdvice::DontFork(true));
        offers.note_advice(at(0), at(9), LastingAdvice::DontDump(false));
        let offer = offers.lock()[&at(1)];
        let before = Advised { dont_dump: true, ..Advised::default() };
        assert_eq!(offer.noted.after(before), Advised { dont_fork: true, ..Advised::default() });
        assert!(!offer.is_plain);
    }

    #[test]
    fn advice_for_a_part_divides_the_range() {
        let offers = Offers::default();
        offers.add(at(10), at(20), true);
        offers.note_advice(at(13), at(15), LastingAdvice::DontFork(true));
        offers.note_advice(at(0), at(10), LastingAdvice::DontFork(true));
        offers.note_advice(at(20), at(30), LastingAdvice::DontFork(true));
        assert_eq!(ranges(&offers), [(10, 13), (13, 15), (15, 20)]);
        let kept = |page| offers.lock()[&at(page)].noted.after(Advised::default()).dont_fork;
        assert_eq!([10, 13, 15].map(kept), [false, true, false]);
    }

    #[test]
    fn what_is_taken_is_found_at_every_moment() {
        const ROUNDS: u32 = 20_000;
        let (offers, regions) = (Offers::default(), Regions::default());
        offers.add(at(1), at(2), true);
        let rounds = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let offer = offers.lock()[&at(1)];
                    let taken = offers.take(at(1), offer, |_| {
                        let pages = regions.number(at(1), 1).expect("few pages");
                        let announced = Announced { pages, address: at(1) };
                        regions.add(Region::new(announced, []).expect("small tables"))
                    });
                    let region = taken.expect("nobody withdraws it");
                    // From the beginning again, unseen.
                    rounds.fetch_add(1, Ordering::SeqCst);
                    regions.cut(&region, region.pages());
                    offers.add(at(1), at(2), true);
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            });
            while rounds.load(Ordering::SeqCst) < 2 * ROUNDS {
                let before = rounds.load(Ordering::SeqCst);
                let found = offers.overlap_with(&regions, at(1), at(2));
                let is_same = before.is_multiple_of(2) && rounds.load(Ordering::SeqCst) == before;
                assert!(found || !is_same, "it is offered or managed");
            }
        });
    }

    #[test]
    fn what_was_offered_anew_or_withdrawn_is_not_taken() {
        let offers = Offers::default();
        offers.add(at(1), at(2), true);
        offers.add(at(3), at(4), true);
        offers.add(at(5), at(6), true);
        let seen = offers.lock().clone();
        std::thread::sleep(Duration::from_millis(1));
        offers.add(at(1), at(2), true);
        offers.withdraw(at(3), at(4));
        let taken =
            seen.into_iter().filter_map(|(start, offer)| offers.take(start, offer, |_| start));
        assert_eq!(taken.collect::<Vec<_>>(), [at(5)]);
        assert_eq!(ranges(&offers), [(1, 2)]);
        assert!(offers.rested().is_empty() && offers.next() > Some(Instant::now()));
    }
}
