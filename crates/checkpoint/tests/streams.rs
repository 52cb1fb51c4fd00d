//! Checkpoints that go to another host as a stream.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::io::{self, Read, Write};
use std::ops::Range;

use bindery_checkpoint::{
    CheckpointError, ExportOptions, FormatError, ImportOptions, PageEncoding, SecretKey, Store,
};
use common::{Memory, Rig, check, checkpoint, content, name, objects};

fn memory() -> Memory {
    let page = |page: u64| match page % 9 {
        0 => 0,
        1..4 => 1 << 40 | page << 1,
        _ => page * 2 + 1,
    };
    vec![(0..200).map(page).collect(), vec![0; 3], vec![5, 0, 7]]
}

fn store(rig: &Rig, domain: &str, key: Option<&SecretKey>) -> Store {
    let store = rig.open();
    store.open_domain(&name(domain), key).unwrap();
    store
}

fn export(store: &Store, key: Option<&SecretKey>) -> Vec<u8> {
    let mut stream = Vec::new();
    let id = store.list()[0].id;
    let exported = store.export(id, &mut stream, &ExportOptions { key: key.cloned() }).unwrap();
    assert_eq!(exported.bytes, stream.len() as u64);
    let stored = memory().iter().flatten().filter(|number| **number != 0).count();
    assert_eq!(exported.pages, stored as u64);
    stream
}

fn options(domain: &str, key: Option<&SecretKey>) -> ImportOptions {
    ImportOptions {
        domain: name(domain),
        key: key.cloned(),
        guest: None,
        name: None,
        encoding: PageEncoding::Compressed,
        base: None,
    }
}

#[test]
fn a_checkpoint_arrives_whatever_the_keys_are() {
    let keys = [1, 2, 3].map(|byte| SecretKey::from_bytes([byte; 32]));
    for (from, stream, to) in [
        (None, None, None),
        (Some(&keys[0]), None, Some(&keys[1])),
        (None, Some(&keys[2]), Some(&keys[1])),
        (Some(&keys[0]), Some(&keys[0]), None),
    ] {
        let rigs = [Rig::new(8 << 20), Rig::new(8 << 20)];
        let source = store(&rigs[0], "web", from);
        let made = checkpoint(&source, ("web", "one", "a"), &memory(), PageEncoding::Raw).unwrap();
        let bytes = export(&source, stream);
        assert!(bytes.len() < 200 * 4096 / 2);
        let target = store(&rigs[1], "office", to);
        let arrived = target.import(&mut &bytes[..], &options("office", stream)).unwrap();
        check(&target, arrived.id, &memory());
        let mut expected = source.manifest(made.id).unwrap().description;
        expected.domain = name("office");
        assert_eq!(target.manifest(arrived.id).unwrap().description, expected);
        let again = target.import(&mut &bytes[..], &options("office", stream));
        assert!(matches!(again, Err(CheckpointError::Exists { .. })));
        let renamed = ImportOptions {
            guest: Some(name("other")),
            name: Some(name("b")),
            ..options("office", stream)
        };
        let renamed = target.import(&mut &bytes[..], &renamed).unwrap();
        assert_eq!((renamed.to_string(), renamed.new_pages), ("other@b".into(), 0));
    }
}

#[test]
fn an_export_has_nothing_of_other_guests() {
    let rig = Rig::new(8 << 20);
    let source = store(&rig, "web", None);
    checkpoint(&source, ("web", "one", "a"), &memory(), PageEncoding::Raw).unwrap();
    // In a pack with pages of both.
    let mut both = memory();
    both[0].extend((0..20).map(|page| 1 << 50 | page << 1));
    checkpoint(&source, ("web", "two", "b"), &both, PageEncoding::Raw).unwrap();
    let bytes = export(&source, None);
    let secret = content(1 << 50 | 4 << 1);
    assert!(!bytes.windows(64).any(|window| window == &secret[..64]));
}

/// Nothing is imported of a stream that was cut off, or of which a bit is another, anywhere.
#[test]
fn a_stream_that_is_not_whole_leaves_nothing() {
    let rigs = [Rig::new(8 << 20), Rig::new(8 << 20)];
    let key = SecretKey::from_bytes([4; 32]);
    let source = store(&rigs[0], "web", None);
    checkpoint(&source, ("web", "one", "a"), &memory(), PageEncoding::Raw).unwrap();
    let target = store(&rigs[1], "web", None);
    for key in [None, Some(&key)] {
        let bytes = export(&source, key);
        let refused = |bytes: &[u8]| {
            let error = target.import(&mut &bytes[..], &options("web", key)).unwrap_err();
            assert!(matches!(error, CheckpointError::Import(_)), "{error}");
            assert!(error.to_string().contains("nothing of it was imported"), "{error}");
        };
        let step = bytes.len() / 150;
        for at in (0..120).chain((120..bytes.len()).step_by(step)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            refused(&damaged);
            refused(&bytes[..at]);
        }
        refused(&bytes[..bytes.len() - 1]);
        refused(&[&bytes[..], &[0]].concat());
        assert!(target.list().is_empty());
        assert_eq!(objects(&target), []);
    }
    let bytes = export(&source, Some(&key));
    let without = target.import(&mut &bytes[..], &options("web", None)).unwrap_err();
    assert!(matches!(without, CheckpointError::Import(FormatError::NoKey { .. })));
    let other = SecretKey::from_bytes([5; 32]);
    let wrong = target.import(&mut &bytes[..], &options("web", Some(&other))).unwrap_err();
    assert!(matches!(wrong, CheckpointError::Import(FormatError::Sealed { .. })));
    let plain = export(&source, None);
    let forged = target.import(&mut &plain[..], &options("web", Some(&key))).unwrap_err();
    assert!(matches!(forged, CheckpointError::Import(FormatError::NotSealed { .. })));
}

/// Chunks that are whole, and in another order, or missing.
#[test]
fn chunks_in_another_order_are_refused() {
    let rig = Rig::new(8 << 20);
    let source = store(&rig, "web", None);
    checkpoint(&source, ("web", "one", "a"), &memory(), PageEncoding::Raw).unwrap();
    let bytes = export(&source, None);
    let mut chunks: Vec<Range<usize>> = std::iter::once(0..64).collect();
    while chunks.last().unwrap().end < bytes.len() {
        let at = chunks.last().unwrap().end;
        let stored = u32::from_le_bytes(bytes[at + 16..at + 20].try_into().unwrap()) as usize;
        chunks.push(at..at + 24 + 16 + stored);
    }
    assert!(chunks.len() > 6);
    for at in 1..chunks.len() - 1 {
        let mut swapped = chunks.clone();
        swapped.swap(at, at + 1);
        let mut missing = chunks.clone();
        missing.remove(at);
        for order in [swapped, missing] {
            let stream: Vec<u8> = order.into_iter().flat_map(|it| bytes[it].to_vec()).collect();
            let renamed = ImportOptions { name: Some(name("b")), ..options("web", None) };
            let refused = source.import(&mut &stream[..], &renamed).unwrap_err();
            assert!(matches!(refused, CheckpointError::Import(_)), "{refused}");
        }
    }
}

struct Failing;

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

#[test]
fn errors_of_the_other_end_are_given_on() {
    let rig = Rig::new(8 << 20);
    let source = store(&rig, "web", None);
    let made = checkpoint(&source, ("web", "one", "a"), &memory(), PageEncoding::Raw).unwrap();
    let written = source.export(made.id, &mut Failing, &ExportOptions::default());
    assert!(matches!(written, Err(CheckpointError::Export(_))));
    let bytes = export(&source, None);
    let renamed = ImportOptions { name: Some(name("b")), ..options("web", None) };
    let read = source.import(&mut (&bytes[..900]).chain(Failing), &renamed);
    assert!(matches!(read, Err(CheckpointError::Stream(_))));
}
