//! A network and a store that lose, delay, refuse and damage.

use std::time::{Duration, Instant};

use bindery_pool::archive::{self, Archive, Damage, PutError, ReadError};
use hyper::Method;

use super::objects::{Object, new_pool, read};
use super::proxy::{Fault, Rule};
use super::server::Bench;

#[test]
fn lost_answers_lose_nothing() {
    answers_are_lost(&Bench::s3s());
}

/// Each request of a copy in turn is lost, done and its answer lost, refused, answered too late.
///
/// What is found is what the store was asked for more than once.
pub(crate) fn answers_are_lost(bench: &Bench) {
    bench.proxy.follow([]);
    let (patient, mut options) = (bench.archive("one"), bench.options("one"));
    options.patience.request = Duration::from_secs(1);
    let impatient = bench.open(options).unwrap();
    let pool = new_pool();
    let faults = [
        (Fault::LoseRequest, 0),
        (Fault::LoseAnswer, 1),
        (Fault::Refuse(503, "SlowDown"), 0),
        (Fault::Refuse(500, "InternalError"), 0),
        (Fault::Refuse(409, "ConditionalRequestConflict"), 0),
        (Fault::Delay(Duration::from_secs(60)), 1),
    ];
    let mut id = 0;
    for (fault, found) in faults {
        let archive = if matches!(fault, Fault::Delay(_)) { &impatient } else { &patient };
        for nth in 0.. {
            id += 1;
            let object = Object::new(id, 40_000, id);
            bench.proxy.follow([Rule::nth(Method::PUT, nth, fault.clone())]);
            let receipt = archive.put(pool, &object).unwrap();
            let (hit, again) = (bench.proxy.fired() == 1, bench.proxy.created_again());
            assert_eq!(receipt.parts_found as usize, again, "request {nth}");
            assert_eq!(again, if hit { found } else { 0 }, "request {nth}");
            bench.proxy.follow([]);
            object.assert_is(&archive.head(pool, object.id).unwrap());
            if !hit {
                assert_eq!(nth, 3, "an object of three parts takes three requests");
                break;
            }
        }
    }
}

#[test]
fn answers_that_end_early_or_arrive_damaged_are_asked_for_again() {
    let bench = Bench::s3s();
    let archive = bench.archive("one");
    let (pool, object) = (new_pool(), Object::new(1, 40_000, 1));
    archive.put(pool, &object).unwrap();
    for fault in [
        Fault::Truncate(0),
        Fault::Truncate(100),
        Fault::FlipBit(0),
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::Refuse(503, "SlowDown"),
    ] {
        for nth in 0.. {
            bench.proxy.follow([Rule::nth(Method::GET, nth, fault.clone())]);
            let stored = archive.head(pool, object.id).unwrap();
            assert!(read(&stored, 0, object.units()).unwrap() == object.padded(0, object.units()));
            if bench.proxy.fired() == 0 {
                assert_eq!(nth, 4, "one request for the table, one for each part");
                break;
            }
        }
    }
}

#[test]
fn what_is_damaged_each_time_is_damage() {
    let bench = Bench::s3s();
    let archive = bench.archive("one");
    let (pool, object) = (new_pool(), Object::new(1, 40_000, 1));
    archive.put(pool, &object).unwrap();
    let stored = archive.head(pool, object.id).unwrap();
    bench.proxy.follow([Rule::always(Method::GET, ".000001", Fault::FlipBit(4096))]);
    let error = read(&stored, 0, object.units()).unwrap_err();
    let ReadError::Damaged { key, damage: Damage::Unit { unit, .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((*unit, key.ends_with("1.000001")), (6, true), "{error}");
    assert_eq!(bench.proxy.fired(), 3);
    // What is beside it is still readable.
    assert!(read(&stored, 0, 4).unwrap() == object.padded(0, 4));
    assert!(read(&stored, 8, 2).unwrap() == object.padded(8, 2));
}

/// Every operation ends by its deadline, whatever the store does, and says what it met.
#[test]
fn deadlines_hold() {
    std::thread::scope(|scope| {
        for (fault, words) in [
            (Fault::Refuse(503, "SlowDown"), "SlowDown"),
            (Fault::LoseRequest, "did not come whole"),
            (Fault::Delay(Duration::from_secs(60)), "none within"),
        ] {
            scope.spawn(move || deadlines_hold_against(&fault, words));
        }
    });
}

fn deadlines_hold_against(fault: &Fault, words: &str) {
    let bench = Bench::s3s();
    let (pool, object) = (new_pool(), Object::new(1, 40_000, 1));
    bench.archive("one").put(pool, &object).unwrap();
    let mut options = bench.options("one");
    // Long enough for two attempts on a busy machine.
    options.patience.deadline = Duration::from_secs(5);
    let archive = bench.open(options).unwrap();
    let methods = [Method::PUT, Method::GET, Method::DELETE];
    bench.proxy.follow(methods.clone().map(|method| Rule::always(method, "", fault.clone())));
    std::thread::scope(|scope| {
        for method in methods {
            let (archive, object) = (&archive, &object);
            scope.spawn(move || {
                let start = Instant::now();
                let fault = attempt(archive, &method, pool, object);
                let took = start.elapsed();
                assert!(took < Duration::from_secs(9), "{took:?}");
                let archive::Fault::Deadline { attempts, last, .. } = &fault else {
                    panic!("{fault}")
                };
                assert!(last.to_string().contains(words), "{method}: {fault}");
                assert!(*attempts >= 2 || words == "none within", "{method}: {fault}");
            });
        }
    });
}

fn attempt(
    archive: &Archive,
    method: &Method,
    pool: uuid::Uuid,
    object: &Object,
) -> archive::Fault {
    let another = Object::new(2, 4096, 2);
    match *method {
        Method::PUT => match archive.put(pool, &another).unwrap_err() {
            PutError::Fault(fault) => fault,
            other => panic!("{other}"),
        },
        Method::GET => match archive.head(pool, object.id).unwrap_err() {
            ReadError::Fault(fault) => fault,
            other => panic!("{other}"),
        },
        _ => match archive.delete(pool, object.id).unwrap_err() {
            ReadError::Fault(fault) => fault,
            other => panic!("{other}"),
        },
    }
}

/// A copy that a crash cut short is taken up where it stopped, by a host with other settings too.
#[test]
fn interrupted_copies_go_on() {
    let bench = Bench::s3s();
    let pool = new_pool();
    for nth in 0..4 {
        let object = Object::new(nth, 64_000, nth);
        let mut options = bench.options("before");
        options.parts_at_once = 1;
        let before = bench.open(options).unwrap();
        let refused = Rule {
            skip: nth as usize,
            ..Rule::always(Method::PUT, &pool.to_string(), Fault::Refuse(403, "AccessDenied"))
        };
        bench.proxy.follow([refused]);
        assert!(before.put(pool, &object).is_err());
        bench.proxy.follow([]);
        let mut options = bench.options("after");
        options.part_bytes = 4096;
        let after = bench.open(options).unwrap();
        let receipt = after.put(pool, &object).unwrap();
        assert_eq!(u64::from(receipt.parts_found), nth);
        assert_eq!(receipt.layout.parts(), if nth == 0 { 16 } else { 4 });
        object.assert_is(&after.head(pool, object.id).unwrap());
    }
}

/// Deletions that are interrupted anywhere can be repeated, and leave nothing.
#[test]
fn interrupted_deletions_go_on() {
    let bench = Bench::s3s();
    let archive = bench.archive("one");
    let pool = new_pool();
    for nth in 0..4 {
        let object = Object::new(nth, 64_000, nth);
        bench.proxy.follow([]);
        archive.put(pool, &object).unwrap();
        let refused = Fault::Refuse(403, "AccessDenied");
        let refused = Rule { skip: nth as usize, ..Rule::always(Method::DELETE, "", refused) };
        bench.proxy.follow([refused]);
        assert!(archive.delete(pool, object.id).is_err());
        bench.proxy.follow([]);
        assert!(archive.delete(pool, object.id).unwrap());
        let left = archive.orphans(pool, Duration::ZERO, |_| false).unwrap();
        assert_eq!(left.orphans, []);
    }
}
