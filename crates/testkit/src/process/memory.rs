//! The memory of a process that is a guest: what each page holds follows from a few numbers.

use std::io;

use bindery_units::PAGE_BYTES;

use super::Verified;
use content::PageState;
pub(super) use content::Random;

#[expect(dead_code, reason = "what only the program inside guests needs")]
#[path = "../bin/guest_agent/content.rs"]
mod content;

/// Regions that are managed begin and end at multiples of this.
const ALIGNMENT: usize = 512 * PAGE_BYTES;

/// Versions of a page: few, so that contents come back and are merged again.
const VERSIONS: u64 = 16;

/// Pages written or verified between two pauses.
const BATCH: usize = 16;

pub(super) struct Memory {
    /// The block, and where the pages begin in it.
    block: Vec<u8>,
    offset: usize,
    states: Vec<PageState>,
    seed: u64,
    random: Random,
    verified: Verified,
}

impl Memory {
    /// Fills `pages` pages.
    pub(super) fn filled(pages: usize, seed: u64) -> Self {
        let block = vec![0_u8; pages * PAGE_BYTES + ALIGNMENT];
        let offset = block.as_ptr().align_offset(ALIGNMENT);
        let mut memory = Self {
            block,
            offset,
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
        memory
    }

    pub(super) fn address(&self) -> usize {
        self.block[self.offset..].as_ptr().addr()
    }

    /// Where the pages are, for whoever has all of them to itself from now on.
    pub(super) fn give_away(&mut self) -> usize {
        self.block[self.offset..].as_mut_ptr().expose_provenance()
    }

    pub(super) fn pages(&self) -> usize {
        self.states.len()
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Offers all pages for merging, as a VMM would: by the symbol that a preload library takes.
    pub(super) fn offer(&self) -> io::Result<()> {
        let address = self.block[self.offset..].as_ptr().cast_mut().cast();
        let bytes = self.states.len() * PAGE_BYTES;
        // SAFETY: the advice changes no content of this block, which is ours.
        let result = unsafe { libc::madvise(address, bytes, libc::MADV_MERGEABLE) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
        self.page_mut(page).copy_from_slice(std::hint::black_box(&content));
    }

    /// Writes one word: the first write to a page that may be merged.
    fn stamp(&mut self, page: usize) {
        let state = PageState { stamp: self.random.next() | 1, ..self.states[page] };
        if self.states[page].stamp != 0 {
            return self.write(page, PageState { stamp: 0, ..state });
        }
        self.states[page] = state;
        let at = state.stamp_offset();
        self.page_mut(page)[at..at + 8].copy_from_slice(&state.stamp.to_le_bytes());
    }

    fn verify(&mut self, page: usize) {
        let mut expected = [0; PAGE_BYTES];
        self.states[page].fill(self.seed, page as u64, &mut expected);
        let found = std::hint::black_box(&*self.page_mut(page));
        let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
        self.verified.pages += 1;
        if let Some(at) = wrong {
            self.verified.bad += 1;
            eprintln!("page {page} byte {at} is not what was written: {:?}", self.states[page]);
        }
    }

    fn page_mut(&mut self, page: usize) -> &mut [u8] {
        &mut self.block[self.offset + page * PAGE_BYTES..][..PAGE_BYTES]
    }
}
