//! Manifests and streams of checkpoints as a hostile hand writes them: with checksums that are right.

use std::sync::Arc;

use bindery_checkpoint::{ImportOptions, Name, PageEncoding, Store, StoreOptions};
use bindery_pool::device::Device;
use bindery_pool::{AttachedDevice, BLOCK_BYTES, CreateOptions, MediaClass, NewDevice, Pool};
use crc_fast::{CrcAlgorithm, Digest};
use libfuzzer_sys::arbitrary::{self, Arbitrary};

use crate::memory::bounded;
use crate::simulated::Machine;

/// Length of the device of the pool that streams are imported into, in bytes.
const DEVICE_BYTES: u64 = 8 << 20;

/// Memory of an import beside its stream, in bytes: a chunk, a pack with its writes, and the simulated device's
/// copy of them.
const IMPORT_BYTES: usize = 24 << 20;

/// Start of the fields of a manifest in its head, in bytes.
const FIELDS_AT: usize = 64;

const ID: u128 = 2;

fn crc32c(parts: &[&[u8]]) -> [u8; 4] {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    (digest.finalize() as u32).to_le_bytes()
}

/// Makes a manifest's object of a list of packs and a body (`docs/formats/checkpoint.md`).
#[must_use]
pub fn manifest(packs: &[u64], body: &[u8]) -> Vec<u8> {
    let list: Vec<u8> = packs.iter().flat_map(|pack| pack.to_le_bytes()).collect();
    let counted = [(packs.len() as u32).to_le_bytes(), crc32c(&[&list])].concat();
    let mut head = [0; BLOCK_BYTES];
    head[..8].copy_from_slice(b"BndrCkpt");
    head[8] = 1;
    head[32..48].copy_from_slice(&ID.to_le_bytes());
    head[48] = 2;
    head[FIELDS_AT..FIELDS_AT + 8].copy_from_slice(&counted);
    head[FIELDS_AT + 8..FIELDS_AT + 16].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let check = crc32c(&[&ID.to_le_bytes(), &[0; 8], &list, body]);
    head[FIELDS_AT + 16..FIELDS_AT + 20].copy_from_slice(&check);
    let checksum = crc32c(&[&head]);
    head[12..16].copy_from_slice(&checksum);
    [&head[..], &list, body].concat()
}

/// Makes an object as `push` does without a key: of a kind, a list of ids, a body, and what follows.
#[must_use]
pub fn pushed(kind: u8, list: &[u128], body: &[u8], behind: &[u8]) -> Vec<u8> {
    let list: Vec<u8> = list.iter().flat_map(|id| id.to_le_bytes()).collect();
    let mut head = [0; 64];
    head[..8].copy_from_slice(b"BndrPush");
    head[8] = 1;
    head[16..32].copy_from_slice(&ID.to_le_bytes());
    head[32] = kind;
    head[36..40].copy_from_slice(&((list.len() / 16) as u32).to_le_bytes());
    head[40..48].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let check = crc32c(&[&ID.to_le_bytes(), &[0; 8], &[kind], &list, body]);
    head[48..52].copy_from_slice(&check);
    let checksum = crc32c(&[&head]);
    head[12..16].copy_from_slice(&checksum);
    [&head[..], &list, body, behind].concat()
}

/// A pack as `push` sends it, or something like one: groups by pages, codec and content.
#[derive(Arbitrary, Debug)]
pub struct PushedPack {
    groups: Vec<(u8, u8, Vec<u8>)>,
    behind: Vec<u8>,
}

impl PushedPack {
    /// Encodes it, with checks that are right.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = vec![0; 16];
        let (mut stored, mut pages) = (Vec::new(), 0);
        body.extend_from_slice(&(self.groups.len().min(16) as u32).to_le_bytes());
        for (number, (count, codec, content)) in (1_u64..).zip(self.groups.iter().take(16)) {
            let bound = [count % 18, codec % 3];
            body.extend_from_slice(&bound);
            body.extend_from_slice(&(content.len() as u32).to_le_bytes());
            body.extend_from_slice(&crc32c(&[&ID.to_le_bytes(), &number.to_le_bytes(), &bound, content]));
            body.extend_from_slice(&[0; 12]);
            stored.extend_from_slice(content);
            pages += usize::from(bound[0]);
        }
        body.extend_from_slice(&vec![7; pages * 32]);
        stored.extend_from_slice(&self.behind);
        pushed(1, &[], &body, &stored)
    }
}

/// A chunk of a stream, or something like one.
#[derive(Arbitrary, Debug)]
pub struct Chunk {
    kind: u8,
    codec: u8,
    block: u8,
    first: u16,
    pages: u8,
    /// Lengths that are not those of the content.
    plain_bytes: Option<u32>,
    stored_bytes: Option<u32>,
    content: Vec<u8>,
    /// True if the content is filled up to whole pages.
    is_filled: bool,
}

/// A stream.
#[derive(Arbitrary, Debug)]
pub struct Stream {
    chunks: Vec<Chunk>,
    /// True if an end follows that counts right.
    is_ended: bool,
    behind: Vec<u8>,
}

impl Stream {
    /// Encodes it, with checks that are right. `description` comes before its chunks.
    #[must_use]
    pub fn encode(&self, description: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..8].copy_from_slice(b"BndrExpt");
        bytes[8] = 1;
        bytes[16..32].copy_from_slice(&ID.to_le_bytes());
        let checksum = crc32c(&[&bytes]);
        bytes[12..16].copy_from_slice(&checksum);
        let mut number = 0;
        if !description.is_empty() {
            put(&mut bytes, &mut number, head(1, 0, 0, 0, 0, description.len()), description);
        }
        let mut pages = 0_u64;
        for chunk in self.chunks.iter().take(32) {
            let mut content = chunk.content.clone();
            if chunk.is_filled {
                content.resize(usize::from(chunk.pages % 65) * BLOCK_BYTES, 7);
            }
            let mut head = head(
                chunk.kind % 5,
                chunk.codec % 3,
                chunk.block % 4,
                chunk.first % 40,
                chunk.pages % 65,
                content.len(),
            );
            for (at, length) in [(12, chunk.plain_bytes), (16, chunk.stored_bytes)] {
                if let Some(length) = length {
                    head[at..at + 4].copy_from_slice(&length.to_le_bytes());
                }
            }
            pages += if chunk.kind % 5 == 2 { u64::from(chunk.pages % 65) } else { 0 };
            put(&mut bytes, &mut number, head, &content);
        }
        if self.is_ended {
            let end = [pages, number].map(u64::to_le_bytes).concat();
            put(&mut bytes, &mut number, head(3, 0, 0, 0, 0, 16), &end);
        }
        bytes.extend_from_slice(&self.behind);
        bytes
    }
}

fn head(kind: u8, codec: u8, block: u8, first: u16, pages: u8, bytes: usize) -> [u8; 24] {
    let mut head = [0; 24];
    (head[0], head[1], head[2], head[8]) = (kind, codec, block, pages);
    head[4..6].copy_from_slice(&first.to_le_bytes());
    for at in [12, 16] {
        head[at..at + 4].copy_from_slice(&(bytes as u32).to_le_bytes());
    }
    head
}

fn put(bytes: &mut Vec<u8>, number: &mut u64, head: [u8; 24], content: &[u8]) {
    let check = crc32c(&[&ID.to_le_bytes(), &number.to_le_bytes(), &head, content]);
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(&check);
    bytes.extend_from_slice(&[0; 12]);
    bytes.extend_from_slice(content);
    *number += 1;
}

/// Imports a stream into a pool.
///
/// # Panics
/// If a checkpoint comes of it that is not whole, if something is left of one that was refused, or if it takes
/// much more memory than it was given.
pub fn import(stream: &[u8]) {
    let store = store();
    let domain: Name = "web".parse().expect("it is a name");
    store.open_domain(&domain, None).expect("there is room");
    let options =
        ImportOptions { domain, key: None, guest: None, name: None, encoding: PageEncoding::Raw, base: None };
    let given = stream.len() + IMPORT_BYTES / 8;
    match bounded(given, || store.import(&mut &stream[..], &options)) {
        Ok(summary) => {
            let report = store.verify(summary.id).expect("its manifest is whole");
            assert!(report.is_whole(), "{report:?}");
            store.delete(summary.id).expect("it is there");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert_eq!(store.pool().list().len(), 1, "the root alone is left");
}

fn store() -> Store {
    let mut machine = Machine::new();
    let device = machine.device(DEVICE_BYTES) as Arc<dyn Device>;
    let attached = AttachedDevice { label: "disk".into(), device };
    let device = NewDevice { attached, class: MediaClass::Capacity };
    let options = CreateOptions { force: false, catalogue_bytes: Some(64 << 10) };
    let pool = Pool::create_on("guests".parse().expect("it is a name"), vec![device], &options);
    let options = StoreOptions { catalogue_bytes: 64 << 10, ..StoreOptions::default() };
    Store::open(Arc::new(pool.expect("there is room")), options).expect("there is room")
}
