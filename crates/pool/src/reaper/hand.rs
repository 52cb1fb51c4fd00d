//! Choice of the pages that go: a hand that goes over all pages in turns, and takes the least frequent.
//!
//! In each turn it takes the least frequent sixteenth of what is in memory, by the counts of the turn before. So
//! a page that comes behind the hand has the time of a turn to be accessed again (much as in W-TinyLFU's window), and no
//! turn takes longer than it takes to read so many pages anew. What went keeps its frequency (a ghost's, as S3-FIFO's), so
//! what comes back often stays. When frequencies are high on average they are halved, so that the past is
//! forgotten in proportion to accesses and not to time (TinyLFU's reset).

use super::cut::{Counts, Cut, NO_PAGES};
use super::law::Law;
use crate::map::{Accesses, Temperature};

/// Parts of the pages in memory of which the hand takes one each turn.
const TURN_PARTS: u64 = 16;

/// Average frequency of the pages in memory above which all are halved.
const FREQUENCY_MEAN_MAX: u64 = 20;

/// Consecutive pages of an object that go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Victims {
    /// Position of the object among all.
    pub(super) object: usize,
    pub(super) first_page: usize,
    pub(super) pages: usize,
}

/// Pages of an object, and how long they are to stay.
pub(super) struct Watched<'a> {
    pub(super) accesses: &'a Accesses,
    pub(super) temperature: Temperature,
}

/// Position of the hand, and what it has seen.
#[derive(Debug)]
pub(super) struct Hand {
    object: usize,
    page: usize,
    /// Pages in memory, by temperature and frequency: of this turn so far, and of the last.
    counts: Counts,
    last: Counts,
    cut: Cut,
    /// Rest that is owed of the pages of the one frequency of which a part goes.
    owed: u64,
    is_halving: bool,
}

/// Pages that a pass of the hand looked at, and those that it took.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) victims: Vec<Victims>,
    pub(super) taken: u64,
    pub(super) seen: u64,
}

impl Default for Hand {
    fn default() -> Self {
        // The first turn takes nothing: there are no counts of one before.
        let (counts, last) = (NO_PAGES, NO_PAGES);
        Self { object: 0, page: 0, counts, last, cut: Cut::default(), owed: 0, is_halving: false }
    }
}

impl Hand {
    /// Goes on over the pages of `count` objects, until it has taken `wanted` pages or has looked at `seen_max`.
    /// Pages that it takes count as gone.
    pub(super) fn pass<'a>(
        &mut self,
        count: usize,
        object: impl Fn(usize) -> Watched<'a>,
        law: &Law,
        wanted: u64,
        seen_max: u64,
    ) -> Pass {
        let mut pass = Pass::default();
        while pass.taken < wanted && pass.seen < seen_max && count > 0 {
            if self.object >= count {
                self.begin_turn(law);
            }
            let object = object(self.object);
            self.pass_object(&object, wanted, seen_max, &mut pass);
            if self.page >= object.accesses.len() {
                (self.object, self.page) = (self.object + 1, 0);
                pass.seen += 1;
            }
        }
        pass
    }

    fn pass_object(&mut self, object: &Watched<'_>, wanted: u64, seen_max: u64, pass: &mut Pass) {
        let &Watched { accesses, temperature } = object;
        let start = self.page;
        let end = accesses.len().min(start.saturating_add((seen_max - pass.seen) as usize));
        while self.page < end && pass.taken < wanted {
            let page = self.page;
            self.page += 1;
            let frequency = accesses.resident_frequency(page);
            if self.is_halving {
                accesses.halve(page);
            }
            let Some(frequency) = frequency else { continue };
            if self.takes(temperature, frequency) {
                accesses.evict(page);
                pass.take(self.object, page);
            } else {
                let left = if self.is_halving { frequency / 2 } else { frequency };
                self.counts[temperature as usize][left] += 1;
            }
        }
        pass.seen += (self.page - start) as u64;
    }

    /// Returns true if a page goes. Of the frequency at the cut, a part goes, spread evenly.
    fn takes(&mut self, temperature: Temperature, frequency: usize) -> bool {
        if frequency != self.cut.below(temperature) {
            return frequency < self.cut.below(temperature);
        }
        let part = self.cut.at(temperature);
        if part == 0 {
            return false;
        }
        let all = self.last[temperature as usize][frequency].max(1);
        self.owed += part;
        let goes = self.owed >= all;
        self.owed -= if goes { all } else { 0 };
        goes
    }

    fn begin_turn(&mut self, law: &Law) {
        self.last = std::mem::replace(&mut self.counts, NO_PAGES);
        (self.object, self.page, self.owed) = (0, 0, 0);
        // What is pinned neither goes nor says how frequent the others are.
        let counts = &self.last[..Temperature::Pinned as usize];
        let pages = counts.iter().flatten().sum::<u64>();
        let of_level = |(level, pages): (usize, &u64)| level as u64 * pages;
        let levels = counts.iter().flat_map(|counts| counts.iter().enumerate());
        let frequencies = levels.map(of_level).sum::<u64>();
        self.cut = Cut::of(&self.last, law, pages.div_ceil(TURN_PARTS));
        self.is_halving = frequencies > pages * FREQUENCY_MEAN_MAX;
    }
}

impl Pass {
    fn take(&mut self, object: usize, page: usize) {
        self.taken += 1;
        match self.victims.last_mut() {
            Some(last) if last.object == object && last.first_page + last.pages == page => {
                last.pages += 1;
            }
            _ => self.victims.push(Victims { object, first_page: page, pages: 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::map::Watch;

    /// Objects of the same temperature whose pages were accessed so often each.
    fn objects(frequencies: &[Vec<usize>]) -> Vec<Arc<Accesses>> {
        let watch = Arc::new(Watch::default());
        let object = |frequencies: &Vec<usize>| {
            let accesses = Arc::new(Accesses::new(frequencies.len() as u64, 0, &watch));
            let pages = frequencies.iter().enumerate();
            pages.for_each(|(page, times)| (0..*times).for_each(|_| accesses.touch(page)));
            accesses
        };
        frequencies.iter().map(object).collect()
    }

    fn pass(
        hand: &mut Hand,
        objects: &[Arc<Accesses>],
        temperature: Temperature,
        wanted: u64,
    ) -> Pass {
        let watched = |at: usize| Watched { accesses: &objects[at], temperature };
        hand.pass(objects.len(), watched, &Law::default(), wanted, u64::MAX)
    }

    fn all_pages(objects: &[Arc<Accesses>]) -> u64 {
        objects.iter().map(|object| object.len() as u64).sum()
    }

    proptest! {
        #[test]
        fn a_turn_takes_the_least_frequent_sixteenth(
            frequencies in prop::collection::vec(prop::collection::vec(0..20usize, 0..60), 1..8),
        ) {
            let objects = objects(&frequencies);
            let mut hand = Hand::default();
            let watched = |at: usize| Watched { accesses: &objects[at], temperature: Temperature::Warm };
            // The first turn counts, and the second takes: as many looks as there are pages and ends of objects.
            let turn = all_pages(&objects) + objects.len() as u64;
            let counted = hand.pass(objects.len(), watched, &Law::default(), 1, turn);
            prop_assert!(counted.victims.is_empty());
            let taken = hand.pass(objects.len(), watched, &Law::default(), u64::MAX, turn);
            let of = |victims: &Victims| {
                frequencies[victims.object][victims.first_page..][..victims.pages].to_vec()
            };
            let mut gone: Vec<usize> = taken.victims.iter().flat_map(of).collect();
            let mut resident: Vec<usize> =
                frequencies.iter().flatten().copied().filter(|times| *times > 0).collect();
            gone.sort_unstable();
            resident.sort_unstable();
            prop_assert_eq!(gone.len() as u64, taken.taken);
            prop_assert_eq!(&gone[..], &resident[..resident.len().div_ceil(TURN_PARTS as usize)]);
        }
    }

    #[test]
    fn as_many_go_as_are_wanted_and_no_page_twice() {
        let objects = objects(&[vec![1; 100], vec![5; 300]]);
        let (mut hand, mut gone) = (Hand::default(), 0);
        while gone < 300 {
            let taken = pass(&mut hand, &objects, Temperature::Cold, 7);
            assert_eq!(taken.taken, 7.min(taken.taken.max(1)));
            gone += taken.taken;
        }
        let left = |object: &Arc<Accesses>| {
            (0..object.len()).filter(|page| object.resident_frequency(*page).is_some()).count()
                as u64
        };
        assert_eq!(left(&objects[0]), 0);
        assert_eq!(left(&objects[1]), 400 - gone);
    }

    #[test]
    fn pinned_pages_stay_beside_others_of_which_a_part_goes() {
        let objects = objects(&[vec![1; 800], vec![1; 400]]);
        // Pages that were read ahead and never accessed.
        (0..400).for_each(|page| objects[1].halve(page));
        let temperatures = [Temperature::Warm, Temperature::Pinned];
        let watched = |at: usize| Watched { accesses: &objects[at], temperature: temperatures[at] };
        let pass = Hand::default().pass(2, watched, &Law::default(), 500, u64::MAX);
        assert_eq!(pass.taken, 500);
        assert!(pass.victims.iter().all(|victims| victims.object == 0));
    }

    #[test]
    fn what_is_pinned_stays_and_a_pass_ends() {
        let objects = objects(&[vec![1; 50]]);
        let watched = |_| Watched { accesses: &objects[0], temperature: Temperature::Pinned };
        let pass = Hand::default().pass(1, watched, &Law::default(), 1, 1_000);
        assert_eq!((pass.taken, pass.seen), (0, 1_000));
    }

    #[test]
    fn what_was_popular_once_is_forgotten_in_proportion_to_accesses() {
        let objects = objects(&[vec![60; 10], vec![1; 10]]);
        let mut hand = Hand::default();
        // All are accessed from now on but the first object, until it is its turn to go.
        for _ in 0..1_000 {
            (0..10).for_each(|page| objects[1].touch(page));
            if pass(&mut hand, &objects, Temperature::Warm, 1).victims[0].object == 0 {
                return;
            }
            (0..10).for_each(|page| _ = objects[1].correct(page, true));
        }
        panic!("it stays for ever");
    }
}
