//! The reaper's choice on a recorded trace, without any memory.

use std::sync::Arc;

use super::hand::{Hand, Watched};
use super::law::Law;
use crate::map::{Accesses, Temperature, Watch};

/// Part of the memory that goes at once where it is full.
const BATCH_PARTS: u64 = 100;

/// Pages of one object in so much memory: the very code that chooses pages in a program.
#[derive(Debug)]
pub struct Replay {
    watch: Arc<Watch>,
    accesses: Arc<Accesses>,
    hand: Hand,
    law: Law,
    memory_pages: u64,
}

impl Replay {
    /// Makes empty memory of `memory_pages` for an object of `pages`.
    #[must_use]
    pub fn new(pages: u64, memory_pages: u64) -> Self {
        let watch = Arc::new(Watch::default());
        let accesses = Arc::new(Accesses::new(pages, 0, &watch));
        watch.set_cache_pages(memory_pages);
        Self { watch, accesses, hand: Hand::default(), law: Law::default(), memory_pages }
    }

    /// Accesses a page, and evicts some if memory is full.
    pub fn access(&mut self, page: u64) {
        self.accesses.touch(page as usize);
        if self.watch.resident_pages() > self.memory_pages {
            let object = |_| Watched { accesses: &self.accesses, temperature: Temperature::Warm };
            let wanted = (self.memory_pages / BATCH_PARTS).max(1);
            // The first turn may only count.
            let seen_max = 3 * self.accesses.len() as u64;
            self.hand.pass(1, object, &self.law, wanted, seen_max);
        }
    }

    /// Returns the number of accesses to pages that were not in memory.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.watch.misses()
    }
}
