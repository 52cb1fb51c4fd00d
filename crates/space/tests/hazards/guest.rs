//! A guest and its daemon, in miniature: what each page holds, and what the daemon believes.

use std::{collections::BTreeMap, os::fd::AsFd};

use bindery_space::Worker;
use bindery_sys::mapping::Mapping;
use bindery_units::{PAGE_BYTES, Slot};
use bindery_wire::lane::{MergedSpan, PageOutcome};

use crate::{
    common::{Bench, STORE},
    plan::Plan,
};

/// What a slot that nobody maps is overwritten with: a page that depends on it shows.
const GARBAGE: u64 = 0xdead_dead_dead_dead;

/// What came of a life.
pub(crate) type Lived = Result<(), Box<dyn std::error::Error>>;

/// Managed memory whose every byte is known.
pub(crate) struct Guest {
    pub(crate) bench: Bench,
    /// The word that each page is full of.
    pub(crate) holds: Vec<u64>,
    /// Which slot the daemon believes that each page is merged with.
    believed: BTreeMap<u32, u32>,
    /// The store as the daemon maps it: its writes are not the calls that are to fail.
    slots: Mapping,
}

impl Guest {
    pub(crate) fn new(pages: u32, slots: u32) -> Option<Self> {
        let bench = Bench::new(pages as usize, slots)?;
        let bytes = slots as usize * PAGE_BYTES;
        let slots = Mapping::shared(bench.store.as_fd(), bytes, true).expect("the store");
        Some(Self { bench, holds: vec![0; pages as usize], believed: BTreeMap::new(), slots })
    }

    fn fill_slot(&self, slot: u32, word: u64) {
        for at in 0..PAGE_BYTES / 8 {
            let at = slot as usize * PAGE_BYTES / 8 + at;
            // SAFETY: the slot is in the mapping.
            unsafe { self.slots.as_ptr().cast::<u64>().add(at).write_volatile(word) };
        }
    }

    /// The word that a slot is to hold for pages that are merged with it.
    pub(crate) fn word_of_slot(slot: u32) -> u64 {
        u64::from(slot % 256) + 1
    }

    pub(crate) fn fill_slots(&self) {
        for slot in 0..(self.slots.bytes() / PAGE_BYTES) as u32 {
            self.fill_slot(slot, Self::word_of_slot(slot));
        }
    }

    /// A life in which the plan has the `nth` call fail, and those after it, `times` in all. Whether
    /// one failed, and what came of it; every byte is as it is to be.
    pub(crate) fn suffer(
        &mut self,
        plan: &Plan,
        (nth, times): (u64, u64),
        live: impl FnOnce(&mut Self) -> Lived,
    ) -> (bool, Lived) {
        self.fill_slots();
        plan.arm(nth, times);
        let lived = live(self);
        let failed = plan.disarm();
        assert!(failed || lived.is_ok(), "nothing failed, but {lived:?}");
        self.verify("at the end");
        (failed, lived)
    }

    pub(crate) fn write(&mut self, page: u32, word: u64) {
        self.bench.fill(page, word);
        self.holds[page as usize] = word;
    }

    /// Every byte of every page.
    pub(crate) fn verify(&self, when: &str) {
        for (page, &word) in (0..).zip(&self.holds) {
            if !self.bench.holds(page, word) {
                // SAFETY: the page is in the mapping.
                let found = unsafe { self.bench.words(page).read_volatile() };
                panic!("{when}: page {page} is to hold {word:#x} and begins with {found:#x}");
            }
        }
    }

    /// Merges pages with slots, and believes what is answered.
    pub(crate) fn merge(
        &mut self,
        worker: &mut Worker,
        page: u32,
        count: u32,
        slot: u32,
    ) -> Vec<PageOutcome> {
        let outcomes = self.bench.merge(worker, page, count, Slot(slot));
        for (offset, &outcome) in (0..).zip(&outcomes) {
            if outcome == PageOutcome::Merged
                && let Some(before) = self.believed.insert(page + offset, slot + offset)
            {
                self.slot_is_free(before);
            }
        }
        outcomes
    }

    /// Hears of pages that left their slots.
    pub(crate) fn hear(&mut self, worker: &mut Worker) {
        let mut lost = Vec::new();
        loop {
            let room = lost.len() + 64;
            if !worker.lost(&mut lost, room) {
                break;
            }
        }
        for lost in lost {
            let page = lost.page - self.bench.page(0).0;
            if self.believed.get(&page) == Some(&lost.slot) {
                self.believed.remove(&page);
                self.slot_is_free(lost.slot);
            }
        }
    }

    /// Nothing is mapped that the daemon does not know of.
    pub(crate) fn believes_what_is(&self, worker: &Worker, when: &str) {
        let mut spans: Vec<MergedSpan> = Vec::new();
        assert_eq!(worker.report(self.bench.all(), &mut spans, 100_000), None);
        for span in spans {
            assert_eq!(span.store, u32::from(STORE.0), "{when}");
            for offset in 0..span.count {
                let page = span.page + offset - self.bench.page(0).0;
                let slot = self.believed.get(&page);
                assert_eq!(slot, Some(&(span.slot + offset)), "{when}: page {page}");
            }
        }
    }

    /// The daemon forgets all, as the memory is managed no more.
    pub(crate) fn believes_nothing(&mut self) {
        for slot in std::mem::take(&mut self.believed).into_values() {
            self.slot_is_free(slot);
        }
    }

    fn slot_is_free(&self, slot: u32) {
        if !self.believed.values().any(|&used| used == slot) {
            self.fill_slot(slot, GARBAGE);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.holds.len() * PAGE_BYTES
    }
}
