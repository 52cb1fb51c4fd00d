//! Children that go on seeing what was merged when they were born: when their VMM has ended, or has all its
//! memory merged anew, and whether anybody knows of them or not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_guest::{Connection, Guest, GuestError, Welcome};
use bindery_merge::{Engine, Grant, MergeSettings};

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

#[test]
fn a_child_of_fork_without_descriptors_keeps_what_it_saw() {
    outlast("unknown-fork");
}

#[test]
fn a_child_of_fork_that_closes_one_by_one_keeps_what_it_saw() {
    outlast("unknown-python");
}

#[test]
fn a_child_of_clone_keeps_what_it_saw() {
    outlast("unknown-clone");
}

#[test]
fn a_child_of_the_fork_without_handlers_keeps_what_it_saw() {
    outlast("unknown-_Fork");
}

#[test]
fn a_child_of_a_raw_clone_keeps_what_it_saw() {
    outlast("unknown-raw");
}

/// A little VMM and an engine that has merged what it has.
struct Scene {
    vmm: Vmm,
    engine: Engine,
    grant: Arc<Grant>,
    guest: Arc<Guest>,
}

impl Scene {
    fn new(action: &str) -> Option<Self> {
        if !can_manage() {
            return None;
        }
        let directory = tempfile::tempdir().expect("directory");
        let peer = Peer::listen(&Vmm::socket_in(&directory));
        let mut vmm = Vmm::start(directory, &["anonymous", action]);
        assert_eq!(vmm.line(), "ready");
        let engine = Engine::new(MergeSettings { backs_off: false, ..MergeSettings::default() });
        let grant = engine.domain("test").expect("a domain");
        let (name, domain) = ("little-vmm".to_owned(), grant.name().to_owned());
        let (digest_key, slots) = (grant.digest_key(), grant.slots());
        let segment_slots = grant.segment_slots();
        let welcome = Welcome { id: 1, name, domain, digest_key, slots, segment_slots };
        let guest = peer.arrival().welcome(welcome).expect("a guest");
        region(&guest);
        engine.add_guest(&grant, guest.clone());
        let scene = Self { vmm, engine, grant, guest };
        scene.periods(4);
        assert_eq!(scene.shared(), u64::from(KINDS));
        Some(scene)
    }

    fn periods(&self, count: u32) {
        (0..count).for_each(|_| self.engine.run_period());
    }

    /// Contents that pages of guests share.
    fn shared(&self) -> u64 {
        self.engine.status().domains.iter().map(|domain| domain.pages_shared).sum()
    }

    fn stored_bytes(&self) -> u64 {
        self.engine.status().domains.iter().map(|domain| domain.store_bytes).sum()
    }
}

fn outlive(action: &str) {
    let Some(mut scene) = Scene::new(action) else { return };
    scene.vmm.send("go");
    assert_eq!(scene.vmm.line(), "alone");
    await_end(&scene.guest);
    scene.engine.remove_guest(scene.guest.identity().id);
    scene.periods(3);
    // Its connection has ended a moment before it.
    let begun = Instant::now();
    while !scene.guest.has_ended() && begun.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(scene.guest.has_ended());
    assert_eq!((scene.shared(), scene.stored_bytes()), (0, 0), "the daemon knows of nobody");
    drop(scene.grant);
    let ended = scene.vmm.go();
    assert_eq!(ended.said, "ok", "log: {}", ended.log);
}

/// The VMM has the same numbers of slots with other contents, over and over, before its child looks.
fn outlast(action: &str) {
    let Some(mut scene) = Scene::new(action) else { return };
    for _ in 0..3 {
        scene.vmm.send("go");
        assert_eq!(scene.vmm.line(), "rewritten");
        let start = Instant::now();
        let merged = || {
            let status = scene.engine.status();
            status.domains[0].counts.pages_merged
        };
        scene.periods(2);
        while merged() < 128 {
            assert!(start.elapsed() < SOON, "only {} pages are merged anew", merged());
            scene.periods(1);
        }
        assert!(scene.stored_bytes() <= 4 * u64::from(KINDS) * 4096, "one segment at a time");
    }
    let ended = scene.vmm.go();
    assert_eq!(ended.said, "ok", "log: {}", ended.log);
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
