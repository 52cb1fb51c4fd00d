//! What is stored is damaged: it is found, and named.

use std::path::{Path, PathBuf};

use bindery_pool::ObjectId;
use bindery_pool::archive::{
    Archive, Damage, FormatError, HEADER_BYTES, Header, PutError, ReadError,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use uuid::Uuid;

use super::objects::{Object, new_pool};
use super::server::options;

struct Kept {
    directory: TempDir,
    archive: Archive,
    pool: Uuid,
    object: Object,
}

impl Kept {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}", directory.path().display());
        let archive = Archive::open(&url, options("", "one")).unwrap();
        let (pool, object) = (new_pool(), Object::new(0xa1, 40_000, 1));
        archive.put(pool, &object).unwrap();
        Self { directory, archive, pool, object }
    }

    fn file(&self, part: u32) -> PathBuf {
        let name = ["00000000000000a1", "00000000000000a1.000001", "00000000000000a1.000002"];
        self.directory.path().join(self.pool.to_string()).join(name[part as usize])
    }

    fn verify(&self) -> Result<(), ReadError> {
        self.archive.head(self.pool, self.object.id)?.verify()
    }

    /// What is found while a part is something else.
    fn with(&self, part: u32, change: impl FnOnce(&mut Vec<u8>)) -> Damage {
        let file = self.file(part);
        let before = std::fs::read(&file).unwrap();
        let mut bytes = before.clone();
        change(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        let error = self.verify().unwrap_err();
        std::fs::write(&file, before).unwrap();
        let ReadError::Damaged { key, damage, .. } = &error else { panic!("{error}") };
        assert_eq!(Path::new(key).file_name(), file.file_name(), "{error}");
        damage.clone()
    }
}

/// Any bit of any part, header, table and content alike; the padding, too.
#[test]
fn every_bit_counts() {
    let kept = Kept::new();
    let mut random = StdRng::seed_from_u64(7);
    for part in 0..3 {
        let length = std::fs::read(kept.file(part)).unwrap().len();
        let anywhere = (0..150).map(|_| random.random_range(0..length));
        for at in anywhere.collect::<Vec<_>>().into_iter().chain([0, 255, 256, length - 1]) {
            kept.with(part, |bytes| bytes[at] ^= 1 << random.random_range(0..8));
        }
        for length in [0, 1, HEADER_BYTES - 1, HEADER_BYTES, length - 1] {
            kept.with(part, |bytes| bytes.truncate(length));
        }
    }
    kept.verify().unwrap();
}

#[test]
fn what_is_in_anothers_place_is_found() {
    let kept = Kept::new();
    let [first, second, third] = [0, 1, 2].map(|part| std::fs::read(kept.file(part)).unwrap());
    let misplaced = kept.with(1, |bytes| bytes.clone_from(&third));
    assert!(matches!(misplaced, Damage::Misplaced { part: 2, .. }), "{misplaced}");
    // The right header, and another part's content.
    let swapped = kept.with(1, |bytes| {
        bytes.truncate(HEADER_BYTES);
        bytes.extend_from_slice(&second[HEADER_BYTES + 4096..]);
        bytes.extend_from_slice(&second[HEADER_BYTES..HEADER_BYTES + 4096]);
    });
    assert!(matches!(swapped, Damage::Unit { unit: 4, .. }), "{swapped}");
    let other = kept.with(0, |bytes| {
        let mut header = Header::decode(&first).unwrap();
        header.object = ObjectId(0xa2);
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    });
    assert!(matches!(other, Damage::Misplaced { object: ObjectId(0xa2), .. }), "{other}");
    let older = kept.with(1, |bytes| {
        let mut header = Header::decode(&second).unwrap();
        header.digest.0[0] ^= 1;
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    });
    assert!(matches!(older, Damage::Digest { .. }), "{older}");
}

#[test]
fn missing_parts_and_strangers_are_found() {
    let kept = Kept::new();
    let foreign = kept.with(0, |bytes| bytes[..8].copy_from_slice(b"a cat's "));
    assert_eq!(foreign, Damage::Format(FormatError::Foreign));
    let content = std::fs::read(kept.file(2)).unwrap();
    std::fs::remove_file(kept.file(2)).unwrap();
    let error = kept.verify().unwrap_err();
    assert!(
        matches!(&error, ReadError::Damaged { damage: Damage::MissingPart, key, .. } if key.ends_with(".000002")),
        "{error}"
    );
    // What is missing is put back, and what is another's is not overwritten.
    assert_eq!(kept.archive.put(kept.pool, &kept.object).unwrap().parts_found, 2);
    assert_eq!(std::fs::read(kept.file(2)).unwrap(), content);
    for length in [content.len(), 10, 0] {
        std::fs::write(kept.file(2), vec![b'x'; length]).unwrap();
        let error = kept.archive.put(kept.pool, &kept.object).unwrap_err();
        assert!(matches!(error, PutError::Taken { .. }), "{error}");
        assert_eq!(std::fs::read(kept.file(2)).unwrap(), vec![b'x'; length]);
    }
}
