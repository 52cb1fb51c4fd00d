//! Guests write and verify while the machine makes huge pages for all memory, for memory that asks for them, or for
//! none. khugepaged works without a pause, and the daemon makes blocks whole as soon as anything in them is written,
//! splits them again, and is killed at random instants. Guests lose nothing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::time::Duration;

use bindery_sys::huge::Policy;
use bindery_testkit::bindery::{Bindery, Daemon};
use bindery_testkit::guest::Kit;
use bindery_testkit::machine::HugePagesGuard;
use bindery_testkit::process::serve_if_started;
use bindery_testkit::skipped;
use fire::busy::{
    BusyGuest, PROCESSES, await_sharing, await_taken_over, random, start_processes, verify,
};
use fire::{amount, bindery_and_kit, daemon_with, figure, guest_status};

/// How often the daemon is killed.
const KILLS_VARIABLE: &str = "BINDERY_HUGE_PAGES_KILLS";
const KILLS: u32 = 4;

/// Time in which blocks are split and made whole, before a daemon is killed.
const LIFE_MS: u64 = 4000;
const LIFE_MORE_MS: u64 = 2000;

/// Ways with huge pages that never rest.
const SETTINGS: [&[&str]; 2] = [
    &["huge_pages=auto", "huge_pages_hot=1", "huge_pages_patience=1"],
    &["huge_pages=break", "huge_pages_thin=48", "huge_pages_patience=1"],
];

#[test]
fn guest_process() {
    serve_if_started();
}

/// Blocks of a guest that were split and made whole by one daemon, or more.
#[derive(Clone, Copy, Debug, Default)]
struct Turned {
    split: u64,
    made_whole: u64,
}

impl Turned {
    fn add(&mut self, daemon: &Daemon) {
        let Some(status) = guest_status(daemon, BusyGuest::NAME) else { return };
        let whole = ["collapses_thin", "collapses_hot", "collapses_empty"];
        self.split += figure(&status, "huge_splits");
        self.made_whole += whole.iter().map(|why| figure(&status, why)).sum::<u64>();
    }
}

fn go_through(bindery: &Bindery, kit: &Kit, policy: Policy) -> Turned {
    let directory = tempfile::tempdir().unwrap();
    let start = |settings: &[&str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        daemon_with(bindery, &settings.collect::<Vec<_>>())
    };
    let mut daemon = start(SETTINGS[0]);
    let mut machine = BusyGuest::boot(&daemon, kit, directory.path());
    let mut processes = start_processes(&daemon);
    let all = [PROCESSES[0], PROCESSES[1], BusyGuest::NAME];
    let mut turned = Turned::default();
    for kill in 0..amount(KILLS_VARIABLE, KILLS) {
        await_taken_over(&daemon, &all);
        await_sharing(&daemon);
        for setting in SETTINGS[kill as usize % SETTINGS.len()] {
            daemon.command(&["set", setting]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(LIFE_MS + random(LIFE_MORE_MS)));
        turned.add(&daemon);
        daemon.kill();
        verify(&mut processes);
        machine.go_on();
        daemon.start().unwrap_or_else(|error| panic!("{policy:?}, after {kill} kills: {error}"));
    }
    await_taken_over(&daemon, &all);
    processes.iter_mut().for_each(|guest| guest.rest().unwrap());
    verify(&mut processes);
    machine.finish();
    turned
}

#[test]
fn guests_lose_nothing_whatever_becomes_of_their_huge_pages() {
    let Some((bindery, kit)) = bindery_and_kit() else { return };
    for policy in [Policy::Always, Policy::Madvise, Policy::Never] {
        let guard = HugePagesGuard::set(policy).and_then(HugePagesGuard::with_eager_khugepaged);
        let _guard = match guard {
            Ok(guard) => guard,
            Err(error) => return skipped!("{error}"),
        };
        let turned = go_through(&bindery, &kit, policy);
        println!("{policy:?}: {turned:?}");
        if policy != Policy::Never {
            assert!(turned.split > 0 && turned.made_whole > 0, "{policy:?}: {turned:?}");
        }
    }
}
