//! Accesses to the pages of one object, as reported by whoever reads it: a byte a page.
//!
//! ```text
//! bit 7      in memory, as far as is known
//! bit 6      a sampled page that is not in the queue of a cache without the reaper (see `watch`)
//! bits 0..6  frequency: accesses, halved now and then, up to 63
//! ```
//!
//! Bytes are read and written without locked instructions. Of two threads that change one byte at once, one may
//! undo what the other did. So an access may go uncounted, and a page may be known as in memory that is not;
//! whoever evicts looks again now and then ([`Accesses::correct`]), and counts again ([`Accesses::recount`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

use super::watch::Watch;

const RESIDENT: u8 = 1 << 7;
const UNQUEUED: u8 = 1 << 6;
const FREQUENCY: u8 = UNQUEUED - 1;

/// Number of frequencies that are told apart.
pub(crate) const FREQUENCIES: usize = FREQUENCY as usize + 1;

/// The byte of a page that is in memory and as frequent as can be told. Nothing is written for its accesses, so
/// that threads which share hot pages do not take the byte from each other.
const HOTTEST: u8 = RESIDENT | FREQUENCY;

/// State of the pages of an object, shared by all maps that show the same memory.
#[derive(Debug)]
pub(crate) struct Accesses {
    pages: Box<[AtomicU8]>,
    /// Tells objects apart, so that other pages of each are sampled.
    number: u64,
    /// Pages of it that count as in memory in the watch.
    counted: AtomicI64,
    watch: Arc<Watch>,
}

impl Accesses {
    /// Makes the state of so many pages of the object of a number, none of them in memory.
    pub(crate) fn new(pages: u64, number: u64, watch: &Arc<Watch>) -> Self {
        let state = |page| if Watch::samples(number.wrapping_add(page)) { UNQUEUED } else { 0 };
        let pages = (0..pages).map(|page| AtomicU8::new(state(page))).collect();
        Self { pages, number, counted: AtomicI64::new(0), watch: Arc::clone(watch) }
    }

    /// Returns the number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Notes that a page is accessed, in a nanosecond or two where it is in memory. A page beyond the last is
    /// nobody's.
    #[inline]
    pub(crate) fn touch(self: &Arc<Self>, page: usize) {
        let Some(state) = self.pages.get(page) else { return };
        let seen = state.load(Ordering::Relaxed);
        if seen == HOTTEST {
            return;
        }
        if seen & (RESIDENT | UNQUEUED) != RESIDENT {
            self.arrive(page);
        }
        let seen = state.load(Ordering::Relaxed);
        state.store(warmer(seen), Ordering::Relaxed);
    }

    /// Counts a page that was not in memory, or would not be without the reaper.
    #[cold]
    fn arrive(self: &Arc<Self>, page: usize) {
        let is_sampled = Watch::samples(self.number.wrapping_add(page as u64));
        if self.set_resident(page) {
            self.watch.count_miss(is_sampled);
        }
        if is_sampled && self.set_queued(page) {
            self.watch.count_miss_without();
            self.watch.queue(self, page);
        }
    }

    /// Returns true if a page was not in memory, as far as was known.
    fn set_resident(&self, page: usize) -> bool {
        let is_new = self.pages[page].fetch_or(RESIDENT, Ordering::Relaxed) & RESIDENT == 0;
        if is_new {
            self.count(1);
        }
        is_new
    }

    /// Returns true if a sampled page was not in the queue.
    fn set_queued(&self, page: usize) -> bool {
        self.pages[page].fetch_and(!UNQUEUED, Ordering::Relaxed) & UNQUEUED != 0
    }

    fn count(&self, pages: i64) {
        self.counted.fetch_add(pages, Ordering::Relaxed);
        self.watch.add_resident(pages);
    }

    /// Counts again the pages that are in memory as far as is known. Costs a nanosecond a page.
    pub(crate) fn recount(&self) {
        let is_resident = |state: &&AtomicU8| state.load(Ordering::Relaxed) & RESIDENT != 0;
        let resident = self.pages.iter().filter(is_resident).count() as i64;
        let counted = self.counted.swap(resident, Ordering::Relaxed);
        self.watch.add_resident(resident - counted);
    }

    /// Notes that a sampled page has left the queue of a cache without the reaper.
    pub(super) fn leave_queue(&self, page: usize) {
        self.pages[page].fetch_or(UNQUEUED, Ordering::Relaxed);
    }

    /// Returns the frequency of a page that is in memory.
    pub(crate) fn resident_frequency(&self, page: usize) -> Option<usize> {
        let seen = self.pages[page].load(Ordering::Relaxed);
        (seen & RESIDENT != 0).then_some((seen & FREQUENCY).into())
    }

    /// Halves the frequency of a page.
    pub(crate) fn halve(&self, page: usize) {
        let state = &self.pages[page];
        let seen = state.load(Ordering::Relaxed);
        if seen & FREQUENCY != 0 {
            state.store((seen & !FREQUENCY) | ((seen & FREQUENCY) / 2), Ordering::Relaxed);
        }
    }

    /// Notes that a page goes. Its frequency stays, so that it is known when it comes back.
    pub(crate) fn evict(&self, page: usize) {
        if self.pages[page].fetch_and(!RESIDENT, Ordering::Relaxed) & RESIDENT != 0 {
            self.count(-1);
        }
    }

    /// Notes what is found of a page: whether it is in memory. Returns true if that was not known.
    pub(crate) fn correct(self: &Arc<Self>, page: usize, is_resident: bool) -> bool {
        if is_resident {
            let is_new = self.set_resident(page);
            if is_new
                && Watch::samples(self.number.wrapping_add(page as u64))
                && self.set_queued(page)
            {
                // It would have come to a cache without the reaper, too.
                self.watch.queue(self, page);
            }
            return is_new;
        }
        let was_resident = self.pages[page].load(Ordering::Relaxed) & RESIDENT != 0;
        self.evict(page);
        was_resident
    }
}

impl Drop for Accesses {
    fn drop(&mut self) {
        self.watch.add_resident(-*self.counted.get_mut());
    }
}

/// Returns a page's byte after an access.
const fn warmer(seen: u8) -> u8 {
    let frequency = seen & FREQUENCY;
    let more = if frequency == FREQUENCY { 0 } else { 1 };
    (seen & !FREQUENCY) | (frequency + more)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 40;

    #[derive(Clone, Debug)]
    enum Event {
        Touch(usize),
        Evict(usize),
        Correct(usize, bool),
        Halve(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        let page = 0..PAGES;
        prop_oneof![
            4 => page.clone().prop_map(Event::Touch),
            1 => page.clone().prop_map(Event::Evict),
            1 => (page.clone(), any::<bool>()).prop_map(|(page, is)| Event::Correct(page, is)),
            1 => page.prop_map(Event::Halve),
        ]
    }

    proptest! {
        #[test]
        fn pages_are_as_frequent_and_as_many_as_an_oracle_says(
            events in prop::collection::vec(event(), 0..600),
        ) {
            let watch = Arc::new(Watch::default());
            let accesses = Arc::new(Accesses::new(PAGES as u64, 3, &watch));
            let mut oracle = [(0_u64, false); PAGES];
            let mut misses = 0;
            for event in events {
                match event {
                    Event::Touch(page) => {
                        accesses.touch(page);
                        let (frequency, is_resident) = &mut oracle[page];
                        misses += u64::from(!std::mem::replace(is_resident, true));
                        *frequency = (*frequency + 1).min(FREQUENCY.into());
                    }
                    Event::Evict(page) => {
                        accesses.evict(page);
                        oracle[page].1 = false;
                    }
                    Event::Correct(page, is_resident) => {
                        let before = std::mem::replace(&mut oracle[page].1, is_resident);
                        prop_assert_eq!(accesses.correct(page, is_resident), before != is_resident);
                    }
                    Event::Halve(page) => {
                        accesses.halve(page);
                        oracle[page].0 /= 2;
                    }
                }
            }
            for (page, (frequency, is_resident)) in oracle.into_iter().enumerate() {
                let expected = is_resident.then_some(frequency as usize);
                prop_assert_eq!(accesses.resident_frequency(page), expected);
            }
            let resident = oracle.iter().filter(|(_, is_resident)| *is_resident).count() as u64;
            prop_assert_eq!((watch.resident_pages(), watch.misses()), (resident, misses));
            drop(accesses);
            prop_assert_eq!(watch.resident_pages(), 0);
        }
    }

    #[test]
    fn accesses_beyond_the_last_page_are_nobodys() {
        let watch = Arc::new(Watch::default());
        let accesses = Arc::new(Accesses::new(1, 0, &watch));
        accesses.touch(1);
        assert_eq!((watch.misses(), watch.resident_pages()), (0, 0));
    }

    #[test]
    fn threads_that_touch_and_evict_at_once_leave_what_can_be_corrected() {
        let watch = Arc::new(Watch::default());
        let accesses = Arc::new(Accesses::new(PAGES as u64, 0, &watch));
        watch.set_cache_pages(PAGES as u64 / 2);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let accesses = &accesses;
                scope.spawn(move || {
                    (0..50_000).for_each(|at: usize| accesses.touch(at * (thread + 7) % PAGES));
                });
            }
            scope.spawn(|| (0..50_000).for_each(|at: usize| accesses.evict(at * 11 % PAGES)));
        });
        accesses.recount();
        let is_resident = |page: &usize| accesses.resident_frequency(*page).is_some();
        let resident = (0..PAGES).filter(is_resident).count() as u64;
        assert_eq!(watch.resident_pages(), resident);
        (0..PAGES).for_each(|page| accesses.evict(page));
        assert_eq!(watch.resident_pages(), 0);
    }
}
