//! Deletions beside pushes, at each request of either.

use std::sync::{Arc, Mutex};

use bindery_checkpoint::{Name, RemoteError};
use hyper::Method;

use super::faults::bench_remote;
use super::proxy::{Fault, Rule};
use super::server::Bench;
use super::{Host, key, memory, names, open, packs, pull, push_stream};

fn called(guest: &str, checkpoint: &str) -> (Name, Name) {
    (guest.parse().unwrap(), checkpoint.parse().unwrap())
}

const METHODS: [Method; 3] = [Method::GET, Method::PUT, Method::DELETE];

/// While a checkpoint is pushed whose pages an older one has, that is deleted: before each request of the push.
#[test]
fn a_deletion_within_a_push_leaves_it_whole() {
    let host = Host::new();
    host.make("web", "one@a", &memory(1));
    let mut changed = memory(1);
    changed[0][7] = 1 << 41;
    host.make("web", "one@b", &changed);
    let (mut whole, mut swept) = (0, 0);
    let mut ended = Vec::new();
    for (nth, method) in (0..40).flat_map(|nth| METHODS.map(|method| (nth, method))) {
        if ended.contains(&method) {
            continue;
        }
        let bench = Bench::s3s();
        let remote = open(&bench, Some(&key(1)));
        host.push(&remote, "one@a").unwrap();
        let other = bench_remote(&bench);
        let act = Arc::new(move || _ = other.delete(&[called("one", "a")]).unwrap());
        bench.proxy.follow([Rule::nth(method.clone(), nth, Fault::Meanwhile(act))]);
        let pushed = host.push(&remote, "one@b");
        if bench.proxy.fired() == 0 {
            ended.push(method);
            continue;
        }
        bench.proxy.follow([]);
        match pushed {
            Ok(_) => {
                pull(&remote, "one@b", &changed).unwrap();
                whole += 1;
            }
            Err(RemoteError::Swept { .. }) => {
                assert!(names(&remote).is_empty());
                host.push(&remote, "one@b").unwrap();
                pull(&remote, "one@b", &changed).unwrap();
                swept += 1;
            }
            Err(error) => panic!("{method} {nth}: {error}"),
        }
        // All that is left is the other's.
        let deleted = remote.delete(&[called("one", "b")]).unwrap();
        assert!(!deleted.has_kept_packs && packs(&bench).is_empty(), "{method} {nth}: {deleted:?}");
    }
    assert_eq!(ended.len(), 3);
    eprintln!("{whole} pushes were whole, {swept} began anew");
    assert!(whole > 10, "{whole} were whole, {swept} began anew");
}

/// While a checkpoint is deleted, another is pushed that has its pages: before each request of the deletion.
#[test]
fn a_push_within_a_deletion_is_whole() {
    let host = Host::new();
    host.make("web", "one@a", &memory(1));
    let mut changed = memory(1);
    changed[0][7] = 1 << 41;
    host.make("web", "one@b", &changed);
    let stream = host.export("one@b");
    let mut tries = 0;
    let mut ended = Vec::new();
    for (nth, method) in (0..60).flat_map(|nth| METHODS.map(|method| (nth, method))) {
        if ended.contains(&method) {
            continue;
        }
        let bench = Bench::s3s();
        let remote = open(&bench, Some(&key(1)));
        host.push(&remote, "one@a").unwrap();
        let (other, stream) = (bench_remote(&bench), stream.clone());
        let outcome = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&outcome);
        let act = Arc::new(move || *kept.lock().unwrap() = Some(push_stream(&other, &stream)));
        bench.proxy.follow([Rule::nth(method.clone(), nth, Fault::Meanwhile(act))]);
        remote.delete(&[called("one", "a")]).unwrap();
        bench.proxy.follow([]);
        let Some(pushed) = outcome.lock().unwrap().take() else {
            ended.push(method);
            continue;
        };
        tries += 1;
        match pushed {
            Ok(_) => _ = pull(&remote, "one@b", &changed).unwrap(),
            Err(RemoteError::Swept { .. }) => assert!(names(&remote).is_empty()),
            Err(error) => panic!("{method} {nth}: {error}"),
        }
    }
    assert!(tries > 10, "{tries} tries");
    assert_eq!(ended.len(), 3);
}

/// Listings that stay as they were: nothing is removed that is in use, and a push is whole.
#[test]
fn stale_listings_lose_nothing() {
    let (bench, host) = (Bench::s3s(), Host::new());
    let remote = open(&bench, Some(&key(1)));
    host.make("web", "one@a", &memory(1));
    host.make("web", "one@b", &memory(1));
    host.make("web", "one@c", &memory(1));
    host.push(&remote, "one@a").unwrap();
    bench.proxy.freeze_listings(true);
    names(&remote);
    host.push(&remote, "one@b").unwrap();
    let deleted = remote.delete(&[called("one", "a")]).unwrap();
    assert!(deleted.has_kept_packs, "{deleted:?}");
    bench.proxy.freeze_listings(false);
    pull(&remote, "one@b", &memory(1)).unwrap();
    let pushed = host.push(&remote, "one@c").unwrap();
    assert_eq!(pushed.checkpoint.sent_pages, 0);
    for checkpoint in ["b", "c"] {
        pull(&remote, &format!("one@{checkpoint}"), &memory(1)).unwrap();
        remote.delete(&[called("one", checkpoint)]).unwrap();
    }
    assert!(packs(&bench).is_empty());
}

#[test]
fn pushes_and_deletions_at_once_leave_whole_checkpoints() {
    let (bench, host) = (Bench::s3s(), Host::new());
    let names_of = ["a", "b", "c", "d"];
    for name in names_of {
        host.make("web", &format!("one@{name}"), &memory(1));
    }
    std::thread::scope(|scope| {
        for name in names_of {
            let (bench, stream) = (&bench, host.export(&format!("one@{name}")));
            scope.spawn(move || {
                let remote = bench_remote(bench);
                for _ in 0..3 {
                    match push_stream(&remote, &stream) {
                        Ok(_) => {
                            pull(&remote, &format!("one@{name}"), &memory(1)).unwrap();
                            remote.delete(&[called("one", name)]).unwrap();
                        }
                        Err(RemoteError::Swept { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                push_stream(&remote, &stream).unwrap();
            });
        }
    });
    let remote = bench_remote(&bench);
    assert_eq!(names(&remote).len(), 4);
    for name in names_of {
        pull(&remote, &format!("one@{name}"), &memory(1)).unwrap();
    }
    let all = names_of.map(|name| called("one", name));
    assert!(!remote.delete(&all).unwrap().has_kept_packs);
    assert!(packs(&bench).is_empty());
}
