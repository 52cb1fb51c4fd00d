//! The memory of a process that is a guest: what each page holds follows from a few numbers.

use std::io;

use bindery_sys::mapping::Mapping;
use bindery_units::PAGE_BYTES;

use super::Verified;
use crate::guest_memory::GuestMemory;
use content::PageState;
pub(super) use content::Random;

#[expect(dead_code, reason = "what only the program inside guests needs")]
#[path = "../bin/guest_agent/content.rs"]
mod content;

/// Versions of a page: few, so that contents come back and are merged again.
const VERSIONS: u64 = 16;

/// Pages written or verified between two pauses.
const BATCH: usize = 16;

pub(super) struct Memory {
    pages: GuestMemory,
    states: Vec<PageState>,
    seed: u64,
    random: Random,
    verified: Verified,
}

impl Memory {
    /// Fills `pages` pages. They begin where regions that are managed may begin.
    pub(super) fn filled(pages: usize, seed: u64) -> io::Result<Self> {
        let mut memory = Self {
            pages: GuestMemory::over(Mapping::anonymous_aligned(pages * PAGE_BYTES)?),
            states: vec![PageState::default(); pages],
            seed,
            random: Random::new(seed),
            verified: Verified { pages: 0, bad: 0 },
        };
        // The same in all guests.
        let mut versions = Random::new(0);
        for page in 0..pages {
            memory.write(page, PageState { version: versions.next() % VERSIONS, stamp: 0 });
        }
        Ok(memory)
    }

    /// Pages to offer, or to give to machines that have all of them to themselves from now on.
    pub(super) const fn pages(&self) -> &GuestMemory {
        &self.pages
    }

    pub(super) const fn seed(&self) -> u64 {
        self.seed
    }

    /// Writes and verifies a few pages.
    pub(super) fn churn(&mut self) {
        for _ in 0..BATCH {
            let page = self.random.below(self.states.len());
            match self.random.below(4) {
                0 => {
                    let version = self.random.next() % VERSIONS;
                    self.write(page, PageState { version, stamp: 0 });
                }
                1 => self.stamp(page),
                _ => self.verify(page),
            }
        }
    }

    /// Verifies all pages; returns the figures so far.
    pub(super) fn verify_all(&mut self) -> Verified {
        (0..self.states.len()).for_each(|page| self.verify(page));
        self.verified
    }

    fn write(&mut self, page: usize, state: PageState) {
        self.states[page] = state;
        let mut content = [0; PAGE_BYTES];
        state.fill(self.seed, page as u64, &mut content);
        self.pages.page_mut(page).copy_from_slice(std::hint::black_box(&content));
    }

    /// Writes one word: the first write to a page that may be merged.
    fn stamp(&mut self, page: usize) {
        let state = PageState { stamp: self.random.next() | 1, ..self.states[page] };
        if self.states[page].stamp != 0 {
            return self.write(page, PageState { stamp: 0, ..state });
        }
        self.states[page] = state;
        let at = state.stamp_offset();
        self.pages.page_mut(page)[at..at + 8].copy_from_slice(&state.stamp.to_le_bytes());
    }

    fn verify(&mut self, page: usize) {
        let mut expected = [0; PAGE_BYTES];
        self.states[page].fill(self.seed, page as u64, &mut expected);
        self.verified.pages += 1;
        if let Some(at) = self.pages.first_difference(page, &expected) {
            self.verified.bad += 1;
            eprintln!("page {page} byte {at} is not what was written: {:?}", self.states[page]);
        }
    }
}
