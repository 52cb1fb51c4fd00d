//! Domains: they share nothing, and an encrypted one is opened with its key alone.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_checkpoint::{
    Capture, CheckpointError, DiskOverlay, OverlayUse, PageEncoding, SecretKey, Store,
    StoreOptions, TouchedRun,
};
use bindery_pool::map::{MapOptions, Maps, Temperature};
use bindery_pool::{CreateOptions, DevicePath, MediaClass, Pool};
use bindery_units::{PAGE_BYTES, PageIndex};
use common::{Memory, Rig, begin, check, checkpoint, content, describe, name, objects, range};

fn key(byte: u8) -> SecretKey {
    SecretKey::from_bytes([byte; 32])
}

fn memory() -> Memory {
    vec![(1..60).map(|page| 1 << 40 | page << 1).collect()]
}

#[test]
fn equal_pages_are_stored_once_a_domain() {
    let rig = Rig::new(8 << 20);
    let store = rig.open();
    for domain in ["web", "mail"] {
        store.open_domain(&name(domain), None).unwrap();
        let guests = ["one", "two"].map(|guest| {
            checkpoint(&store, (domain, guest, "a"), &memory(), PageEncoding::Raw).unwrap()
        });
        assert_eq!(guests.each_ref().map(|it| it.new_pages), [59, 0], "{domain}");
        guests.iter().for_each(|summary| check(&store, summary.id, &memory()));
    }
    let base = store.find(&name("web"), &name("one"), &name("a")).unwrap();
    let described = describe("mail", "three", "a", &memory());
    let refused = begin(&store, described, Some(base.id), PageEncoding::Raw).map(drop);
    assert!(matches!(refused, Err(CheckpointError::OtherDomain { .. })));
    // It gave its name back.
    let described = describe("mail", "three", "a", &memory());
    drop(begin(&store, described, None, PageEncoding::Raw).unwrap());
}

#[test]
fn a_wrong_key_is_refused() {
    let rig = Rig::new(8 << 20);
    let store = rig.open();
    store.open_domain(&name("web"), Some(&key(1))).unwrap();
    store.open_domain(&name("plain"), None).unwrap();
    let made = checkpoint(&store, ("web", "one", "a"), &memory(), PageEncoding::Raw).unwrap();
    let runs = [TouchedRun { block: 0, pages: range(5, 6) }];
    store.set_touched(made.id, &runs).unwrap();
    drop(store);
    let store = rig.open();
    let open = |store: &Store, domain: &str, key: Option<&SecretKey>| {
        store.open_domain(&name(domain), key)
    };
    assert!(matches!(store.reader(made.id), Err(CheckpointError::Locked(_))));
    assert!(matches!(store.touched(made.id), Err(CheckpointError::Locked(_))));
    assert!(matches!(open(&store, "web", None), Err(CheckpointError::Locked(_))));
    assert!(matches!(open(&store, "web", Some(&key(2))), Err(CheckpointError::WrongKey(_))));
    assert!(matches!(store.reader(made.id), Err(CheckpointError::Locked(_))));
    assert!(matches!(open(&store, "plain", Some(&key(1))), Err(CheckpointError::NotEncrypted(_))));
    let unknown = begin(&store, describe("mail", "a", "b", &memory()), None, PageEncoding::Raw);
    assert!(matches!(unknown.map(drop), Err(CheckpointError::NoDomain(_))));
    open(&store, "web", Some(&key(1))).unwrap();
    check(&store, made.id, &memory());
    assert_eq!(store.touched(made.id).unwrap(), runs);
    assert!(store.reader(made.id).unwrap().mappable(0, PageIndex(3)).unwrap().is_none());
}

#[test]
fn without_its_key_a_checkpoint_is_listed_and_deleted() {
    let rig = Rig::new(8 << 20);
    let store = rig.open();
    store.open_domain(&name("web"), Some(&key(1))).unwrap();
    checkpoint(&store, ("web", "one", "a"), &memory(), PageEncoding::Raw).unwrap();
    drop(store);
    let store = rig.open();
    let listed = store.list();
    assert_eq!((listed.len(), listed[0].to_string()), (1, "one@a".into()));
    store.delete(listed[0].id).unwrap();
    assert_eq!(objects(&store), []);
}

/// No encrypted content is on the device as it was, device state and arguments included.
#[test]
fn nothing_of_an_encrypted_guest_is_on_the_device() {
    for (key, is_there) in [(None, true), (Some(key(1)), false)] {
        for encoding in [PageEncoding::Raw, PageEncoding::Compressed] {
            let rig = Rig::new(8 << 20);
            let store = rig.open();
            store.open_domain(&name("web"), key.as_ref()).unwrap();
            checkpoint(&store, ("web", "one", "a"), &memory(), encoding).unwrap();
            let device = rig.machine.devices()[0].content();
            let page = content(memory()[0][20]);
            let has = |bytes: &[u8]| {
                let starts = device.windows(bytes.len()).step_by(1);
                starts.into_iter().any(|window| window == bytes)
            };
            assert_eq!(has(&page[512..640]), is_there);
            assert_eq!(has(b"state of one@a"), is_there);
        }
    }
}

/// Raw pages are mapped from where they lie.
#[test]
fn raw_runs_are_mapped_as_they_are() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = DevicePath {
        path: directory.path().into(),
        class: MediaClass::Capacity,
        bytes: Some(64 << 20),
    };
    let pool = Pool::create(&"guests".parse().unwrap(), &[device], &CreateOptions::default());
    let options = StoreOptions { pack_pages: 24, ..StoreOptions::default() };
    let store = Store::open(Arc::new(pool.unwrap()), options).unwrap();
    store.open_domain(&name("web"), None).unwrap();
    let made = checkpoint(&store, ("web", "one", "a"), &memory(), PageEncoding::Raw).unwrap();
    let reader = store.reader(made.id).unwrap();
    let (mut page, mut runs) = (0, 0);
    while page < 59 {
        let run = reader.mappable(0, PageIndex(page)).unwrap().unwrap();
        let objects = [Arc::clone(&run.object)];
        let map = Maps::default().map(&objects, Temperature::Warm, &MapOptions::default()).unwrap();
        for at in 0..run.pages.count {
            let mut bytes = [0; PAGE_BYTES];
            let offset = run.offset_bytes + u64::from(at) * PAGE_BYTES as u64;
            map.read(0, offset, &mut bytes).unwrap();
            assert!(bytes == content(memory()[0][(page + at) as usize]));
        }
        page += run.pages.count;
        runs += 1;
    }
    assert_eq!(runs, 3, "one a pack");
}

#[test]
fn a_root_of_somebody_else_is_left_alone() {
    let rig = Rig::new(8 << 20);
    let pool = rig.pool();
    let mut root = pool.create_root(MediaClass::Capacity, 64 << 10, 1).unwrap();
    root.append(b"a list of tables").unwrap();
    root.sync().unwrap();
    drop(root);
    let refused = Store::open(pool, rig.options).map(drop);
    assert!(matches!(refused, Err(CheckpointError::ForeignRoot)));
}

/// Figures of a capture are the checkpoint's until it is deleted, whoever opens the pool, compacted or not.
#[test]
fn captures_outlive_opening_and_compaction() {
    let rig = Rig::new(8 << 20);
    let store = rig.open();
    store.open_domain(&name("web"), None).unwrap();
    let captures = [
        ("running", Some(Capture { pause_us: Some(6_543), rounds: 3 })),
        ("paused", Some(Capture { pause_us: None, rounds: 0 })),
        ("imported", None),
    ];
    for (called, capture) in captures {
        let description = describe("web", "one", called, &memory());
        let mut writer = begin(&store, description, None, PageEncoding::Raw).unwrap();
        capture.into_iter().for_each(|capture| writer.set_capture(capture));
        assert_eq!(writer.finish().unwrap().capture, capture);
    }
    let overlay = |path: &str, purpose| DiskOverlay {
        domain: name("web"),
        guest: name("one"),
        purpose,
        path: path.into(),
        below: b"/srv/disk".to_vec(),
    };
    let noted = [overlay("/a", OverlayUse::Captured), overlay("/b", OverlayUse::Restored)];
    store.note_overlays(&noted).unwrap();
    store
        .note_overlays(&[overlay("/a", OverlayUse::Merging), overlay("/c", OverlayUse::Captured)])
        .unwrap();
    store.forget_overlays(&name("web"), &[b"/c".to_vec(), b"/none".to_vec()]).unwrap();
    let foreign = DiskOverlay { domain: name("none"), ..overlay("/d", OverlayUse::Captured) };
    assert!(matches!(store.note_overlays(&[foreign]), Err(CheckpointError::NoDomain(_))));
    let check = |store: &Store| {
        let noted = [overlay("/a", OverlayUse::Merging), overlay("/b", OverlayUse::Restored)];
        assert_eq!(store.overlays(), noted);
        let found = store.list().into_iter().map(|it| (it.name.to_string(), it.capture));
        let expected = captures.map(|(called, capture)| (called.to_owned(), capture));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    };
    drop(store);
    let store = rig.open();
    check(&store);
    for round in 0..40 {
        let called = format!("n{round}");
        let made =
            checkpoint(&store, ("web", "one", &called), &memory(), PageEncoding::Raw).unwrap();
        store.delete(made.id).unwrap();
    }
    drop(store);
    check(&rig.open());
}

/// Records of other clients of the root stay, compacted or not; so do objects of others in the pool.
#[test]
fn what_others_keep_in_the_pool_stays() {
    let rig = Rig::new(8 << 20);
    drop(rig.open());
    let pool = rig.pool();
    let mut other = pool.allocate_mblock(MediaClass::Capacity, 8192).unwrap();
    other.append(&[7; 8192]).unwrap();
    other.commit().unwrap();
    let mut root = pool.open_mdc(pool.root().unwrap()).unwrap();
    root.append(b"\x02 of another client").unwrap();
    root.sync().unwrap();
    drop((root, pool));
    let store = rig.open();
    assert_eq!(store.collected(), 0);
    store.open_domain(&name("web"), None).unwrap();
    // As many as have the root compacted.
    for round in 0..40 {
        let called = format!("n{round}");
        let made =
            checkpoint(&store, ("web", "one", &called), &memory(), PageEncoding::Raw).unwrap();
        store.delete(made.id).unwrap();
    }
    assert_eq!(objects(&store).len(), 1);
    drop(store);
    let pool = rig.pool();
    let root = pool.open_mdc(pool.root().unwrap()).unwrap();
    let records: Vec<Vec<u8>> = root.records().collect::<Result<_, _>>().unwrap();
    assert!(records.len() < 20, "{} records: it was never compacted", records.len());
    assert!(records.iter().any(|record| record == b"\x02 of another client"));
}

/// Readers of checkpoints that are deleted meanwhile read all, or learn that there is none: never damage.
#[test]
fn deleted_checkpoints_are_not_called_damaged() {
    let rig = Rig::new(16 << 20);
    let store = rig.open();
    store.open_domain(&name("web"), None).unwrap();
    let memory = vec![(0..60).map(|page| page * 2).collect::<Vec<u64>>()];
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..150 {
                let names = ("web", "one", "a");
                let made = checkpoint(&store, names, &memory, PageEncoding::Raw).unwrap();
                store.set_touched(made.id, &[]).unwrap();
                store.delete(made.id).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) {
            for summary in store.list() {
                let touched = store.touched(summary.id).map(drop);
                let read = store.reader(summary.id).map(|it| common::check_reader(&it, &memory));
                for it in [read, touched] {
                    assert!(matches!(it, Ok(()) | Err(CheckpointError::NoCheckpoint(_))), "{it:?}");
                }
            }
        }
    });
}
