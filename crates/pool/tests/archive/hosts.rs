//! Two hosts, one bucket: nobody's object is overwritten, whoever comes first.

use std::sync::{Arc, Barrier};

use bindery_pool::archive::{Archive, PutError, Receipt};
use hyper::Method;

use super::objects::{Object, new_pool};
use super::proxy::{Fault, Rule};
use super::server::{Bench, options};

#[test]
fn one_of_two_hosts_wins() {
    one_of_two_wins(&Bench::s3s(), 30);
}

#[test]
fn one_of_two_hosts_wins_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    let host = |name| Archive::open(&url, options("", name)).unwrap();
    race([&host("north"), &host("south")], 30);
}

pub(crate) fn one_of_two_wins(bench: &Bench, rounds: u64) {
    bench.proxy.follow([]);
    race([&bench.archive("north"), &bench.archive("south")], rounds);
}

/// Of two contents under one name exactly one is there afterwards, whole, and the other host knows
/// whose. One has one part, the other several.
fn race(hosts: [&Archive; 2], rounds: u64) {
    let pool = new_pool();
    let mut wins = [0, 0];
    for round in 1..=rounds {
        let objects = [Object::new(round, 9_000, round), Object::new(round, 50_000, round + 1000)];
        let together = Barrier::new(2);
        let outcomes: Vec<Result<Receipt, PutError>> = std::thread::scope(|scope| {
            let putting = hosts.iter().zip(&objects).map(|(host, object)| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    host.put(pool, object)
                })
            });
            let putting: Vec<_> = putting.collect();
            putting.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winner = outcomes.iter().position(Result::is_ok).expect("one wins");
        let error = outcomes[1 - winner].as_ref().expect_err("the other does not");
        let PutError::Taken { there, .. } = error else { panic!("{error}") };
        assert!(there.contains(["north", "south"][winner]), "{there}");
        objects[winner].assert_is(&hosts[1 - winner].head(pool, objects[winner].id).unwrap());
        wins[winner] += 1;
    }
    println!("wins: {wins:?}");
}

/// A request is lost; before it is repeated the other host creates the object.
#[test]
fn what_another_host_made_meanwhile_is_not_taken_for_ours() {
    let bench = Bench::s3s();
    let (north, south) = (bench.archive("north"), bench.direct("south"));
    let pool = new_pool();
    let (ours, theirs) = (Object::new(1, 5_000, 1), Object::new(1, 5_000, 2));
    for (same, expected) in [(false, None), (true, Some(1))] {
        let there = Object { id: bindery_pool::ObjectId(u64::from(same)), ..theirs.clone() };
        let here = if same { there.clone() } else { Object { id: there.id, ..ours.clone() } };
        let (host, object) = (south.clone(), there.clone());
        let act = Arc::new(move || assert_eq!(host.put(pool, &object).unwrap().parts_found, 0));
        bench.proxy.follow([Rule::nth(Method::PUT, 0, Fault::Meanwhile(act))]);
        let outcome = north.put(pool, &here);
        assert_eq!(bench.proxy.fired(), 1);
        match (outcome, expected) {
            (Ok(receipt), Some(found)) => assert_eq!(receipt.parts_found, found),
            (Err(PutError::Taken { there, .. }), None) => assert!(there.contains("south")),
            (outcome, _) => panic!("{outcome:?}"),
        }
        there.assert_is(&south.head(pool, there.id).unwrap());
    }
}
