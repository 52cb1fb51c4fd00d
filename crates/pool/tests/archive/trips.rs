//! There and back: what is read is what was written.

use bindery_pool::archive::{Archive, ReadError};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::objects::{Object, new_pool, read};
use super::server::{Bench, options};

#[test]
fn objects_come_back_from_s3() {
    round_trips(&Bench::s3s().archive("one"), 40);
}

#[test]
fn objects_come_back_from_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    round_trips(&Archive::open(&url, options("", "one")).unwrap(), 40);
}

/// Parts have 16 KiB: no object, less than a unit, units, and every kind of end of a part.
const LENGTHS: [usize; 10] = [0, 1, 4095, 4096, 4097, 16383, 16384, 16385, 32768, 100_000];

pub(crate) fn round_trips(archive: &Archive, reads: usize) {
    let pool = new_pool();
    let objects: Vec<Object> =
        (1..).zip(LENGTHS).map(|(id, bytes)| Object::new(id, bytes, id)).collect();
    for object in &objects {
        assert!(matches!(archive.head(pool, object.id), Err(ReadError::Missing { .. })));
        let receipt = archive.put(pool, object).unwrap();
        assert_eq!(receipt.parts_found, 0);
        assert_eq!(receipt.layout.parts() as usize, object.units().div_ceil(4).max(1));
        let again = archive.put(pool, object).unwrap();
        assert_eq!((again.parts_found, again.digest), (receipt.layout.parts(), receipt.digest));
    }
    for object in &objects {
        object.assert_is(&archive.head(pool, object.id).unwrap());
    }
    any_units_can_be_read(archive, pool, objects.last().unwrap(), reads);
    let known = archive.orphans(pool, std::time::Duration::ZERO, |_| true).unwrap();
    let parts: u32 = objects.iter().map(|object| object.units().div_ceil(4).max(1) as u32).sum();
    assert_eq!((known.known, known.strangers.len()), (u64::from(parts), 0));
    for object in &objects {
        assert!(archive.delete(pool, object.id).unwrap());
        assert!(!archive.delete(pool, object.id).unwrap());
    }
    assert_eq!(archive.orphans(pool, std::time::Duration::ZERO, |_| true).unwrap().known, 0);
}

fn any_units_can_be_read(archive: &Archive, pool: uuid::Uuid, object: &Object, reads: usize) {
    let stored = archive.head(pool, object.id).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..reads {
        let unit = random.random_range(0..object.units());
        let units = random.random_range(1..=object.units() - unit);
        assert!(read(&stored, unit, units).unwrap() == object.padded(unit, units));
        assert!(stored.verify_unit(unit as u64, &object.padded(unit, 1)).is_ok());
        assert!(stored.verify_unit(unit as u64, &[0; 4096]).is_err());
    }
    let beyond = read(&stored, object.units(), 1).unwrap_err();
    assert!(matches!(beyond, ReadError::BeyondEnd(_)), "{beyond}");
}

/// Tables that do not fit into the first request.
#[test]
fn long_tables_are_read_whole() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    let mut options = options("", "one");
    options.part_bytes = 64 << 20;
    let archive = Archive::open(&url, options).unwrap();
    let (pool, object) = (new_pool(), Object::new(1, (65 << 20) + 5, 1));
    archive.put(pool, &object).unwrap();
    let stored = archive.head(pool, object.id).unwrap();
    let last = object.units() - 1;
    assert!(read(&stored, last - 300, 301).unwrap() == object.padded(last - 300, 301));
    stored.verify().unwrap();
}
