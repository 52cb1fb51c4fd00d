//! An object in an archive whose keys become something else.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use bindery_pool::archive::{Archive, ArchiveOptions, HEADER_BYTES, Source, Stored};
use bindery_pool::{ObjectId, UNIT_BYTES};
use bindery_sys::direct::Buffer;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use tempfile::TempDir;
use uuid::Uuid;

use crate::memory::bounded;

const POOL: Uuid = Uuid::from_u128(0xb1d);
const OBJECT: ObjectId = ObjectId(20);

/// What a request, its thread and its runtime take beside what was asked for, in bytes.
const REQUEST_BYTES: usize = 256 << 10;

/// What becomes of one key.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Change {
    Flip {
        part: u8,
        at: u16,
        by: u8,
    },
    Cut {
        part: u8,
        bytes: u16,
    },
    Extend {
        part: u8,
        bytes: u16,
    },
    Remove {
        part: u8,
    },
    /// One part in the place of another.
    Swap {
        from: u8,
        to: u8,
    },
    /// Up to 8 bytes of a header, with a checksum that is right.
    Forge {
        part: u8,
        at: u8,
        value: u64,
        length: u8,
    },
}

/// An object, how it is cut, and what becomes of it.
#[derive(Arbitrary, Debug)]
pub struct Script {
    length: u16,
    seed: u8,
    units_each: u8,
    changes: Vec<Change>,
}

struct Bytes(Vec<u8>);

impl Source for Bytes {
    fn id(&self) -> ObjectId {
        OBJECT
    }

    fn length_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, into: &mut Buffer) -> Result<(), Box<dyn Error + Send + Sync>> {
        into.fill(0);
        let bytes = &self.0[offset as usize..];
        let length = bytes.len().min(into.len());
        into[..length].copy_from_slice(&bytes[..length]);
        Ok(())
    }
}

/// Stores an object, has its keys changed, and reads it.
///
/// # Panics
/// If something else is read than was stored, and nobody forged a header.
pub fn store(script: &Script) {
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    let directory = directory.expect("there is room for it");
    let part_bytes = (u64::from(script.units_each) % 4 + 1) * UNIT_BYTES as u64;
    let options = ArchiveOptions { part_bytes, ..ArchiveOptions::default() };
    let url = format!("file://{}", directory.path().display());
    let archive = Archive::open(&url, options).expect("the directory is there");
    let source =
        Bytes((0..script.length % 40_000).map(|at| (at % 251) as u8 ^ script.seed).collect());
    archive.put(POOL, &source).expect("there is room");
    let keys = directory.path().join(POOL.to_string());
    script.changes.iter().take(16).for_each(|&change| apply(change, &keys));
    let given: u64 =
        parts(&keys).iter().filter_map(|part| fs::metadata(part).ok()).map(|it| it.len()).sum();
    let is_forged = script.changes.iter().any(|change| matches!(change, Change::Forge { .. }));
    let stored = bounded(given as usize + REQUEST_BYTES, || archive.head(POOL, OBJECT));
    match stored {
        Ok(stored) => read(&stored, (!is_forged).then_some(&*source.0)),
        Err(error) => names_the_key(&error),
    }
    let _ = archive.delete(POOL, OBJECT);
}

fn read(stored: &Stored, expected: Option<&[u8]>) {
    let mut bytes = Vec::new();
    let all = stored.read_all(|piece| {
        bytes.extend_from_slice(piece);
        Ok::<_, bindery_pool::archive::ReadError>(())
    });
    match (all, expected) {
        (Ok(()), Some(expected)) => assert!(bytes == expected, "other bytes were read"),
        (Ok(()), None) => {}
        (Err(error), _) => names_the_key(&error),
    }
    let verified = stored.verify();
    verified.as_ref().err().into_iter().for_each(|error| names_the_key(error));
    let units = stored.header().layout.units();
    for unit in (0..units).take(12) {
        let mut buffer = Buffer::zeroed(UNIT_BYTES);
        if stored.read(unit * UNIT_BYTES as u64, &mut buffer).is_ok()
            && let Some(expected) = expected
        {
            let start = unit as usize * UNIT_BYTES;
            let end = expected.len().min(start + UNIT_BYTES);
            assert!(buffer[..end - start] == expected[start..end], "another unit was read");
        }
    }
}

fn names_the_key(error: &dyn std::fmt::Display) {
    let text = error.to_string();
    assert!(text.contains("0000000000000014"), "{text:?} does not name the key");
}

/// All parts there are, by number.
fn parts(keys: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(keys).into_iter().flatten();
    let mut parts: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    parts.sort();
    parts
}

fn apply(change: Change, keys: &Path) {
    let parts = parts(keys);
    if parts.is_empty() {
        return;
    }
    let path = |part: u8| &parts[usize::from(part) % parts.len()];
    let with = |part: u8, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(path(part)).expect("it was listed");
        change(&mut bytes);
        fs::write(path(part), bytes).expect("there is room");
    };
    match change {
        Change::Flip { part, at, by } => with(part, &|bytes| {
            let length = bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(usize::from(at) % length) {
                *byte ^= by;
            }
        }),
        Change::Cut { part, bytes } => with(part, &|content| content.truncate(bytes.into())),
        Change::Extend { part, bytes } => {
            with(part, &|content| content.resize(content.len() + usize::from(bytes), 7));
        }
        Change::Remove { part } => fs::remove_file(path(part)).expect("it was listed"),
        Change::Swap { from, to } => drop(fs::copy(path(from), path(to))),
        Change::Forge { part, at, value, length } => with(part, &|bytes| {
            forge(bytes, at.into(), &value.to_le_bytes()[..usize::from(length % 8) + 1]);
        }),
    }
}

/// Changes a header, and makes its checksum right (`docs/formats/archive.md`).
pub fn forge(part: &mut [u8], at: usize, value: &[u8]) {
    let Some(header) = part.first_chunk_mut::<HEADER_BYTES>() else { return };
    let (fields, checksum) = header.split_at_mut(HEADER_BYTES - 4);
    let at = at.min(fields.len() - value.len());
    fields[at..at + value.len()].copy_from_slice(value);
    checksum.copy_from_slice(&crc_fast::crc32_iscsi(fields).to_le_bytes());
}
