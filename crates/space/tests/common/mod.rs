//! A little daemon for tests: guest memory, a store, and the right to merge.
#![allow(dead_code, reason = "each test file uses what it needs")]

use std::{fs::File, os::unix::fs::FileExt, sync::Arc};

use bindery_space::{
    Space, Worker,
    wire::{
        control::{Region, StoreId},
        lane::{Run, outcome},
    },
};
use bindery_sys::{mapping::Mapping, memfd};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange, Slot};

/// The store's name in these tests.
pub(crate) const STORE: StoreId = StoreId(1);

/// Managed memory and a store beside it.
pub(crate) struct Bench {
    /// The space, one for each test process.
    pub(crate) space: Arc<Space>,
    /// Guest memory.
    pub(crate) memory: Mapping,
    /// What the space calls it.
    pub(crate) region: Region,
    /// The store's file, writable.
    pub(crate) store: File,
}

/// Whether this machine can manage memory at all; says so loudly if not.
#[must_use]
pub(crate) fn start() -> Option<Arc<Space>> {
    match Space::start() {
        Ok(space) => Some(space),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

impl Bench {
    /// `pages` pages of managed memory and a store of `slots` slots; nothing where the machine
    /// cannot.
    #[must_use]
    pub(crate) fn new(pages: usize, slots: u32) -> Option<Self> {
        let space = start()?;
        let memory = Mapping::anonymous(pages * PAGE_BYTES).expect("memory");
        let region = space.manage(memory.address(), memory.bytes()).expect("manage");
        let store =
            memfd::create("test-store", u64::from(slots) * PAGE_BYTES as u64).expect("memfd");
        let view = memfd::reopen_read_only(&store).expect("reopen");
        space.attach_store(STORE, view.into(), slots).expect("attach");
        Some(Self { space, memory, region, store })
    }

    /// As many slots as `pages` pages, all full of a word.
    #[must_use]
    pub(crate) fn full_of(pages: u32, word: u64) -> Option<Self> {
        let bench = Self::new(pages as usize, pages)?;
        for page in 0..pages {
            bench.fill(page, word);
            bench.fill_slot(Slot(page), word);
        }
        Some(bench)
    }

    /// The index of the memory's page `page`.
    #[must_use]
    pub(crate) fn page(&self, page: u32) -> PageIndex {
        self.region.pages.first.plus(page)
    }

    /// The address of the memory's page `page`.
    #[must_use]
    pub(crate) fn address(&self, page: u32) -> HostAddress {
        self.region.address.plus_pages(page)
    }

    /// The memory as words, to be read and written volatile.
    #[must_use]
    pub(crate) fn words(&self, page: u32) -> *mut u64 {
        self.address(page).0 as *mut u64
    }

    /// Fills a page with a word.
    pub(crate) fn fill(&self, page: u32, word: u64) {
        for at in 0..PAGE_BYTES / 8 {
            // SAFETY: the page is in the mapping.
            unsafe { self.words(page).add(at).write_volatile(word) };
        }
    }

    /// Whether a page is full of a word.
    #[must_use]
    pub(crate) fn holds(&self, page: u32, word: u64) -> bool {
        // SAFETY: the page is in the mapping.
        (0..PAGE_BYTES / 8).all(|at| unsafe { self.words(page).add(at).read_volatile() } == word)
    }

    /// Fills a slot with a word.
    pub(crate) fn fill_slot(&self, slot: Slot, word: u64) {
        let bytes = word.to_ne_bytes().repeat(PAGE_BYTES / 8);
        self.store.write_all_at(&bytes, slot.offset_bytes()).expect("store");
    }

    /// Merges consecutive pages with consecutive slots.
    pub(crate) fn merge(&self, worker: &mut Worker, page: u32, count: u32, slot: Slot) -> Vec<u8> {
        let mut outcomes = Vec::new();
        let run = Run { page: self.page(page).0, count, slot: slot.0, zero: 0 };
        worker.merge(STORE, &[run], &mut outcomes);
        outcomes
    }

    /// All managed pages.
    #[must_use]
    pub(crate) fn all(&self) -> PageRange {
        self.region.pages
    }
}

/// So many pages merged.
#[must_use]
pub(crate) fn merged(count: usize) -> Vec<u8> {
    vec![outcome::MERGED; count]
}
