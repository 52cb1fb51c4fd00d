//! Checkpoints of several guests in two domains, in chains, deleted in any order: each restores what the
//! memory was, and when all are gone nothing of them is left.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::collections::{BTreeMap, HashSet};

use bindery_checkpoint::{CheckpointId, PageEncoding, SecretKey, Store};
use bindery_units::{PAGE_BYTES, PageIndex};
use common::{Memory, Rig, begin, check, content, describe, name, objects, range};
use proptest::prelude::*;

/// Guests, and the domain of each.
const GUESTS: [(&str, &str); 3] = [("one", "web"), ("two", "web"), ("one", "mail")];

#[derive(Clone, Debug)]
enum Step {
    /// Pages of a guest become others, and a checkpoint is made of that.
    Checkpoint { guest: usize, writes: Vec<(usize, u32, u64)>, compressed: bool, grow: u8 },
    /// A checkpoint of those that there are is deleted.
    Delete(prop::sample::Index),
    /// The pool is opened anew.
    Reopen,
    /// A checkpoint is begun, and dropped.
    GiveUp(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few contents, so that pages are known, and not so few that all are.
    let write = (0..2_usize, 0..40_u32, prop_oneof![Just(0_u64), 1..30_u64, 1000..9000_u64]);
    let checkpoint = (0..GUESTS.len(), prop::collection::vec(write, 0..50), any::<bool>(), 0..8_u8);
    let checkpoint = checkpoint.prop_map(|(guest, writes, compressed, grow)| Step::Checkpoint {
        guest,
        writes,
        compressed,
        grow,
    });
    let step = prop_oneof![
        12 => checkpoint,
        4 => any::<prop::sample::Index>().prop_map(Step::Delete),
        1 => Just(Step::Reopen),
        1 => (0..GUESTS.len()).prop_map(Step::GiveUp),
    ];
    prop::collection::vec(step, 1..45)
}

/// The store, and what it should hold.
struct Life {
    rig: Rig,
    store: Option<Store>,
    key: SecretKey,
    memories: Vec<Memory>,
    last: Vec<Option<CheckpointId>>,
    made: BTreeMap<CheckpointId, (usize, Memory)>,
    count: u32,
}

impl Life {
    fn new() -> Self {
        let mut life = Self {
            rig: Rig::new(24 << 20),
            store: None,
            key: SecretKey::from_bytes([5; 32]),
            memories: vec![vec![vec![0; 40], vec![0; 12]]; GUESTS.len()],
            last: vec![None; GUESTS.len()],
            made: BTreeMap::new(),
            count: 0,
        };
        life.reopen();
        life
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        let store = self.rig.open();
        assert_eq!(store.collected(), 0, "nothing crashed");
        store.open_domain(&name("web"), None).unwrap();
        store.open_domain(&name("mail"), Some(&self.key)).unwrap();
        self.store = Some(store);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Checkpoint { guest, writes, compressed, grow } => {
                let encoding =
                    if *compressed { PageEncoding::Compressed } else { PageEncoding::Raw };
                self.grow(*guest, *grow);
                let dirty = self.write(*guest, writes);
                self.checkpoint(*guest, &dirty, encoding);
            }
            Step::Delete(which) => {
                let ids: Vec<_> = self.made.keys().copied().collect();
                if !ids.is_empty() {
                    self.delete(*which.get(&ids));
                }
            }
            Step::Reopen => self.reopen(),
            Step::GiveUp(guest) => self.give_up(*guest),
        }
    }

    /// Makes a block longer or shorter now and then, as hot-plugging does.
    fn grow(&mut self, guest: usize, grow: u8) {
        match grow {
            0 => self.memories[guest][1].resize(20, 0),
            1 => self.memories[guest][1].truncate(7),
            _ => {}
        }
    }

    fn write(&mut self, guest: usize, writes: &[(usize, u32, u64)]) -> Vec<(usize, u32)> {
        let mut dirty = Vec::new();
        for &(block, page, number) in writes {
            if let Some(page_of) = self.memories[guest][block].get_mut(page as usize) {
                *page_of = number;
                dirty.push((block, page));
            }
        }
        dirty
    }

    fn checkpoint(&mut self, guest: usize, dirty: &[(usize, u32)], encoding: PageEncoding) {
        let (domain, memory) = (GUESTS[guest].1, self.memories[guest].clone());
        self.count += 1;
        let description = describe(domain, GUESTS[guest].0, &format!("n{}", self.count), &memory);
        let base = self.last[guest];
        let mut writer = begin(self.store(), description, base, encoding).unwrap();
        let read = |block: usize| {
            let memory = &memory[block];
            move |pages: bindery_units::PageRange, into: &mut [u8]| {
                for (page, into) in pages.pages().zip(into.chunks_mut(PAGE_BYTES)) {
                    into.copy_from_slice(&content(memory[page.0 as usize]));
                }
                Ok(())
            }
        };
        for &(block, page) in dirty {
            writer.put_changed(block, [range(page, 1)], read(block)).unwrap();
            if memory[block][page as usize] == 0 {
                // What was put before counts no more.
                writer.put(block, PageIndex(page), &content(1 << 41)).unwrap();
                writer.put_zeros(block, range(page, 1)).unwrap();
            }
        }
        if base.is_none() {
            for (block, pages) in memory.iter().enumerate() {
                let all = range(0, pages.len() as u32);
                writer.put_zeros(block, all).unwrap();
                writer.put_changed(block, [all], read(block)).unwrap();
            }
        }
        let summary = writer.finish().unwrap();
        assert!(summary.new_pages <= summary.stored_pages + 2 * dirty.len() as u64);
        self.last[guest] = Some(summary.id);
        self.made.insert(summary.id, (guest, memory));
    }

    fn give_up(&mut self, guest: usize) {
        let before = objects(self.store());
        let memory = &self.memories[guest];
        let description = describe(GUESTS[guest].1, GUESTS[guest].0, "given-up", memory);
        let mut writer = begin(self.store(), description, None, PageEncoding::Raw).unwrap();
        let noise: Vec<u8> = (0..40).flat_map(|page| content(1 << 40 | page << 1)).collect();
        writer.put(0, PageIndex(0), &noise[..memory[0].len() * PAGE_BYTES]).unwrap();
        drop(writer);
        assert_eq!(objects(self.store()), before);
    }

    fn delete(&mut self, id: CheckpointId) {
        let (guest, _) = self.made.remove(&id).unwrap();
        let before = objects(self.store()).len() as u64;
        let deleted = self.store().delete(id).unwrap();
        assert_eq!(objects(self.store()).len() as u64 + deleted.objects, before);
        if self.last[guest] == Some(id) {
            // What changed since is not known any more.
            self.last[guest] = None;
        }
    }

    fn check(&self) {
        let listed: Vec<_> = self.store().list().iter().map(|summary| summary.id).collect();
        assert!(listed.iter().eq(self.made.keys()));
        for (id, (_, memory)) in &self.made {
            check(self.store(), *id, memory);
        }
        self.check_domains();
    }

    /// No pack is named in two domains.
    fn check_domains(&self) {
        let mut packs = [HashSet::new(), HashSet::new()];
        for (id, (guest, _)) in &self.made {
            let domain = usize::from(GUESTS[*guest].1 == "mail");
            packs[domain].extend(self.store().manifest(*id).unwrap().packs);
        }
        assert!(packs[0].is_disjoint(&packs[1]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_checkpoint_restores_what_memory_was(steps in steps()) {
        let mut life = Life::new();
        for step in &steps {
            life.step(step);
        }
        life.check();
        life.reopen();
        life.check();
        let ids: Vec<_> = life.made.keys().copied().collect();
        for id in ids {
            life.delete(id);
            life.check_domains();
        }
        prop_assert_eq!(objects(life.store()), []);
        life.reopen();
        prop_assert_eq!(objects(life.store()), []);
    }
}

/// The chain of one guest, long and incremental, with the middle taken out.
#[test]
fn thirty_checkpoints_in_a_chain_need_none_of_each_other() {
    let mut life = Life::new();
    for round in 0..30_u64 {
        let dirty: Vec<_> = (0..5)
            .map(|at| (0, ((round * 7 + at * 3) % 40) as u32, 2000 + round * 10 + at))
            .collect();
        let step =
            Step::Checkpoint { guest: 0, writes: dirty, compressed: round % 2 == 1, grow: 9 };
        life.step(&step);
    }
    life.check();
    let ids: Vec<_> = life.made.keys().copied().collect();
    ids.iter().filter(|id| id.0 % 3 != 2).for_each(|id| life.delete(*id));
    life.check();
    life.reopen();
    life.check();
}
