//! The daemon is killed at random instants, and guests' connections are cut, while guests write and
//! verify. Guests never stop and lose nothing; the next daemon takes them over and merges.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::collections::BTreeSet;
use std::time::Duration;

use bindery_testkit::bindery::Daemon;
use bindery_testkit::process::{ProcessGuest, serve_if_started};
use fire::busy::{
    BusyGuest, PROCESSES, await_sharing, await_taken_over, random, start_processes, verify,
};
use fire::{
    PATIENCE, amount, await_guest, await_some, bindery, bindery_and_kit, eager_daemon, figure,
    mapped_stores, store_descriptors,
};

/// How often the daemon is killed.
const KILLS_VARIABLE: &str = "BINDERY_DAEMON_KILLS";
const KILLS: u32 = 8;

/// A daemon lives for at most so long: from being welcomed to merging at full speed.
const LIFE_MAX_MS: u64 = 1200;

/// How long there is none, at most.
const GAP_MAX_MS: u64 = 200;

#[test]
fn guest_process() {
    serve_if_started();
}

#[test]
fn guests_outlive_daemons_killed_at_any_instant() {
    let Some((bindery, kit)) = bindery_and_kit() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = eager_daemon(&bindery);
    let mut machine = BusyGuest::boot(&daemon, &kit, directory.path());
    let mut processes = start_processes(&daemon);
    let all = [PROCESSES[0], PROCESSES[1], BusyGuest::NAME];
    await_taken_over(&daemon, &all);
    await_sharing(&daemon);

    let (mut taken, mut sharing) = (Vec::new(), Vec::new());
    for kill in 0..amount(KILLS_VARIABLE, KILLS) {
        std::thread::sleep(Duration::from_millis(random(LIFE_MAX_MS)));
        daemon.kill();
        std::thread::sleep(Duration::from_millis(random(GAP_MAX_MS)));
        daemon.start().unwrap_or_else(|error| panic!("after {kill} kills: {error}"));
        if random(3) == 0 {
            processes[random(2) as usize].cut_connections().unwrap();
        }
        // Every other daemon is killed before it has settled.
        if kill % 2 == 1 {
            taken.push(await_taken_over(&daemon, &all));
            sharing.push(await_sharing(&daemon));
            verify(&mut processes);
            machine.go_on();
        }
    }
    await_taken_over(&daemon, &all);
    await_sharing(&daemon);
    processes.iter_mut().for_each(|guest| guest.rest().unwrap());
    verify(&mut processes);
    machine.finish();
    assert_one_store(&daemon, &processes);
    taken.sort();
    sharing.sort();
    println!(
        "all guests taken over after {:?} in the median, {:?} at most; merging {:?}, {:?} later",
        taken[taken.len() / 2],
        taken[taken.len() - 1],
        sharing[sharing.len() / 2],
        sharing[sharing.len() - 1],
    );
}

/// The stores of daemons that ended are given up once their pages were merged anew or came back, by
/// the guests and by the daemon.
fn assert_one_store(daemon: &Daemon, processes: &[ProcessGuest]) {
    await_some(
        "no page is merged with an old store",
        PATIENCE,
        || {
            let guests = daemon.guests().ok()?;
            let mut guests = guests.as_array()?.iter();
            guests.all(|guest| figure(guest, "pages_foreign") == 0).then_some(())
        },
        || format!("{:?}\n{}", daemon.guests(), daemon.log()),
    );
    let daemon_pid = daemon.pid().expect("the daemon runs");
    for pid in processes.iter().map(ProcessGuest::pid) {
        let strange = || -> Vec<_> {
            let held: BTreeSet<_> = store_descriptors(daemon_pid).into_values().collect();
            mapped_stores(pid).difference(&held).cloned().collect()
        };
        await_some(
            "old stores are given up",
            PATIENCE,
            || strange().is_empty().then_some(()),
            || format!("{:?}\n{:?}\n{}", strange(), daemon.guests(), daemon.log()),
        );
    }
}

#[test]
fn a_guest_whose_connection_is_cut_comes_back_under_its_name() {
    let Some(bindery) = bindery() else { return };
    let daemon = eager_daemon(&bindery);
    let mut processes = start_processes(&daemon);
    await_taken_over(&daemon, &PROCESSES);
    await_sharing(&daemon);
    for cut in 0..amount(KILLS_VARIABLE, KILLS) {
        std::thread::sleep(Duration::from_millis(random(LIFE_MAX_MS / 2)));
        // Cut before, it may be on its way back.
        let process = &mut processes[cut as usize % 2];
        await_some(
            "a connection to be cut",
            PATIENCE,
            || (process.cut_connections().unwrap() > 0).then_some(()),
            || format!("{:?}", daemon.guests()),
        );
        // Those of lanes go first, or last: at times there is only the control connection.
        await_taken_over(&daemon, &PROCESSES);
    }
    for name in PROCESSES {
        await_guest(&daemon, name, "it merges again", |status| {
            status["state"]["name"] == "merging" && figure(status, "pages_merged") > 0
        });
    }
    await_some(
        "guests are listed once",
        PATIENCE,
        || {
            let listed = daemon.guests().ok()?.as_array()?.len();
            (listed == PROCESSES.len()).then_some(())
        },
        || format!("{:?}", daemon.guests()),
    );
    verify(&mut processes);
}
