//! What crashes leave behind is found and removed, and nothing else is.

use std::collections::HashSet;
use std::time::Duration;

use bindery_pool::ObjectId;
use bindery_pool::archive::{Archive, ReadError, Removal};

use super::objects::{Object, new_pool};
use super::server::{Bench, options};

#[test]
fn a_stale_listing_loses_nothing() {
    stale_listings_lose_nothing(&Bench::s3s());
}

const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn stale_listings_lose_nothing(bench: &Bench) {
    bench.proxy.follow([]);
    let archive = bench.archive("one");
    let pool = new_pool();
    let objects: Vec<Object> = (1..=4).map(|id| Object::new(id, 20_000, id)).collect();
    for object in &objects {
        archive.put(pool, object).unwrap();
    }
    bench.proxy.freeze_listings(true);
    let grace = Duration::ZERO;
    let old = archive.orphans(pool, grace, |_| false).unwrap();
    assert_eq!(old.orphans.len(), 8, "{old:?}");
    // The first comes to be known, the second goes, the fifth is made: the listing shows none of it.
    let known: HashSet<ObjectId> = [ObjectId(1), ObjectId(5)].into();
    let knows = |object| known.contains(&object);
    archive.delete(pool, ObjectId(2)).unwrap();
    archive.put(pool, &Object::new(5, 20_000, 5)).unwrap();
    let stale = archive.orphans(pool, grace, knows).unwrap();
    assert_eq!((stale.known, stale.orphans.len()), (2, 6));
    let other = bench.archive("other");
    for orphan in &old.orphans {
        let young = archive.remove_orphan(orphan, DAY, knows).unwrap();
        let another = other.remove_orphan(orphan, grace, knows).unwrap();
        let removal = archive.remove_orphan(orphan, grace, knows).unwrap();
        let (first, second, third) = match orphan.object.0 {
            1 => (Removal::Known, Removal::Known, Removal::Known),
            2 => (Removal::Gone, Removal::Gone, Removal::Gone),
            _ => (Removal::Young, Removal::Anothers("one".into()), Removal::Removed),
        };
        assert_eq!((young, another, removal), (first, second, third), "{orphan:?}");
    }
    bench.proxy.freeze_listings(false);
    let fresh = archive.orphans(pool, grace, knows).unwrap();
    assert_eq!((fresh.known, fresh.orphans.len()), (4, 0));
    for id in [1, 5] {
        Object::new(id, 20_000, id).assert_is(&archive.head(pool, ObjectId(id)).unwrap());
    }
    assert!(matches!(archive.head(pool, ObjectId(3)), Err(ReadError::Missing { .. })));
}

#[test]
fn strangers_other_pools_and_the_young_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    let archive = Archive::open(&url, options("", "one")).unwrap();
    let (pool, other) = (new_pool(), new_pool());
    archive.put(pool, &Object::new(1, 20_000, 1)).unwrap();
    archive.put(other, &Object::new(2, 20_000, 2)).unwrap();
    let strangers = ["README", "0000000000000001.1", "1"];
    for name in strangers {
        std::fs::write(directory.path().join(pool.to_string()).join(name), "kept").unwrap();
    }
    let listing = archive.orphans(pool, DAY, |_| false).unwrap();
    assert_eq!((listing.young, listing.orphans.len(), listing.strangers.len()), (2, 0, 3));
    let listing = archive.orphans(pool, Duration::ZERO, |_| false).unwrap();
    for orphan in &listing.orphans {
        let file = directory.path().join(&orphan.key);
        let before = std::fs::read(&file).unwrap();
        for strange in [&before[..100], b"", &before.repeat(2)[256..]] {
            std::fs::write(&file, strange).unwrap();
            let removal = archive.remove_orphan(orphan, Duration::ZERO, |_| false).unwrap();
            assert_eq!(removal, Removal::Strange);
        }
        std::fs::write(&file, before).unwrap();
        for expected in [Removal::Removed, Removal::Gone] {
            let removal = archive.remove_orphan(orphan, Duration::ZERO, |_| false).unwrap();
            assert_eq!(removal, expected);
        }
    }
    assert_eq!(listing.orphans.len(), 2);
    for name in strangers {
        assert!(directory.path().join(pool.to_string()).join(name).exists());
    }
    assert!(archive.head(other, ObjectId(2)).is_ok());
}
