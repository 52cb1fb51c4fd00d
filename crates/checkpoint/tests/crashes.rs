//! Power that fails, and devices that do, at every operation: each checkpoint that was reported is whole,
//! none is half there, and nothing is left over.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bindery_checkpoint::{CheckpointError, CheckpointId, PageEncoding, Store, TouchedRun};
use bindery_units::PageIndex;
use common::simulated::Fault;
use common::{Memory, Rig, begin, check, checkpoint, content, describe, name, objects, range};

/// Checkpoints that the store must hold; of what was under way either outcome is right.
#[derive(Default)]
struct Model {
    made: BTreeMap<String, Memory>,
    /// Being made, or deleted, when the power or a device failed.
    under_way: BTreeMap<String, Memory>,
}

/// A rig whose root is compacted every few changes.
fn rig() -> Rig {
    let mut rig = Rig::new(8 << 20);
    rig.options.catalogue_bytes = 28 << 10;
    rig
}

fn memory(seed: u64) -> Memory {
    let pages = |block: u64, count: u64| {
        let page =
            move |page: u64| if page % 5 == 4 { 0 } else { seed * page / 3 + block * 100 + 1 };
        (0..count).map(page).collect()
    };
    vec![pages(0, 60), pages(1, 9)]
}

type Ended = Result<(), CheckpointError>;

impl Model {
    fn make(&mut self, store: &Store, called: &str, seed: u64, encoding: PageEncoding) -> Ended {
        let memory = memory(seed);
        self.under_way.insert(called.into(), memory.clone());
        checkpoint(store, ("web", "one", called), &memory, encoding)?;
        self.under_way.remove(called);
        self.made.insert(called.into(), memory);
        Ok(())
    }

    fn derive(&mut self, store: &Store, called: &str, base: &str) -> Ended {
        let mut memory = self.made[base].clone();
        let base = store.find(&name("web"), &name("one"), &name(base))?.id;
        memory[0][3] = 70_000;
        memory[0][40] = 0;
        self.under_way.insert(called.into(), memory.clone());
        let described = describe("web", "one", called, &memory);
        let mut writer = begin(store, described, Some(base), PageEncoding::Raw)?;
        writer.put(0, PageIndex(3), &content(70_000))?;
        writer.put(0, PageIndex(40), &content(0))?;
        writer.finish()?;
        self.under_way.remove(called);
        self.made.insert(called.into(), memory);
        Ok(())
    }

    fn delete(&mut self, store: &Store, called: &str) -> Ended {
        let id = store.find(&name("web"), &name("one"), &name(called))?.id;
        self.under_way.extend(self.made.remove(called).map(|memory| (called.into(), memory)));
        store.delete(id)?;
        self.under_way.remove(called);
        Ok(())
    }

    /// Compares with a store that was opened anew.
    fn check(&mut self, store: &Store) {
        let listed: BTreeMap<String, CheckpointId> =
            store.list().iter().map(|it| (it.name.to_string(), it.id)).collect();
        for (name, memory) in std::mem::take(&mut self.under_way) {
            if listed.contains_key(&name) {
                self.made.insert(name, memory);
            }
        }
        assert!(listed.keys().eq(self.made.keys()), "{:?}", listed.keys());
        for (name, memory) in &self.made {
            check(store, listed[name], memory);
        }
    }
}

/// Touches a restore's record, twice, so that one replaces the other.
fn touch(store: &Store, called: &str) -> Ended {
    let id = store.find(&name("web"), &name("one"), &name(called))?.id;
    for first in [3, 7] {
        let runs = [TouchedRun { block: 0, pages: range(first, 2) }];
        store.set_touched(id, &runs)?;
        assert_eq!(store.touched(id)?, runs);
    }
    Ok(())
}

fn live(store: &Store, model: &mut Model) -> Ended {
    store.open_domain(&name("web"), None)?;
    model.make(store, "a", 2, PageEncoding::Raw)?;
    model.derive(store, "b", "a")?;
    touch(store, "b")?;
    model.make(store, "c", 5, PageEncoding::Compressed)?;
    model.delete(store, "a")?;
    model.derive(store, "d", "b")?;
    model.delete(store, "c")?;
    model.delete(store, "b")
}

/// Opens the store after a crash, compares, goes on, and ends with nothing.
fn recover(rig: &Rig, model: &mut Model) {
    let store = rig.open();
    model.check(&store);
    store.open_domain(&name("web"), None).unwrap();
    model.make(&store, "z", 9, PageEncoding::Raw).unwrap();
    model.check(&store);
    drop(store);
    let store = rig.open();
    assert_eq!(store.collected(), 0, "one opening collects all");
    model.check(&store);
    store.list().iter().for_each(|summary| _ = store.delete(summary.id).unwrap());
    assert_eq!(objects(&store), []);
}

#[test]
fn a_crash_at_every_operation_leaves_whole_checkpoints() {
    let whole = rig();
    let before = whole.machine.operations();
    let store = whole.open();
    live(&store, &mut Model::default()).unwrap();
    drop(store);
    let operations = whole.machine.operations() - before;
    assert!(operations > 80, "{operations}");
    for at in 0..operations {
        for seed in 0..3 {
            let rig = rig();
            rig.machine.fail_power_after(at);
            let mut model = Model::default();
            if let Some(store) = rig.try_open() {
                // The last operations are those of closing.
                let _ = live(&store, &mut model);
            }
            rig.machine.restart(at << 4 | seed);
            recover(&rig, &mut model);
        }
    }
}

/// A crash while what a crash has left is collected.
#[test]
fn a_crash_while_opening_collects_leaves_it_to_the_next() {
    for at in 0..40 {
        let rig = rig();
        let mut model = Model::default();
        let store = rig.open();
        live(&store, &mut model).unwrap();
        let described = describe("web", "two", "half", &memory(3));
        let mut writer = begin(&store, described, None, PageEncoding::Raw).unwrap();
        for page in 0..50 {
            writer.put(0, PageIndex(page), &content(1 << 33 | u64::from(page))).unwrap();
        }
        // Packs are committed, the checkpoint is not.
        rig.machine.fail_power_after(0);
        drop(writer);
        drop(store);
        rig.machine.restart(at);
        rig.machine.fail_power_after(at);
        drop(rig.try_open());
        rig.machine.restart(at);
        recover(&rig, &mut model);
    }
}

/// Each operation of the device fails once; the process lives on, and then opens the pool again.
#[test]
fn a_device_that_fails_once_costs_at_most_what_was_under_way() {
    let whole = rig();
    let store = whole.open();
    let before = whole.machine.operations();
    live(&store, &mut Model::default()).unwrap();
    let operations = whole.machine.operations() - before;
    for fault in [Fault::Error, Fault::Full] {
        for at in 0..operations {
            let rig = rig();
            let store = rig.open();
            let mut model = Model::default();
            rig.machine.devices()[0].fail(at..at + 1, fault);
            if let Err(error) = live(&store, &mut model) {
                assert!(!error.to_string().is_empty());
                // What is said afterwards holds as well.
                let names: Vec<String> = model.made.keys().cloned().collect();
                names.iter().for_each(|name| _ = model.delete(&store, name));
                for (called, seed) in [("x", 11), ("y", 12)] {
                    let _ = model.make(&store, called, seed, PageEncoding::Raw);
                }
            }
            drop(store);
            rig.machine.devices()[0].mend();
            recover(&rig, &mut model);
        }
    }
}

/// A pool without room refuses the checkpoint, keeps the others, and takes the next once there is room.
#[test]
fn a_full_pool_refuses_and_keeps_the_rest() {
    let rig = Rig::new(3 << 20);
    let store = rig.open();
    store.open_domain(&name("web"), None).unwrap();
    let mut model = Model::default();
    model.make(&store, "a", 2, PageEncoding::Raw).unwrap();
    let noise = |from: u64| vec![(from..from + 400).map(|page| 1 << 40 | page << 1).collect()];
    let (refused, before) = (1..9)
        .find_map(|round| {
            let (called, before) = (format!("big{round}"), objects(&store));
            let guest = ("web", "two", &*called);
            let made = checkpoint(&store, guest, &noise(round << 20), PageEncoding::Raw);
            made.err().map(|error| (error, before))
        })
        .unwrap();
    assert!(matches!(refused, CheckpointError::Allocate(_)), "{refused}");
    assert_eq!(objects(&store), before);
    for summary in store.list().iter().filter(|summary| summary.guest == name("two")) {
        store.delete(summary.id).unwrap();
    }
    model.make(&store, "b", 5, PageEncoding::Raw).unwrap();
    model.check(&store);
}

/// A root that is full says so, and takes more when checkpoints were deleted.
#[test]
fn a_full_root_refuses_and_recovers() {
    let mut rig = Rig::new(16 << 20);
    rig.options.catalogue_bytes = 20 << 10;
    let store = rig.open();
    store.open_domain(&name("web"), None).unwrap();
    let memory = vec![vec![1, 2, 3]];
    let mut made = Vec::new();
    let refused = loop {
        let called = format!("n{}", made.len());
        match checkpoint(&store, ("web", "one", &called), &memory, PageEncoding::Raw) {
            Ok(summary) => made.push(summary.id),
            Err(error) => break error,
        }
        assert!(made.len() < 200);
    };
    assert!(matches!(refused, CheckpointError::RootFull(_)), "{refused}");
    assert_eq!(objects(&store).len(), made.len() + 1, "manifests, and one pack");
    let survivors = made.split_off(made.len() / 2);
    made.into_iter().for_each(|id| _ = store.delete(id).unwrap());
    checkpoint(&store, ("web", "one", "again"), &memory, PageEncoding::Raw).unwrap();
    drop(store);
    let store = rig.open();
    survivors.iter().for_each(|id| check(&store, *id, &memory));
}

/// Two checkpoints are written at once while a third, whose pages they share, is deleted.
#[test]
fn packs_stay_while_a_checkpoint_that_may_name_them_is_written() {
    let rig = Rig::new(16 << 20);
    let store = rig.open();
    store.open_domain(&name("web"), None).unwrap();
    let memory = memory(2);
    let first = checkpoint(&store, ("web", "one", "a"), &memory, PageEncoding::Raw).unwrap();
    let described = describe("web", "two", "b", &memory);
    let mut writer = begin(&store, described, Some(first.id), PageEncoding::Raw).unwrap();
    let other = describe("web", "three", "c", &memory);
    let other = begin(&store, other, None, PageEncoding::Raw).unwrap();
    let deleted = store.delete(first.id).unwrap();
    assert!(deleted.has_kept_packs && deleted.objects == 1);
    writer.put(0, PageIndex(0), &content(55_555)).unwrap();
    let second = writer.finish().unwrap();
    drop(other);
    let mut expected = memory;
    expected[0][0] = 55_555;
    check(&store, second.id, &expected);
    store.delete(second.id).unwrap();
    assert_eq!(objects(&store), []);
}

/// As above, but nothing names the packs in the end.
#[test]
fn packs_that_were_kept_go_with_the_last_writer() {
    let rig = Rig::new(16 << 20);
    let store = rig.open();
    store.open_domain(&name("web"), None).unwrap();
    let memory = memory(2);
    let first = checkpoint(&store, ("web", "one", "a"), &memory, PageEncoding::Raw).unwrap();
    let described = describe("web", "two", "b", &memory);
    let writer = begin(&store, described, Some(first.id), PageEncoding::Raw).unwrap();
    store.delete(first.id).unwrap();
    assert_ne!(objects(&store), []);
    drop(writer);
    assert_eq!(objects(&store), []);
    // And after a crash in between they go with the next opening.
    let second = checkpoint(&store, ("web", "one", "a"), &memory, PageEncoding::Raw).unwrap();
    let described = describe("web", "two", "b", &memory);
    let writer = begin(&store, described, Some(second.id), PageEncoding::Raw).unwrap();
    store.delete(second.id).unwrap();
    rig.machine.fail_power_after(0);
    drop((writer, store));
    rig.machine.restart(1);
    assert_eq!(objects(&rig.open()), []);
}

/// No checkpoint is made where the guest's memory could not be read.
#[test]
fn memory_that_cannot_be_read_makes_no_checkpoint() {
    let rig = Rig::new(8 << 20);
    let store = rig.open();
    store.open_domain(&name("web"), None).unwrap();
    let described = describe("web", "one", "a", &memory(2));
    let mut writer = begin(&store, described, None, PageEncoding::Raw).unwrap();
    let failed = writer.put_changed(0, [range(0, 60)], |_, _| Err(io::Error::other("gone")));
    assert!(matches!(failed, Err(CheckpointError::Memory(_))));
    assert!(matches!(writer.finish(), Err(CheckpointError::Unfinished)));
    assert!(store.list().is_empty());
    assert_eq!(objects(&store), []);
    assert!(Arc::strong_count(store.pool()) < 4, "nothing lingers");
}
