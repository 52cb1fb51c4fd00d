//! A damaged byte, wherever it is: what it belongs to is named, and all else is read as it was.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::ops::Range;

use bindery_checkpoint::{
    CheckpointError, CheckpointSummary, Manifest, MemoryBlock, PageEncoding, SecretKey, Store,
};
use bindery_pool::ObjectId;
use bindery_pool::format::record::ObjectEntry;
use bindery_units::{PAGE_BYTES, PageIndex};
use common::{Memory, Rig, check, checkpoint, content, describe, name};

/// Pages that compress and pages that do not, and zeros.
fn memory() -> Memory {
    let page = |page: u64| match page % 7 {
        6 => 0,
        _ if (16..32).contains(&page) => 3000 + page * 2,
        _ => 1001 + page * 2,
    };
    vec![(0..70).map(page).collect()]
}

fn made(key: Option<&SecretKey>, encoding: PageEncoding) -> (Rig, CheckpointSummary) {
    let rig = Rig::new(8 << 20);
    let store = rig.open();
    store.open_domain(&name("web"), key).unwrap();
    let summary = checkpoint(&store, ("web", "one", "a"), &memory(), encoding).unwrap();
    (rig, summary)
}

/// Returns the place of an object's bytes on the device.
fn place(store: &Store, id: ObjectId) -> Range<u64> {
    let entries = store.pool().list();
    let entry = entries.into_iter().find(|entry| entry.id() == id).unwrap();
    let ObjectEntry::Mblock(entry) = entry else { panic!("{entry:?} is no mblock") };
    entry.data.offset_bytes..entry.data.offset_bytes + entry.length_bytes
}

/// Returns the pages that cannot be read, each of which the error names.
fn damaged_pages(store: &Store, summary: &CheckpointSummary) -> Vec<u32> {
    let reader = store.reader(summary.id).unwrap();
    let mut damaged = Vec::new();
    for (page, number) in (0..).zip(&memory()[0]) {
        let mut bytes = [0; PAGE_BYTES];
        match reader.read(0, PageIndex(page), &mut bytes) {
            Ok(()) => assert!(bytes == content(*number), "page {page}"),
            Err(CheckpointError::Page { page: PageIndex(named), block, checkpoint, .. }) => {
                assert_eq!((named, &*block, &*checkpoint), (page, "block0", "one@a"));
                damaged.push(page);
            }
            Err(error) => panic!("{error}"),
        }
    }
    damaged
}

#[test]
fn a_damaged_byte_of_a_pack_costs_its_readers_alone() {
    let key = SecretKey::from_bytes([8; 32]);
    for key in [None, Some(&key)] {
        for encoding in [PageEncoding::Raw, PageEncoding::Compressed] {
            let (rig, summary) = made(key, encoding);
            let store = rig.open();
            store.open_domain(&name("web"), key).unwrap();
            let manifest = store.manifest(summary.id).unwrap();
            assert!(manifest.packs.len() > 1);
            let place = place(&store, manifest.packs[0]);
            let mut least = usize::MAX;
            for at in place.step_by(1031) {
                rig.machine.devices()[0].flip(at, 3);
                let damaged = damaged_pages(&store, &summary);
                // A pack has 24 pages at most here.
                assert!(damaged.len() <= 24, "{damaged:?}");
                least = least.min(damaged.len().max(1));
                let report = store.verify(summary.id).unwrap();
                let runs = report.damaged.iter().flat_map(|run| run.pages.pages());
                assert!(runs.map(|page| page.0).eq(damaged.iter().copied()), "{report:?}");
                rig.machine.devices()[0].flip(at, 3);
            }
            assert_eq!(least, 1, "one page may be damaged alone");
            check(&store, summary.id, &memory());
        }
    }
}

#[test]
fn a_run_with_a_damaged_page_names_it_and_gives_those_before() {
    let (rig, summary) = made(None, PageEncoding::Raw);
    let store = rig.open();
    let reader = store.reader(summary.id).unwrap();
    let mappable = reader.mappable(0, PageIndex(4)).unwrap().unwrap();
    let object = place(&store, mappable.object.id());
    rig.machine.devices()[0].flip(object.start + mappable.offset_bytes + 5, 0);
    let mut bytes = vec![0; 10 * PAGE_BYTES];
    let error = reader.read(0, PageIndex(0), &mut bytes).unwrap_err();
    let CheckpointError::Page { page, .. } = error else { panic!("{error}") };
    assert_eq!(page, PageIndex(4));
    for (page, bytes) in bytes.chunks(PAGE_BYTES).take(4).enumerate() {
        assert!(bytes == content(memory()[0][page]));
    }
}

/// Pages that verification found damaged are stored anew when they come again.
#[test]
fn damaged_pages_are_not_known_once_they_were_found() {
    let (rig, summary) = made(None, PageEncoding::Raw);
    let store = rig.open();
    let noise = checkpoint(&store, ("web", "two", "b"), &memory(), PageEncoding::Raw).unwrap();
    assert_eq!(noise.new_pages, 0, "all is known");
    let packs = store.manifest(summary.id).unwrap().packs;
    rig.machine.devices()[0].flip(place(&store, packs[0]).start + 4096 + 17, 0);
    assert!(!store.verify(summary.id).unwrap().is_whole());
    let again = checkpoint(&store, ("web", "two", "c"), &memory(), PageEncoding::Raw).unwrap();
    assert_eq!(again.new_pages, 1);
    check(&store, again.id, &memory());
}

#[test]
fn a_damaged_manifest_is_named_and_deletes_no_pack() {
    let (rig, summary) = made(None, PageEncoding::Raw);
    let store = rig.open();
    let second = vec![vec![1_u64 << 41, 9, 9]];
    let second = checkpoint(&store, ("web", "two", "b"), &second, PageEncoding::Raw).unwrap();
    for at in place(&store, summary.manifest).step_by(97) {
        rig.machine.devices()[0].flip(at, 5);
        let error = store.reader(summary.id).unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { what: "manifest", .. }), "{error}");
        assert!(error.to_string().contains("one@a"), "{error}");
        rig.machine.devices()[0].flip(at, 5);
    }
    // Nobody knows any more what it names: so nothing that it may need goes.
    drop(store);
    let store = rig.open();
    rig.machine.devices()[0].flip(place(&store, summary.manifest).start + 1, 5);
    let deleted = store.delete(second.id).unwrap();
    assert!(deleted.has_kept_packs);
    rig.machine.devices()[0].flip(place(&store, summary.manifest).start + 1, 5);
    check(&store, summary.id, &memory());
    store.delete(summary.id).unwrap();
    assert_eq!(common::objects(&store), []);
}

/// The manifest's own checks, beneath which there is no pool.
#[test]
fn every_bit_of_a_manifest_is_covered() {
    let pages: Memory = vec![vec![0; 64]];
    let description = describe("web", "one", "a", &pages);
    let key = SecretKey::from_bytes([1; 32]);
    let manifest = Manifest { description, packs: Vec::new(), pages: vec![Default::default()] };
    for key in [None, Some(&key)] {
        let bytes = manifest.encode(1, 2, key);
        assert_eq!(Manifest::decode(&bytes, key).unwrap(), manifest);
        let other = SecretKey::from_bytes([2; 32]);
        Manifest::decode(&bytes, Some(&other)).unwrap_err();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            Manifest::decode(&damaged, key).unwrap_err();
        }
        for length in 0..bytes.len() {
            Manifest::decode(&bytes[..length], key).unwrap_err();
        }
    }
    let mut twice = manifest;
    twice.description.blocks.push(MemoryBlock { name: "block0".into(), bytes: 4096 });
    twice.pages.push(Default::default());
    Manifest::decode(&twice.encode(1, 2, None), None).unwrap_err();
}
