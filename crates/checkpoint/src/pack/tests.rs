//! Packs by their own checks, with no pool beneath that would find damage first.

use std::sync::Arc;

use bindery_pool::device::Device;
use bindery_pool::object::{Damage, Object, ReadError};
use bindery_pool::{CreateOptions, DevicePath, MediaClass, ObjectId, Pool};
use bindery_sys::direct::Buffer;
use bindery_units::PAGE_BYTES;

use super::{PackReader, PackWriter, PageEncoding};
use crate::object::read_whole;
use crate::page_digest::{PageDigestKey, SECRET_BYTES};
use crate::seal::SecretKey;

/// Bytes as an object that verifies nothing.
#[derive(Clone, Debug)]
struct Bytes(Vec<u8>);

impl Object for Bytes {
    fn id(&self) -> ObjectId {
        ObjectId(20)
    }

    fn class(&self) -> MediaClass {
        MediaClass::Capacity
    }

    fn length_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn device(&self) -> &Arc<dyn Device> {
        unreachable!("packs are read as objects")
    }

    fn offset_bytes(&self) -> u64 {
        0
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> Result<(), ReadError> {
        let length = into.len();
        into.copy_from_slice(&self.0[offset_bytes as usize..][..length]);
        Ok(())
    }

    fn verify_unit(&self, _: u64, _: &[u8]) -> Result<(), Damage> {
        Ok(())
    }
}

/// Pages that compress and, in the middle, a group that does not.
fn pages() -> Vec<[u8; PAGE_BYTES]> {
    let page = |number: usize| match number {
        16..32 => crate::seal::random().unwrap(),
        _ => std::array::from_fn(|at| (at / 16 + number) as u8),
    };
    (0..40).map(page).collect()
}

fn pool() -> (tempfile::TempDir, Pool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().into();
    let device = DevicePath { path, class: MediaClass::Capacity, bytes: Some(16 << 20) };
    let name = "packs".parse().unwrap();
    let pool = Pool::create(&name, &[device], &CreateOptions::default()).unwrap();
    (directory, pool)
}

fn packed(pool: &Pool, key: Option<&SecretKey>, encoding: PageEncoding) -> (Vec<u8>, Vec<Page>) {
    let digests = PageDigestKey::from_secret(&[6; SECRET_BYTES]);
    let mut pack = PackWriter::begin(pool, MediaClass::Capacity, 64, (1, key), encoding).unwrap();
    let pages = pages();
    for (number, page) in pages.iter().enumerate() {
        assert_eq!(pack.put(page, digests.digest(page)).unwrap(), number as u32);
    }
    let (writer, written) = pack.finish().unwrap();
    let object: Arc<dyn Object> = writer.commit().unwrap();
    let bytes = read_whole(&object).unwrap();
    let reader = PackReader::new(Arc::new(Bytes(bytes.clone())));
    assert_eq!(reader.digests(key).unwrap(), written);
    (bytes, pages)
}

type Page = [u8; PAGE_BYTES];

/// Reads a page of a pack by itself; none if an error says that it is damaged.
fn read(reader: &PackReader, key: Option<&SecretKey>, page: u32) -> Option<Page> {
    let mut bytes = [0; PAGE_BYTES];
    match reader.read_raw(key, page, &mut bytes).ok()? {
        0 => {
            let (first, group) = reader.read_group(key, page).ok()?;
            let at = (page - first) as usize * PAGE_BYTES;
            Some(group[at..at + PAGE_BYTES].try_into().unwrap())
        }
        _ => Some(bytes),
    }
}

#[test]
fn every_byte_of_a_pack_is_covered_and_costs_its_group() {
    let (_directory, pool) = pool();
    let key = SecretKey::from_bytes([3; 32]);
    for key in [None, Some(&key)] {
        for encoding in [PageEncoding::Raw, PageEncoding::Compressed] {
            let (bytes, pages) = packed(&pool, key, encoding);
            let is_compressed = encoding == PageEncoding::Compressed;
            assert_eq!(bytes.len() < 30 * PAGE_BYTES, is_compressed, "{}", bytes.len());
            let group = if is_compressed { 16 } else { 1 };
            let mut covered = 0;
            for at in (0..bytes.len()).step_by(101) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 4;
                let reader = PackReader::new(Arc::new(Bytes(damaged)));
                let read = |(number, page): (usize, &Page)| {
                    let found = read(&reader, key, number as u32);
                    assert!(found.is_none_or(|found| found == *page), "byte {at}, page {number}");
                    found.is_none()
                };
                let lost = pages.iter().enumerate().map(read).filter(|lost| *lost).count();
                assert!(lost <= group || lost == pages.len(), "byte {at}: {lost} pages");
                covered += usize::from(lost > 0 || reader.digests(key).is_err());
            }
            // Beside what is covered there are zeros that fill blocks up.
            assert!(covered * 101 > bytes.len() / 2, "{covered}");
        }
    }
}

#[test]
fn digests_are_sealed_with_the_pack() {
    let (_directory, pool) = pool();
    let key = SecretKey::from_bytes([3; 32]);
    let secret = PageDigestKey::from_secret(&[6; SECRET_BYTES]);
    for (key, is_found) in [(None, true), (Some(&key), false)] {
        let (bytes, pages) = packed(&pool, key, PageEncoding::Raw);
        let digest = secret.digest(&pages[0]).0;
        assert_eq!(bytes.windows(digest.len()).any(|window| window == digest), is_found);
        let other = SecretKey::from_bytes([4; 32]);
        let reader = PackReader::new(Arc::new(Bytes(bytes)));
        assert!(reader.digests(Some(&other)).is_err());
        assert_eq!(reader.digests(None).is_ok(), is_found);
    }
}
