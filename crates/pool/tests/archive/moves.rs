//! Objects of a pool on their way to an S3 server and back, over a network that misbehaves.

use std::sync::Arc;
use std::time::Duration;

use bindery_pool::archive::PutError;
use bindery_pool::mblock::Committed;
use bindery_pool::object::Object;
use bindery_pool::{MediaClass, MoveError, Pool};
use hyper::Method;

use super::model::{Written, read};
use super::proxy::{Fault, Rule};
use super::rig::Rig;
use super::server::Bench;

use MediaClass::{Archive, Capacity, Staging};

/// Three parts.
const LENGTH: usize = 40_000;

fn commit(pool: &Pool, seed: u64) -> (Arc<Committed>, Written) {
    let written = Written { seed, length: LENGTH };
    let mut writer = pool.allocate_mblock(Capacity, LENGTH as u64).unwrap();
    writer.append(&written.bytes()).unwrap();
    (writer.commit().unwrap(), written)
}

/// A pool whose archive makes one request after the other.
fn one_by_one(bench: &Bench, rig: &Rig) -> Pool {
    let mut options = bench.options("one");
    options.parts_at_once = 1;
    bench.proxy.follow([]);
    let pool = rig.create();
    pool.set_archive(bench.open(options).unwrap()).unwrap();
    pool
}

#[test]
fn a_move_survives_what_a_network_does_to_any_request() {
    let (bench, rig) = (Bench::s3s(), Rig::two());
    let pool = rig.create();
    let mut options = bench.options("one");
    options.patience.request = Duration::from_millis(400);
    pool.set_archive(bench.open(options).unwrap()).unwrap();
    let faults = [
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Refuse(503, "SlowDown"),
        Fault::Refuse(409, "ConditionalRequestConflict"),
        Fault::Delay(Duration::from_millis(600)),
    ];
    let mut seed = 0;
    for fault in faults {
        for method in [Method::PUT, Method::GET] {
            for nth in 0.. {
                seed += 1;
                let (object, written) = commit(&pool, seed);
                let id = object.id();
                drop(object);
                bench.proxy.follow([Rule::nth(method.clone(), nth, fault.clone())]);
                let archived = pool.move_to_archive(id).unwrap();
                assert_eq!(read(&archived), written.bytes());
                let back = pool.bring_back(id, Staging).unwrap();
                assert_eq!(read(&back), written.bytes());
                let fired = bench.proxy.fired();
                pool.delete(id).unwrap();
                drop((archived, back));
                pool.reclaim();
                if fired == 0 {
                    assert!(nth >= 3, "{method}: only {nth} requests");
                    break;
                }
            }
        }
    }
    bench.proxy.follow([]);
    let sweep = pool.sweep_archive(Duration::ZERO).unwrap();
    assert_eq!((sweep.known, sweep.removed), (0, 3 * seed));
}

/// However far a copy came, the object stays where it was, and the next attempt takes the copy up.
#[test]
fn a_move_that_was_cut_short_is_taken_up() {
    let (bench, rig) = (Bench::s3s(), Rig::two());
    let pool = one_by_one(&bench, &rig);
    for nth in 0..3 {
        let (object, written) = commit(&pool, nth);
        let id = object.id();
        drop(object);
        let refused = Fault::Refuse(403, "AccessDenied");
        let refused = Rule {
            skip: nth as usize,
            ..Rule::always(Method::PUT, &format!("{:016x}", id.0), refused)
        };
        bench.proxy.follow([refused]);
        let error = pool.move_to_archive(id).unwrap_err();
        assert!(matches!(error, MoveError::Put(PutError::Fault(_))), "{error}");
        let object = pool.get(id).unwrap();
        assert_eq!((object.class(), read(&object)), (Capacity, written.bytes()));
        bench.proxy.follow([]);
        // Half a copy of an object that the pool has is no orphan.
        assert_eq!(pool.sweep_archive(Duration::ZERO).unwrap().removed, 0);
        let archived = pool.move_to_archive(id).unwrap();
        assert_eq!(bench.proxy.requests(&Method::PUT), 3);
        assert_eq!((archived.class(), read(&archived)), (Archive, written.bytes()));
    }
}

#[test]
fn what_reads_back_wrong_is_not_moved() {
    let (bench, rig) = (Bench::s3s(), Rig::two());
    let pool = one_by_one(&bench, &rig);
    let (object, written) = commit(&pool, 1);
    let id = object.id();
    // In the table, before 16 KiB of content.
    bench.proxy.follow([Rule::always(Method::GET, "", Fault::FlipBit((16 << 10) + 10))]);
    let error = pool.move_to_archive(id).unwrap_err();
    assert!(matches!(error, MoveError::NotKept { .. }), "{error}");
    assert_eq!(pool.get(id).unwrap().class(), Capacity);
    assert_eq!(read(&object), written.bytes());
    bench.proxy.follow([]);
    assert_eq!(read(&pool.move_to_archive(id).unwrap()), written.bytes());
}

/// The object is gone when the catalogue says so; what the store did not delete is swept.
#[test]
fn a_deletion_that_the_store_does_not_take_is_swept() {
    let (bench, rig) = (Bench::s3s(), Rig::two());
    let pool = one_by_one(&bench, &rig);
    for nth in 0..3_u64 {
        bench.proxy.follow([]);
        let id = commit(&pool, nth).0.id();
        drop(pool.move_to_archive(id).unwrap());
        let refused = Fault::Refuse(403, "AccessDenied");
        let refused = Rule { skip: nth as usize, ..Rule::always(Method::DELETE, "", refused) };
        bench.proxy.follow([refused]);
        pool.delete(id).unwrap();
        assert!(pool.get(id).is_err());
        bench.proxy.follow([]);
        let sweep = pool.sweep_archive(Duration::ZERO).unwrap();
        assert_eq!((sweep.known, sweep.removed), (0, 3 - nth));
        assert_eq!(pool.sweep_archive(Duration::ZERO).unwrap().removed, 0);
    }
}
