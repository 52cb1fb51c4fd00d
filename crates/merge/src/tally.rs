//! How much of each small block of a guest's memory is zero, merged or unshared: for maps of it.
//!
//! Links say it page by page, but belong to a period's workers. Beside them each block of
//! [`TALLY_PAGES`] pages has its counts in one word, which anybody may read at any time: an eighth of
//! a byte a page, and one more atomic addition for each link that changes.
//!
//! # Concurrency
//! Words are added to with relaxed atomics, so that each is exact by itself; words next to each other
//! may be of different moments. Room is made by a thread that has the tally to itself: it copies the
//! words to a new table and shows that to readers, who may finish with the old one.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bindery_units::{PageIndex, PageRange};

use crate::links::Link;

/// Pages that are counted together, a power of two.
pub const TALLY_PAGES: u32 = 16;

/// Bits of one count: enough for all pages of a block.
const COUNT_BITS: u32 = 5;
const COUNT_MASK: u16 = (1 << COUNT_BITS) - 1;

type Words = Arc<[AtomicU16]>;

/// What pages are, by the engine's knowledge. Those that are none of it are absent, or change too
/// often to be looked at, or are still to be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// The kernel's zero page.
    pub zero: u32,
    /// Mapped from a canonical page.
    pub merged: u32,
    /// Looked at, and found unique.
    pub unshared: u32,
}

impl std::ops::AddAssign for LinkCounts {
    fn add_assign(&mut self, other: Self) {
        self.zero += other.zero;
        self.merged += other.merged;
        self.unshared += other.unshared;
    }
}

/// What the pages of a guest are, for anybody to read while merging goes on.
#[derive(Debug, Default)]
pub struct PageMap {
    words: Mutex<Words>,
}

impl PageMap {
    /// Counts the pages of each of `ranges`. Takes a nanosecond for each [`TALLY_PAGES`] pages, and
    /// waits for nobody.
    ///
    /// Ranges are taken to begin and end at multiples of [`TALLY_PAGES`], as regions do: what they
    /// have a part of counts as a whole.
    #[must_use]
    pub fn count(&self, ranges: &[PageRange]) -> Vec<LinkCounts> {
        let words = self.words();
        ranges.iter().map(|range| count(&words, *range)).collect()
    }

    fn words(&self) -> Words {
        // The table is replaced as a whole: a panic elsewhere leaves a whole one.
        Arc::clone(&self.words.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn count(words: &[AtomicU16], range: PageRange) -> LinkCounts {
    let end = (range.end().0.div_ceil(TALLY_PAGES) as usize).min(words.len());
    let start = ((range.first.0 / TALLY_PAGES) as usize).min(end);
    let mut counts = LinkCounts::default();
    for word in &words[start..end] {
        let word = word.load(Ordering::Relaxed);
        let field = |at: u32| u32::from(word >> (at * COUNT_BITS) & COUNT_MASK);
        counts += LinkCounts { unshared: field(0), merged: field(1), zero: field(2) };
    }
    counts
}

/// The counts of one guest, for who changes them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    words: Words,
    shown: Arc<PageMap>,
}

impl Tally {
    /// What readers see.
    pub(crate) fn shown(&self) -> &Arc<PageMap> {
        &self.shown
    }

    /// Makes room for the pages below `end`.
    pub(crate) fn grow(&mut self, end: PageIndex) {
        let blocks = end.0.div_ceil(TALLY_PAGES) as usize;
        if blocks <= self.words.len() {
            return;
        }
        let old = |at: usize| self.words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
        self.words = (0..blocks).map(|at| AtomicU16::new(old(at))).collect();
        let shown = &self.shown.words;
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&self.words);
    }

    /// Takes in that a page is linked to something else.
    ///
    /// # Panics
    /// If there is no room for the page.
    pub(crate) fn relink(&self, page: PageIndex, old: Link, new: Link) {
        // What is added is the difference of two sums of fields, each of which stays within its own:
        // a word never carries from one field into the next, whatever the order of additions.
        let difference = weight(new).wrapping_sub(weight(old));
        if difference != 0 {
            let word = &self.words[(page.0 / TALLY_PAGES) as usize];
            word.fetch_add(difference, Ordering::Relaxed);
        }
    }

    /// Counts the pages of a range, as [`PageMap::count`] does.
    pub(crate) fn count(&self, range: PageRange) -> LinkCounts {
        count(&self.words, range)
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.len() * size_of::<AtomicU16>()
    }
}

const fn weight(link: Link) -> u16 {
    match link {
        Link::None => 0,
        Link::Candidate(_) => 1,
        Link::Merged(_) => 1 << COUNT_BITS,
        Link::Zero => 1 << (2 * COUNT_BITS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_units::Slot;
    use proptest::prelude::*;

    const PAGES: u32 = 1000;

    fn link() -> impl Strategy<Value = Link> {
        prop_oneof![
            Just(Link::None),
            Just(Link::Zero),
            Just(Link::Candidate(7)),
            Just(Link::Merged(Slot(9))),
        ]
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_links(
            steps in prop::collection::vec((0..PAGES, link()), 0..2000),
            first in 0..PAGES / TALLY_PAGES, count in 0..PAGES,
        ) {
            let mut tally = Tally::default();
            let map = Arc::clone(tally.shown());
            let mut links = vec![Link::None; PAGES as usize];
            // Room for some at first, and for all once half of the steps are done.
            tally.grow(PageIndex(PAGES / 3));
            for (at, (page, link)) in steps.iter().enumerate() {
                if at == steps.len() / 2 {
                    tally.grow(PageIndex(PAGES));
                }
                let page = if at < steps.len() / 2 { page % (PAGES / 3) } else { *page };
                let old = std::mem::replace(&mut links[page as usize], *link);
                tally.relink(PageIndex(page), old, *link);
            }
            let range = PageRange::new(PageIndex(first * TALLY_PAGES), count);
            let end = range.end().0.next_multiple_of(TALLY_PAGES).min(PAGES) as usize;
            let mut expected = LinkCounts::default();
            for link in links.get(range.first.0 as usize..end).unwrap_or_default() {
                match link {
                    Link::None => {}
                    Link::Zero => expected.zero += 1,
                    Link::Merged(_) => expected.merged += 1,
                    Link::Candidate(_) => expected.unshared += 1,
                }
            }
            if count == 0 {
                expected = LinkCounts::default();
            }
            prop_assert_eq!(map.count(&[range]), [expected]);
        }
    }

    #[test]
    fn a_block_may_be_full_of_anything() {
        let mut tally = Tally::default();
        tally.grow(PageIndex(2 * TALLY_PAGES));
        let all = PageRange::new(PageIndex(0), 2 * TALLY_PAGES);
        let mut old = Link::None;
        for link in [Link::Candidate(1), Link::Zero, Link::Merged(Slot(1)), Link::None] {
            all.pages().for_each(|page| tally.relink(page, old, link));
            old = link;
            let LinkCounts { zero, merged, unshared } = tally.shown().count(&[all])[0];
            let full = if link == Link::None { 0 } else { 2 * TALLY_PAGES };
            assert_eq!(zero + merged + unshared, full, "{link:?}");
        }
    }
}
