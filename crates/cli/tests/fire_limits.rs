//! What runs out: mappings, memory, slots of the store, descriptors. Merging pauses or goes on with
//! what there is and says so; guests go on, and nothing is lost.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bindery_testkit::bindery::{Bindery, Daemon};
use bindery_testkit::machine::{ControlGroup, MAX_MAP_COUNT, SettingGuard};
use bindery_testkit::process::{ProcessGuest, serve_if_started};
use bindery_testkit::skipped;
use fire::{PATIENCE, await_guest, await_some, bindery, eager_daemon, figure, guest_status};
use serde_json::Value;

/// Runs of one page each: every fourth page is the same in all guests.
const PAGES: usize = 8192;

/// Slow enough for most pages to stay alike.
const PAUSE_US: u64 = 20_000;

#[test]
fn guest_process() {
    serve_if_started();
}

/// Limits of the machine are everybody's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(daemon: &Daemon, name: &str, seed: u64) -> ProcessGuest {
    let mut guest = ProcessGuest::start(&daemon.launcher(name), PAGES, seed).unwrap();
    guest.offer().unwrap();
    guest
}

fn domain(daemon: &Daemon) -> Value {
    daemon.status().unwrap_or_else(|error| panic!("{error}"))["domains"][0].clone()
}

fn explain(daemon: &Daemon) -> String {
    format!("{:?}\n{:?}\n{}", daemon.status(), daemon.guests(), daemon.log())
}

/// Waits until the daemon's only domain is in one of `states`, with advice unless all is well.
fn await_domain(daemon: &Daemon, what: &str, states: &[&str]) {
    await_some(
        what,
        PATIENCE,
        || {
            let state = domain(daemon)["state"].clone();
            let name = state["name"].as_str()?;
            assert!(name == "merging" || state["advice"].is_string(), "no advice in {state}");
            states.contains(&name).then_some(())
        },
        || explain(daemon),
    );
}

/// Guests have gone on, with all that they wrote.
fn verify(guests: &mut [ProcessGuest]) {
    for guest in guests {
        let before = guest.verify().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let after = guest.verify().unwrap();
        assert_eq!(after.bad, 0, "of {} pages", after.pages);
        assert!(after.pages > before.pages);
    }
}

#[test]
fn mappings_that_run_out_stop_merging_and_nothing_else() {
    let Some(bindery) = bindery() else { return };
    let _alone = alone();
    let limit = match SettingGuard::set(MAX_MAP_COUNT, 2500) {
        Ok(guard) => guard,
        Err(error) => return skipped!("{error}"),
    };
    let daemon = eager_daemon(&bindery);
    let mut guests = [start(&daemon, "one", 1), start(&daemon, "two", 2)];
    for name in ["one", "two"] {
        let status = await_guest(&daemon, name, "it is short of mappings", |status| {
            status["state"]["name"] == "mappings-short"
        });
        assert!(status["state"]["advice"].as_str().unwrap().contains("vm.max_map_count"));
        assert!(figure(&status, "mappings") <= 2500, "{status}");
        assert!(figure(&status, "pages_merged") > 0, "merging goes on within the limit: {status}");
    }
    guests.iter_mut().for_each(|guest| guest.churn(PAUSE_US).unwrap());
    std::thread::sleep(Duration::from_secs(1));
    verify(&mut guests);
    guests.iter_mut().for_each(|guest| guest.rest().unwrap());
    let merged = figure(&guest_status(&daemon, "one").unwrap(), "pages_merged");

    drop(limit);
    await_guest(&daemon, "one", "it merges on with more mappings", |status| {
        status["state"]["name"] == "merging" && figure(status, "pages_merged") > merged
    });
    verify(&mut guests);
}

#[test]
fn a_full_cgroup_pauses_merging_and_the_daemon_lives() {
    let Some(bindery) = bindery() else { return };
    let _alone = alone();
    let group = match ControlGroup::create("test") {
        Ok(group) => group,
        Err(error) => return skipped!("no memory cgroup can be made: {error}"),
    };
    // Dropped before the group.
    let daemon = eager_daemon(&bindery);
    group.put(daemon.pid().unwrap()).unwrap();
    // Some 12 MiB would go to the store.
    group.set_memory_limit(6 << 20).unwrap();
    let mut guests = [start(&daemon, "one", 1), start(&daemon, "two", 2)];
    await_domain(&daemon, "memory is short", &["memory-short"]);
    guests.iter_mut().for_each(|guest| guest.churn(PAUSE_US).unwrap());
    std::thread::sleep(Duration::from_secs(1));
    verify(&mut guests);
    guests.iter_mut().for_each(|guest| guest.rest().unwrap());
    assert_eq!(daemon.status().unwrap()["pid"].as_u64(), daemon.pid().map(u64::from));

    group.set_memory_limit(1 << 30).unwrap();
    await_domain(&daemon, "merging goes on with more memory", &["merging"]);
    await_guest(&daemon, "one", "all is merged", |status| {
        figure(status, "pages_merged") > PAGES as u64 / 8
    });
    verify(&mut guests);
    drop((guests, daemon));
}

#[test]
fn a_full_store_pauses_merging_until_slots_are_free() {
    let Some(bindery) = bindery() else { return };
    let daemon = bindery
        .daemon(&["--period", "100ms", "--workers", "2", "--store-mib", "1"])
        .unwrap_or_else(|error| panic!("{error}"));
    let mut guests = [start(&daemon, "one", 1), start(&daemon, "two", 2)];
    await_domain(&daemon, "the store is full", &["store-full"]);
    // A segment is kept for what moves.
    assert_eq!(figure(&domain(&daemon), "pages_shared"), 256 - 16);
    assert!(figure(&domain(&daemon), "store_bytes") <= 1 << 20);
    guests.iter_mut().for_each(|guest| guest.churn(PAUSE_US).unwrap());
    std::thread::sleep(Duration::from_secs(1));
    verify(&mut guests);
    // What breaks everywhere leaves its slot to others.
    await_some(
        "slots are used again",
        PATIENCE,
        || (figure(&domain(&daemon), "breaks") > 512).then_some(()),
        || explain(&daemon),
    );
    verify(&mut guests);
}

/// Slots that go here and there leave blocks of the store sparse: what is left moves, while guests verify
/// every byte of it.
#[test]
fn a_store_that_is_left_sparse_gives_memory_back() {
    const PAGES: usize = 32_768;
    /// What may be vacant of a store that is small, and the blocks that are being filled.
    const SLACK_PAGES: u64 = 1024 + 2 * 512;
    let Some(bindery) = bindery() else { return };
    let daemon = eager_daemon(&bindery);
    let mut guests = [("one", 1), ("two", 2)].map(|(name, seed)| {
        let mut guest = ProcessGuest::start(&daemon.launcher(name), PAGES, seed).unwrap();
        guest.offer().unwrap();
        guest
    });
    // It is listed once its first guest's connection has been taken in.
    await_domain(&daemon, "the guests are there", &["merging"]);
    let shared = || figure(&domain(&daemon), "pages_shared");
    let enough = PAGES as u64 / 4;
    await_some(
        "all is merged",
        PATIENCE,
        || (shared() > enough).then_some(()),
        || explain(&daemon),
    );
    guests.iter_mut().for_each(|guest| guest.churn(PAUSE_US / 40).unwrap());
    let few = enough / 3;
    await_some(
        "most of it breaks",
        PATIENCE,
        || (shared() < few).then_some(()),
        || explain(&daemon),
    );
    guests.iter_mut().for_each(|guest| guest.rest().unwrap());
    await_some(
        "what is vacant is given back",
        PATIENCE,
        || {
            let domain = domain(&daemon);
            let stored = figure(&domain, "store_bytes") / 4096;
            (stored <= figure(&domain, "pages_shared") * 9 / 8 + SLACK_PAGES).then_some(())
        },
        || explain(&daemon),
    );
    verify(&mut guests);
}

fn set_open_files(pid: u32, limit: u64) {
    // The soft limit alone: raising a hard one takes a capability that root may lack.
    let set = Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--nofile={limit}:")])
        .status();
    assert!(set.is_ok_and(|status| status.success()), "prlimit (util-linux) sets limits");
}

fn open_files(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64
}

/// A status that can still be had when no further connection can be taken is one asked for by a
/// connection that is there already; here there is none, so the log has to say it.
#[test]
fn a_daemon_without_descriptors_serves_who_it_has() {
    let Some(bindery) = bindery() else { return };
    let _alone = alone();
    let daemon = eager_daemon(&bindery);
    let mut guests = vec![start(&daemon, "one", 1), start(&daemon, "two", 2)];
    await_guest(&daemon, "two", "it is merged", |status| figure(status, "pages_merged") > 0);
    let pid = daemon.pid().unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let before = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let before: u64 = before.unwrap().split_whitespace().next().unwrap().parse().unwrap();
    // For the connection of an operator, and not for a guest's lanes besides.
    set_open_files(pid, open_files(pid) + 1);
    guests.push(start_without_launcher(&daemon, &bindery, "three", 3));
    guests.iter_mut().for_each(|guest| guest.churn(PAUSE_US).unwrap());
    await_some(
        "the daemon says what it is short of",
        PATIENCE,
        || {
            let short = daemon.status().is_ok_and(|status| {
                status["state"]["name"] == "short-of-resources"
                    && status["state"]["advice"].as_str().is_some_and(|a| a.contains("NOFILE"))
            });
            let said = daemon.log().contains("cannot take a connection")
                || daemon.log().contains("Too many open files");
            (short || said).then_some(())
        },
        || explain(&daemon),
    );
    verify(&mut guests);

    set_open_files(pid, before);
    await_guest(&daemon, "three", "it is taken once there are descriptors", |status| {
        figure(status, "pages_scanned") > 0
    });
    guests.iter_mut().for_each(|guest| guest.rest().unwrap());
    for name in ["one", "two", "three"] {
        await_guest(&daemon, name, "it is merged", |status| {
            status["state"]["name"] == "merging" && figure(status, "pages_merged") > 0
        });
    }
    verify(&mut guests);
    assert_eq!(daemon.status().unwrap()["state"]["name"], "running");
}

/// `bindery run` asks the daemon first, which takes descriptors of its own.
fn start_without_launcher(
    daemon: &Daemon,
    bindery: &Bindery,
    name: &str,
    seed: u64,
) -> ProcessGuest {
    let shim = bindery.program().with_file_name("libbindery_shim.so");
    let mut guest = ProcessGuest::start_as(&[], PAGES, seed, |command| {
        command.env("LD_PRELOAD", shim).env("BINDERY_NAME", name);
        command.env("BINDERY_SOCKET", daemon.socket());
    })
    .unwrap();
    guest.offer().unwrap();
    guest
}
