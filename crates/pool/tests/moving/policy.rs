//! What nobody uses is archived.

use std::time::{Duration, Instant};

use bindery_pool::MediaClass::{Archive, Capacity, Staging};
use bindery_pool::ObjectAmount;
use bindery_pool::object::Object;

use crate::life::{Place, commit};
use crate::model::Written;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn what_is_held_or_was_used_lately_stays() {
    let place = Place::new();
    let pool = place.create();
    let new = |class, seed| commit(&pool, class, Written { seed, length: 9000 });
    let [first, second] = [1, 2].map(|seed| new(Capacity, seed).id());
    let (held, staged) = (new(Capacity, 3), new(Staging, 4).id());
    let nothing = pool.archive_idle(HOUR, Capacity).unwrap();
    assert_eq!((nothing.moved.objects, nothing.used), (0, 3));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        std::thread::sleep(Duration::from_millis(10));
    }
    // To be verified is no use; to be had is.
    assert!(pool.verify().findings.is_empty());
    drop(pool.get(second).unwrap());
    let idle = Duration::from_millis(200);
    let archived = pool.archive_idle(idle, Capacity).unwrap();
    // A slow machine may have taken so long since that the second is idle, too.
    let late = start.elapsed() > 2 * idle;
    assert!(archived.moved.objects == 1 || late, "{archived:?}");
    assert_eq!(pool.get(first).unwrap().class(), Archive);
    assert_eq!((held.class(), pool.get(staged).unwrap().class()), (Capacity, Staging));
    let rest = pool.archive_idle(Duration::ZERO, Capacity).unwrap();
    assert_eq!(archived.moved.objects + rest.moved.objects, 2);
    assert_eq!(rest.used, 1);
    assert_eq!(pool.statistics().archived, ObjectAmount { objects: 2, bytes: 18_000 });
    drop(pool.bring_back(first, Staging).unwrap());
    assert_eq!(pool.statistics().brought_back, ObjectAmount { objects: 1, bytes: 9000 });
    assert_eq!(pool.statistics().committed, 4);
}

#[test]
fn after_an_opening_idleness_counts_from_then() {
    let place = Place::new();
    let pool = place.create();
    let id = commit(&pool, Capacity, Written { seed: 1, length: 9000 }).id();
    drop(pool);
    let pool = place.reopen();
    assert_eq!(pool.archive_idle(HOUR, Capacity).unwrap().moved.objects, 0);
    assert_eq!(pool.archive_idle(Duration::ZERO, Capacity).unwrap().moved.objects, 1);
    assert_eq!(pool.get(id).unwrap().class(), Archive);
}
