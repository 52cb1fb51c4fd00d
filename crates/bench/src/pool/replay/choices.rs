//! Choices of pages, each of which is asked whether a page is in memory, and takes it in if not.

use std::collections::{BTreeSet, HashMap, VecDeque};

use bindery_pool::reaper::Replay;
use clap::ValueEnum;
use serde::Serialize;

/// Choices of the pages that go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// First in, first out: the kernel's for a mapping that is read here and there
    Fifo,
    /// Least recently used
    Lru,
    /// S3-FIFO (Yang et al., SOSP 2023)
    S3Fifo,
    /// W-TinyLFU (Einziger et al., ACM TOS 2017), by the library moka
    WTinylfu,
    /// The reaper's own code
    Reaper,
    /// The page that is accessed again last, known from the future (Belady)
    Optimum,
}

impl Choice {
    /// Returns how many accesses miss from the position `counted_from` on.
    pub(super) fn misses(
        self,
        trace: &[u32],
        pages: u64,
        memory: usize,
        counted_from: usize,
    ) -> u64 {
        let mut missed = self.missed(trace, pages, memory);
        let mut count = 0;
        for (at, page) in trace.iter().enumerate() {
            count += u64::from(missed(at, *page) && at >= counted_from);
        }
        count
    }

    fn missed(
        self,
        trace: &[u32],
        pages: u64,
        memory: usize,
    ) -> Box<dyn FnMut(usize, u32) -> bool> {
        match self {
            Self::Fifo => {
                let mut cache = Fifo::new(pages, memory);
                Box::new(move |_, page| cache.misses(page))
            }
            Self::Lru => {
                let mut cache = ByOrder::new(pages, memory);
                Box::new(move |at, page| cache.misses(page, at as u64 + 1))
            }
            Self::S3Fifo => {
                let mut cache = S3Fifo::new(pages, memory);
                Box::new(move |_, page| cache.misses(page))
            }
            Self::WTinylfu => {
                let cache = moka::sync::Cache::builder().max_capacity(memory as u64).build();
                Box::new(move |at, page| {
                    let is_missed = cache.get(&page).is_none();
                    if is_missed {
                        cache.insert(page, ());
                    }
                    if at % 64 == 0 {
                        cache.run_pending_tasks();
                    }
                    is_missed
                })
            }
            Self::Reaper => {
                let mut replay = Replay::new(pages, memory as u64);
                Box::new(move |_, page| {
                    let before = replay.misses();
                    replay.access(page.into());
                    replay.misses() > before
                })
            }
            Self::Optimum => {
                let next = next_accesses(trace);
                let mut cache = ByOrder::new(pages, memory);
                // The first to go is the last to be accessed.
                Box::new(move |at, page| cache.misses(page, u64::MAX - next[at]))
            }
        }
    }
}

/// Returns when the page of each access is accessed again.
fn next_accesses(trace: &[u32]) -> Vec<u64> {
    let mut seen = HashMap::new();
    let mut next = vec![u64::MAX; trace.len()];
    for (at, page) in trace.iter().enumerate().rev() {
        if let Some(later) = seen.insert(*page, at as u64) {
            next[at] = later;
        }
    }
    next
}

struct Fifo {
    is_there: Vec<bool>,
    queue: VecDeque<u32>,
    memory: usize,
}

impl Fifo {
    fn new(pages: u64, memory: usize) -> Self {
        Self { is_there: vec![false; pages as usize], queue: VecDeque::new(), memory }
    }

    fn misses(&mut self, page: u32) -> bool {
        if std::mem::replace(&mut self.is_there[page as usize], true) {
            return false;
        }
        self.queue.push_back(page);
        if self.queue.len() > self.memory
            && let Some(gone) = self.queue.pop_front()
        {
            self.is_there[gone as usize] = false;
        }
        true
    }
}

/// Pages by a number, of which the least goes.
struct ByOrder {
    order_of: Vec<u64>,
    order: BTreeSet<(u64, u32)>,
    memory: usize,
}

impl ByOrder {
    fn new(pages: u64, memory: usize) -> Self {
        Self { order_of: vec![0; pages as usize], order: BTreeSet::new(), memory }
    }

    fn misses(&mut self, page: u32, order: u64) -> bool {
        let before = std::mem::replace(&mut self.order_of[page as usize], order);
        let was_there = self.order.remove(&(before, page));
        if !was_there && self.order.len() == self.memory {
            self.order.pop_first();
        }
        self.order.insert((order, page));
        !was_there
    }
}

/// Part of the memory that S3-FIFO keeps for what came last.
const SMALL_PARTS: usize = 10;

/// The highest frequency that S3-FIFO tells apart.
const S3_FREQUENCY_MAX: u8 = 3;

struct S3Fifo {
    frequency: Vec<u8>,
    is_there: Vec<bool>,
    is_ghost: Vec<bool>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: VecDeque<u32>,
    memory: usize,
}

impl S3Fifo {
    fn new(pages: u64, memory: usize) -> Self {
        let pages = pages as usize;
        Self {
            frequency: vec![0; pages],
            is_there: vec![false; pages],
            is_ghost: vec![false; pages],
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            memory,
        }
    }

    fn misses(&mut self, page: u32) -> bool {
        let at = page as usize;
        if self.is_there[at] {
            self.frequency[at] = (self.frequency[at] + 1).min(S3_FREQUENCY_MAX);
            return false;
        }
        while self.small.len() + self.main.len() >= self.memory {
            self.evict();
        }
        self.is_there[at] = true;
        self.frequency[at] = 0;
        let was_ghost = std::mem::take(&mut self.is_ghost[at]);
        let queue = if was_ghost { &mut self.main } else { &mut self.small };
        queue.push_back(page);
        true
    }

    fn evict(&mut self) {
        if self.small.len() > self.memory / SMALL_PARTS || self.main.is_empty() {
            self.evict_small();
        } else {
            self.evict_main();
        }
    }

    fn evict_small(&mut self) {
        while let Some(page) = self.small.pop_front() {
            let at = page as usize;
            if self.frequency[at] > 1 {
                self.frequency[at] = 0;
                self.main.push_back(page);
                continue;
            }
            self.is_there[at] = false;
            self.is_ghost[at] = true;
            self.ghosts.push_back(page);
            if self.ghosts.len() > self.memory
                && let Some(forgotten) = self.ghosts.pop_front()
            {
                self.is_ghost[forgotten as usize] = false;
            }
            return;
        }
    }

    fn evict_main(&mut self) {
        while let Some(page) = self.main.pop_front() {
            let at = page as usize;
            if self.frequency[at] > 0 {
                self.frequency[at] -= 1;
                self.main.push_back(page);
                continue;
            }
            self.is_there[at] = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses(choice: Choice, trace: &[u32]) -> u64 {
        choice.misses(trace, 10, 2, 0)
    }

    #[test]
    fn each_choice_misses_what_its_definition_says() {
        // With room for two: 1 and 2 come, 1 again, then 3.
        let trace = [1, 2, 1, 3, 1, 2];
        assert_eq!(misses(Choice::Fifo, &trace), 5);
        assert_eq!(misses(Choice::Lru, &trace), 4);
        assert_eq!(misses(Choice::S3Fifo, &trace), 5);
        assert_eq!(misses(Choice::Optimum, &trace), 4);
        assert_eq!(misses(Choice::Optimum, &[1, 2, 3, 1, 2, 3]), 4);
    }

    #[test]
    fn nobody_misses_less_than_the_optimum_and_all_miss_each_page_once() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32
        };
        let trace: Vec<u32> = (0..20_000).map(|_| (random() % 100).min(random() % 100)).collect();
        let of = |choice: Choice| choice.misses(&trace, 100, 20, 0);
        let optimum = of(Choice::Optimum);
        for choice in [Choice::Fifo, Choice::Lru, Choice::S3Fifo, Choice::WTinylfu, Choice::Reaper]
        {
            assert!(of(choice) > optimum, "{choice:?}");
            assert_eq!(choice.misses(&trace, 100, 100, 0), 100, "{choice:?}");
        }
    }
}
