//! Checkpoints in object stores: real S3 servers, a network that misbehaves, and directories.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

#[path = "../../../pool/tests/archive/background.rs"]
mod background;
#[path = "../common/mod.rs"]
mod common;
mod faults;
#[allow(dead_code, reason = "other test programs need the rest")]
#[path = "../../../pool/tests/archive/proxy.rs"]
mod proxy;
mod removal;
#[allow(dead_code, reason = "other test programs need the rest")]
#[path = "../../../pool/tests/archive/server.rs"]
mod server;
mod trips;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bindery_checkpoint::{
    ExportOptions, ImportOptions, PageEncoding, Pushed, Remote, RemoteCheckpoint, RemoteError,
    SecretKey, Store,
};
use bindery_pool::archive::ArchiveOptions;
use common::{Memory, Rig, check, checkpoint, name};
use server::{BUCKET, Bench};

/// Memory of 40 pages of which some are zero, some compress; others of each `seed`.
fn memory(seed: u64) -> Memory {
    let page = |page: u64| match page % 5 {
        0 => 0,
        1 => seed << 32 | page << 1 | 1,
        _ => seed << 32 | (page + 1) << 1,
    };
    vec![(0..37).map(page).collect(), vec![5, 0, 7]]
}

fn stored(memory: &Memory) -> u64 {
    memory.iter().flatten().filter(|number| **number != 0).count() as u64
}

fn key(byte: u8) -> SecretKey {
    SecretKey::from_bytes([byte; 32])
}

/// A host: a pool with checkpoints.
struct Host {
    _rig: Rig,
    store: Store,
}

impl Host {
    fn new() -> Self {
        let rig = Rig::new(8 << 20);
        let store = rig.open();
        for domain in ["web", "db"] {
            store.open_domain(&name(domain), None).unwrap();
        }
        Self { _rig: rig, store }
    }

    fn make(&self, domain: &str, called: &str, memory: &Memory) {
        let (guest, checkpoint_name) = called.split_once('@').unwrap();
        let names = (domain, guest, checkpoint_name);
        checkpoint(&self.store, names, memory, PageEncoding::Raw).unwrap();
    }

    fn export(&self, called: &str) -> Vec<u8> {
        let found = self.store.list().into_iter().find(|it| it.to_string() == called).unwrap();
        let mut stream = Vec::new();
        self.store.export(found.id, &mut stream, &ExportOptions::default()).unwrap();
        stream
    }

    fn push(&self, remote: &Remote, called: &str) -> Result<Pushed, RemoteError> {
        push_stream(remote, &self.export(called))
    }
}

fn push_stream(remote: &Remote, stream: &[u8]) -> Result<Pushed, RemoteError> {
    remote.push(&mut &stream[..], &mut |_| ControlFlow::Continue(()))
}

/// Pulls a checkpoint to another host, and compares it with what the memory was.
fn pull(remote: &Remote, called: &str, memory: &Memory) -> Result<RemoteCheckpoint, RemoteError> {
    let (guest, checkpoint_name) = called.split_once('@').unwrap();
    let (mut stream, mut pages) = (Vec::new(), 0);
    let mut watch = |count| {
        pages += count;
        ControlFlow::Continue(())
    };
    let pulled = remote.pull((&name(guest), &name(checkpoint_name)), &mut stream, &mut watch)?;
    assert_eq!(pages, stored(memory));
    assert_eq!(pulled.to_string(), called);
    let host = Host::new();
    let options = ImportOptions {
        domain: name("web"),
        key: None,
        guest: None,
        name: None,
        encoding: PageEncoding::Raw,
        base: None,
    };
    let summary = host.store.import(&mut &stream[..], &options).unwrap();
    check(&host.store, summary.id, memory);
    let description = host.store.manifest(summary.id).unwrap().description;
    assert_eq!(description.device_state, format!("state of {called}").into_bytes());
    Ok(pulled)
}

fn names(remote: &Remote) -> Vec<String> {
    let listing = remote.list().unwrap();
    assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
    listing.checkpoints.iter().map(ToString::to_string).collect()
}

fn url() -> String {
    format!("s3://{BUCKET}/some/prefix")
}

/// Small packs, and no reading back, which would double the requests.
fn options(bench: &Bench) -> ArchiveOptions {
    ArchiveOptions { read_back: false, parts_at_once: 1, ..bench.options("one") }
}

fn open(bench: &Bench, key: Option<&SecretKey>) -> Remote {
    Remote::open(&url(), options(bench), key).unwrap()
}

/// Files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    files.collect()
}

/// Files of objects, beside what the server keeps of its own.
fn objects(bench: &Bench) -> Vec<PathBuf> {
    files(&bench.files.as_ref().unwrap().join("some/prefix"))
}

/// Returns the files of packs and pieces.
fn packs(bench: &Bench) -> Vec<PathBuf> {
    let is_pack = |path: &PathBuf| path.parent().unwrap().file_name().unwrap() == "p";
    objects(bench).into_iter().filter(is_pack).collect()
}
