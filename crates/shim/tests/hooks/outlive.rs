//! Children of fork that go on when their VMM has ended.

use std::time::{Duration, Instant};

use bindery_guest::{Connection, Guest, GuestError, Welcome};
use bindery_merge::{Engine, Settings};

use crate::can_manage;
use crate::peer::{KINDS, Peer, SOON, region};
use crate::vmm::Vmm;

#[test]
fn a_child_that_outlives_its_vmm_sees_what_it_saw() {
    outlive("outlive");
}

/// As daemons do it: nothing but its mappings is left to tell of it.
#[test]
fn so_does_one_that_closes_all_descriptors() {
    outlive("outlive-closed");
}

fn outlive(action: &str) {
    if !can_manage() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let peer = Peer::listen(&Vmm::socket_in(&directory));
    let mut vmm = Vmm::start(directory, &["anonymous", action]);
    assert_eq!(vmm.line(), "ready");
    let engine = Engine::new(Settings::default());
    let grant = engine.domain("test").expect("a domain");
    let (name, domain) = ("little-vmm".to_owned(), grant.name().to_owned());
    let (digest_key, store, slots) = (grant.digest_key(), grant.store(), grant.slots());
    let welcome = Welcome { id: 1, name, domain, digest_key, store, slots };
    let guest = peer.arrival().welcome(welcome).expect("a guest");
    region(&guest);
    engine.add_guest(&grant, guest.clone());
    let periods = |count| (0..count).for_each(|_| engine.run_period());
    let shared = || engine.status().domains.iter().map(|domain| domain.pages_shared).sum::<u64>();
    periods(4);
    assert_eq!(shared(), u64::from(KINDS));

    vmm.send("go");
    assert_eq!(vmm.line(), "alone");
    await_end(&guest);
    engine.remove_guest(guest.identity().id);
    periods(3);
    assert!(!guest.has_ended(), "its child has not");
    assert_eq!(shared(), u64::from(KINDS));

    let ended = vmm.go();
    assert_eq!(ended.said, "ok", "log: {}", ended.log);
    let start = Instant::now();
    while shared() > 0 {
        assert!(start.elapsed() < SOON, "nobody sees the pages any more");
        periods(1);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(guest.has_ended());
}

/// Waits as the daemon does for the end of a guest's connection.
fn await_end(guest: &Guest) {
    let start = Instant::now();
    loop {
        match guest.wait_events(Duration::from_millis(100)) {
            Err(GuestError::Gone) => return,
            Err(error) => panic!("{error}"),
            Ok(_) => assert!(start.elapsed() < SOON, "the end of the process is not noticed"),
        }
    }
}
