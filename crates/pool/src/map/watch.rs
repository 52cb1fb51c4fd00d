//! Counts of all pages that are watched, and a sample of what would happen without the reaper.
//!
//! The kernel evicts pages of a mapping that is read here and there in the order in which they came
//! (`vma_has_recency`). One page in [`SAMPLED`] is also kept in a queue of that order, as long as such a cache of the
//! same size would be. Sampled pages that are accessed and are not in the queue are misses without the reaper; those
//! that are accessed and are not in memory are misses with it. The difference is the reaper's gain.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::accesses::Accesses;

/// Number of pages of which one is sampled.
pub(crate) const SAMPLED: u64 = 16;

/// Pages that leave the queue while it is locked once.
const PIECE_PAGES: usize = 256;

/// Misses of the sampled pages since the watch began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Misses {
    /// Pages that were accessed and not in memory.
    pub(crate) with: u64,
    /// Pages that were accessed and would not have been in memory without the reaper.
    pub(crate) without: u64,
}

/// Counts of the pages of all maps of a program.
#[derive(Debug)]
pub(crate) struct Watch {
    resident: AtomicI64,
    misses: AtomicU64,
    sampled_with: AtomicU64,
    sampled_without: AtomicU64,
    queue: Mutex<VecDeque<(Weak<Accesses>, usize)>>,
    queue_pages_max: AtomicUsize,
}

impl Default for Watch {
    fn default() -> Self {
        let (resident, misses) = (AtomicI64::new(0), AtomicU64::new(0));
        let (sampled_with, sampled_without) = (AtomicU64::new(0), AtomicU64::new(0));
        // Until somebody says how much memory there is, there is enough.
        let (queue, queue_pages_max) = (Mutex::default(), AtomicUsize::new(usize::MAX));
        Self { resident, misses, sampled_with, sampled_without, queue, queue_pages_max }
    }
}

impl Watch {
    /// Returns true for one in [`SAMPLED`] numbers, by a hash of it.
    pub(super) const fn samples(number: u64) -> bool {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SAMPLED.ilog2()) == 0
    }

    /// Returns the number of watched pages in memory, as far as is known.
    pub(crate) fn resident_pages(&self) -> u64 {
        u64::try_from(self.resident.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Returns the number of accesses to pages that were not in memory.
    pub(crate) fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Returns the misses of the sampled pages.
    pub(crate) fn sampled_misses(&self) -> Misses {
        Misses {
            with: self.sampled_with.load(Ordering::Relaxed),
            without: self.sampled_without.load(Ordering::Relaxed),
        }
    }

    /// Sets the size of a cache without the reaper, in pages. Pages that it has no room for leave it, in small pieces so
    /// that nobody who reads waits for long.
    pub(crate) fn set_cache_pages(&self, pages: u64) {
        let sampled = usize::try_from(pages / SAMPLED).unwrap_or(usize::MAX);
        self.queue_pages_max.store(sampled, Ordering::Relaxed);
        while self.shorten_queue(PIECE_PAGES) {}
    }

    /// Takes up to so many pages off the front of a queue that is too long. Returns true if it still is.
    fn shorten_queue(&self, pages: usize) -> bool {
        let pages_max = self.queue_pages_max.load(Ordering::Relaxed);
        let mut queue = self.lock_queue();
        for _ in 0..pages.min(queue.len().saturating_sub(pages_max)) {
            if let Some((accesses, page)) = queue.pop_front()
                && let Some(accesses) = accesses.upgrade()
            {
                accesses.leave_queue(page);
            }
        }
        queue.len() > pages_max
    }

    fn lock_queue(&self) -> MutexGuard<'_, VecDeque<(Weak<Accesses>, usize)>> {
        // A queue is whole between any two statements.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_resident(&self, pages: i64) {
        self.resident.fetch_add(pages, Ordering::Relaxed);
    }

    pub(super) fn count_miss(&self, is_sampled: bool) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.sampled_with.fetch_add(is_sampled.into(), Ordering::Relaxed);
    }

    /// Counts an access to a sampled page that would not be in memory without the reaper.
    pub(super) fn count_miss_without(&self) {
        self.sampled_without.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts a sampled page behind the queue; what the queue has no room for leaves it at the front.
    pub(super) fn queue(&self, accesses: &Arc<Accesses>, page: usize) {
        self.lock_queue().push_back((Arc::downgrade(accesses), page));
        self.shorten_queue(2);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    const PAGES: u64 = 4_000;
    const CACHE_PAGES: u64 = 1_000;

    #[test]
    fn sampled_misses_are_those_of_a_queue_of_the_sampled_pages() {
        let watch = Arc::new(Watch::default());
        watch.set_cache_pages(CACHE_PAGES);
        let accesses = Arc::new(Accesses::new(PAGES, 0, &watch));
        let (mut queue, mut is_queued) = (VecDeque::new(), HashSet::new());
        let (mut without, mut state) = (0, 1_u64);
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = (state >> 33) % PAGES;
            let page = page * page / PAGES;
            accesses.touch(page as usize);
            if Watch::samples(page) && is_queued.insert(page) {
                without += 1;
                queue.push_back(page);
                if queue.len() as u64 > CACHE_PAGES / SAMPLED {
                    is_queued.remove(&queue.pop_front().unwrap());
                }
            }
        }
        // Nothing was ever evicted: each page has missed once.
        let is_touched = |page: &u64| accesses.resident_frequency(*page as usize).is_some();
        let sampled = (0..PAGES).filter(|page| Watch::samples(*page));
        let with = sampled.filter(is_touched).count() as u64;
        assert_eq!(watch.sampled_misses(), Misses { with, without });
        assert!((150..250).contains(&with), "{with}");
    }

    #[test]
    fn objects_that_are_gone_leave_the_queue() {
        let watch = Arc::new(Watch::default());
        watch.set_cache_pages(10 * SAMPLED);
        for number in 0..20 {
            let accesses = Arc::new(Accesses::new(PAGES, number, &watch));
            (0..PAGES as usize).for_each(|page| accesses.touch(page));
        }
        assert_eq!(watch.resident_pages(), 0);
        assert!(watch.queue.lock().unwrap().len() <= 10);
    }
}
