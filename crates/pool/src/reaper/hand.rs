//! Choice of the pages that go: a hand that goes over all pages in turns, and takes the least frequent.
//!
//! In each turn it takes the least frequent sixteenth of what is in memory, by the counts of the turn before. So
//! a page that has just come has the time of a turn to be accessed again (W-TinyLFU's window), and no turn takes
//! longer than it takes to read so many pages anew. What went keeps its frequency (a ghost's, as S3-FIFO's), so
//! what comes back often stays. When frequencies are high on average they are halved, so that the past is
//! forgotten in proportion to accesses and not to time (TinyLFU's reset).

use super::cut::{Counts, Cut, NO_PAGES};
use super::law::Law;
use crate::map::{Accesses, Temperature};

/// Of the pages in memory, the hand takes one in so many each turn.
const TURN_PARTS: u64 = 16;

/// Average frequency of the pages in memory above which all are halved.
const FREQUENCY_MEAN_MAX: u64 = 36;

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
    /// What is owed of the pages of the one frequency of which a part goes.
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
    /// What it takes counts as gone.
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
        let end = accesses.len().min(start + (seen_max - pass.seen) as usize);
        while self.page < end && pass.taken < wanted {
            let page = self.page;
            self.page += 1;
            if self.is_halving {
                accesses.halve(page);
            }
            let Some(frequency) = accesses.resident_frequency(page) else { continue };
            self.counts[temperature as usize][frequency] += 1;
            if self.takes(temperature, frequency) {
                accesses.evict(page);
                pass.take(self.object, page);
            }
        }
        pass.seen += (self.page - start) as u64;
    }

    /// Returns true if a page goes. Of the frequency at the cut, a part goes, spread evenly.
    fn takes(&mut self, temperature: Temperature, frequency: usize) -> bool {
        if frequency != self.cut.below(temperature) {
            return frequency < self.cut.below(temperature);
        }
        let all = self.last[temperature as usize][frequency].max(1);
        self.owed += self.cut.at(temperature);
        let goes = self.owed >= all;
        self.owed -= if goes { all } else { 0 };
        goes
    }

    fn begin_turn(&mut self, law: &Law) {
        self.last = std::mem::replace(&mut self.counts, NO_PAGES);
        (self.object, self.page, self.owed) = (0, 0, 0);
        let pages = self.last.iter().flatten().sum::<u64>();
        let of_level = |(level, pages): (usize, &u64)| level as u64 * pages;
        let frequencies =
            self.last.iter().flat_map(|counts| counts.iter().enumerate().map(of_level)).sum::<u64>();
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
