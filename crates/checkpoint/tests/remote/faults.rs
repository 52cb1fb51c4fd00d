//! A network and a store that fail in every way.

use std::ops::ControlFlow;
use std::sync::Arc;

use bindery_checkpoint::RemoteError;
use hyper::Method;

use super::proxy::{Fault, Rule};
use super::server::Bench;
use super::{Host, key, memory, names, open, packs, pull, stored};

/// Requests that are lost, refused for now, or answered in part, at each place: a push and a pull get through.
#[test]
fn what_fails_for_now_is_repeated() {
    let (bench, host) = (Bench::s3s(), Host::new());
    let remote = open(&bench, Some(&key(1)));
    host.make("web", "one@a", &memory(1));
    let faults = [
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Refuse(503, "SlowDown"),
        Fault::Refuse(409, "ConditionalRequestConflict"),
    ];
    for (method, fault) in [Method::PUT, Method::GET]
        .into_iter()
        .flat_map(|method| faults.clone().map(|fault| (method.clone(), fault)))
    {
        for nth in 0.. {
            if method == Method::GET && matches!(fault, Fault::Refuse(409, _)) {
                break;
            }
            bench.proxy.follow([Rule::nth(method.clone(), nth, fault.clone())]);
            host.push(&remote, "one@a").unwrap();
            pull(&remote, "one@a", &memory(1)).unwrap();
            let was_hit = bench.proxy.fired() > 0;
            bench.proxy.follow([]);
            assert_eq!(names(&remote), ["one@a"]);
            let deleted = remote.delete(&[("one".parse().unwrap(), "a".parse().unwrap())]).unwrap();
            assert!(!deleted.has_kept_packs);
            assert!(packs(&bench).is_empty(), "nothing is left over");
            if !was_hit {
                assert!(nth > 10, "{nth} requests");
                break;
            }
        }
    }
}

/// A push that ends at each request leaves no checkpoint, and the next one sends only what is missing.
#[test]
fn a_push_that_ends_anywhere_goes_on_where_it_was() {
    let host = Host::new();
    host.make("web", "one@a", &memory(1));
    let all = stored(&memory(1));
    let mut fewest = all;
    for nth in 0.. {
        let bench = Bench::s3s();
        let remote = open(&bench, Some(&key(1)));
        let refused = Fault::Refuse(403, "AccessDenied");
        bench.proxy.follow([Rule { skip: nth, ..Rule::always(Method::PUT, "", refused) }]);
        let ended = host.push(&remote, "one@a");
        bench.proxy.follow([]);
        if ended.is_ok() {
            assert!(nth > 8, "{nth} requests");
            break;
        }
        assert!(names(&remote).is_empty(), "half a push is no checkpoint");
        let sent = packs(&bench).len();
        let again = host.push(&remote, "one@a").unwrap();
        // A pack has four pages; the last one may have fewer.
        let known = all - again.checkpoint.sent_pages;
        let (least, most) = (4 * sent.saturating_sub(2) as u64, 4 * sent as u64);
        assert!((least..=most).contains(&known), "{known} of {sent} packs were known");
        fewest = fewest.min(again.checkpoint.sent_pages);
        pull(&remote, "one@a", &memory(1)).unwrap();
        // The claim of the push that ended counts no more.
        let deleted = remote.delete(&[("one".parse().unwrap(), "a".parse().unwrap())]).unwrap();
        assert!(!deleted.has_kept_packs && packs(&bench).is_empty(), "{deleted:?}");
    }
    assert_eq!(fewest, 0, "only the manifest was missing");
}

#[test]
fn a_push_that_is_cancelled_leaves_no_claim() {
    let (bench, host) = (Bench::s3s(), Host::new());
    let remote = open(&bench, Some(&key(1)));
    host.make("web", "one@a", &memory(1));
    let stream = host.export("one@a");
    let ended = remote.push(&mut &stream[..], &mut |_| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(ended, RemoteError::Stopped), "{ended}");
    // A stream that is cut off is no checkpoint either.
    let cut = remote.push(&mut &stream[..stream.len() - 1], &mut |_| ControlFlow::Continue(()));
    assert!(matches!(cut, Err(RemoteError::Stream(_))), "{cut:?}");
    assert!(names(&remote).is_empty());
    let claims =
        super::objects(&bench).iter().filter(|file| file.iter().any(|part| part == "c")).count();
    assert_eq!(claims, 0);
}

/// Stores that acknowledge what they do not keep, each object in turn.
#[test]
fn what_a_store_only_acknowledges_is_no_checkpoint() {
    let host = Host::new();
    host.make("web", "one@a", &memory(1));
    for nth in 0.. {
        let bench = Bench::s3s();
        let remote = open(&bench, None);
        bench.proxy.follow([Rule::nth(Method::PUT, nth, Fault::Acknowledge(""))]);
        let pushed = host.push(&remote, "one@a");
        if bench.proxy.fired() == 0 {
            pushed.unwrap();
            assert!(nth > 8, "{nth} requests");
            break;
        }
        let error = pushed.unwrap_err();
        assert!(matches!(error, RemoteError::NotKept { .. }), "{error}");
        bench.proxy.follow([]);
        assert!(names(&remote).is_empty());
        host.push(&remote, "one@a").unwrap();
        pull(&remote, "one@a", &memory(1)).unwrap();
    }
}

/// Answers that end early or have a bit turned are asked for again.
#[test]
fn damaged_answers_are_asked_for_again() {
    let (bench, host) = (Bench::s3s(), Host::new());
    let remote = open(&bench, Some(&key(1)));
    host.make("web", "one@a", &memory(1));
    host.push(&remote, "one@a").unwrap();
    for fault in [Fault::Truncate(100), Fault::FlipBit(5), Fault::Truncate(0)] {
        for nth in 0.. {
            bench.proxy.follow([Rule::nth(Method::GET, nth, fault.clone())]);
            pull(&remote, "one@a", &memory(1)).unwrap();
            if bench.proxy.fired() == 0 {
                assert!(nth > 8, "{nth} requests");
                break;
            }
        }
    }
}

#[test]
fn a_checkpoint_that_goes_while_it_is_pulled_is_an_error() {
    let (bench, host) = (Bench::s3s(), Host::new());
    let remote = open(&bench, Some(&key(1)));
    host.make("web", "one@a", &memory(1));
    let stream = host.export("one@a");
    for nth in 0..12 {
        super::push_stream(&remote, &stream).unwrap();
        let direct = bench_remote(&bench);
        let act = Arc::new(move || {
            let _ = direct.delete(&[("one".parse().unwrap(), "a".parse().unwrap())]);
        });
        bench.proxy.follow([Rule::nth(Method::GET, nth, Fault::Meanwhile(act))]);
        match pull(&remote, "one@a", &memory(1)) {
            Ok(_) | Err(RemoteError::Lost { .. } | RemoteError::Missing { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        bench.proxy.follow([]);
        if !names(&remote).is_empty() {
            remote.delete(&[("one".parse().unwrap(), "a".parse().unwrap())]).unwrap();
        }
    }
}

/// Another host of the same key.
pub(crate) fn bench_remote(bench: &Bench) -> bindery_checkpoint::Remote {
    open(bench, Some(&key(1)))
}
