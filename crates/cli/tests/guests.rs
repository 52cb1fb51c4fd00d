//! Guests and daemons: merging as an operator sees it, names, domains, and daemons that come and
//! go.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/guest.rs"]
mod guest;
#[path = "common/shim.rs"]
mod shim;

use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::time::{Duration, Instant};

use bindery_wire::channel::Received;
use common::{
    NOBODY, PATIENCE, TestDaemon, adds_up, as_nobody, bindery, can_change_user, daemon_command,
    program_for_all, run, signal_process,
};
use guest::{EQUAL_PAGES, PAGES, TestGuest, UNIQUE_PAGES, ZERO_PAGES, can_manage};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

#[test]
#[ignore = "the guests' process of the other tests, not a test of its own"]
fn guest_process() {
    guest::live();
}

/// The guest called `name`, as `bindery ps` shows it.
fn guest_status(daemon: &TestDaemon, name: &str) -> Option<Value> {
    let guests = daemon.ask(&["ps", "--json"]).json();
    guests.as_array().unwrap().iter().find(|guest| guest["name"] == name).cloned()
}

fn domain_status(daemon: &TestDaemon, name: &str) -> Value {
    let status = daemon.ask(&["status", "--json"]).json();
    let domains = status["domains"].as_array().unwrap();
    domains.iter().find(|domain| domain["name"] == name).cloned().unwrap_or_default()
}

/// Waits until `holds`.
fn wait_until(daemon: &TestDaemon, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() > deadline {
            let (guests, status) = (daemon.ask(&["ps"]), daemon.ask(&["status"]));
            panic!("it never came to this: {what}\n{}{}{}", guests.out, status.out, daemon.log());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn merged_pages(daemon: &TestDaemon, name: &str) -> u64 {
    guest_status(daemon, name).map_or(0, |guest| guest["pages_merged"].as_u64().unwrap())
}

fn is_merged(daemon: &TestDaemon, name: &str) -> bool {
    merged_pages(daemon, name) == EQUAL_PAGES as u64
}

const FAST: [&str; 4] = ["--period", "50ms", "--workers", "2"];

#[test]
fn equal_pages_become_one_and_come_back_when_written() {
    if !can_manage("equal_pages_become_one_and_come_back_when_written") {
        return;
    }
    let daemon = TestDaemon::start(&FAST);
    let mut one = TestGuest::start(&daemon.socket(), "one", "web");
    let mut two = TestGuest::start(&daemon.socket(), "two", "web");
    let mut apart = TestGuest::start(&daemon.socket(), "apart", "mail");
    wait_until(&daemon, "all duplicates are merged", || {
        is_merged(&daemon, "one") && is_merged(&daemon, "two")
    });

    // Zero pages and unique ones are looked at in their turn.
    let is_looked_at = |status: &Value| {
        status["zero_pages"] == ZERO_PAGES && status["pages_unshared"] == UNIQUE_PAGES
    };
    wait_until(&daemon, "all pages are looked at", || {
        guest_status(&daemon, "one").as_ref().is_some_and(is_looked_at)
    });

    let status = guest_status(&daemon, "one").unwrap();
    let bytes = |pages: usize| (pages * 4096) as u64;
    assert_eq!(status["pid"], one.pid());
    assert_eq!(status["ram_bytes"], bytes(PAGES));
    assert_eq!(status["merged_bytes"], bytes(EQUAL_PAGES));
    assert_eq!(status["zero_bytes"], bytes(ZERO_PAGES));
    assert_eq!(status["state"]["name"], "merging");
    let web = domain_status(&daemon, "web");
    assert_eq!(web["pages_shared"], EQUAL_PAGES);
    assert_eq!(web["pages_sharing"], EQUAL_PAGES);
    assert_eq!(web["guests"], 2);
    // The same contents, in another domain: nobody to share them with.
    assert_eq!(merged_pages(&daemon, "apart"), 0);
    assert_eq!(domain_status(&daemon, "mail")["pages_sharing"], 0);

    // To a scan, what is merged is shared already.
    let scan = run(bindery(["scan", "--json", &one.pid().to_string()])).json();
    assert_eq!(scan["inputs"][0]["bindery_merged_bytes"], bytes(EQUAL_PAGES));
    adds_up(&scan["inputs"][0]);

    one.write(40);
    wait_until(&daemon, "breaks are counted", || {
        guest_status(&daemon, "one").unwrap()["breaks"].as_u64().unwrap() >= 40
    });
    wait_until(&daemon, "what broke is private", || {
        merged_pages(&daemon, "one") == EQUAL_PAGES as u64 - 40
    });
    for guest in [&mut one, &mut two, &mut apart] {
        guest.check();
    }
    for table in ["ps", "top"] {
        let ended = daemon.ask(&[table]);
        assert!(ended.out.contains("one") && ended.out.contains("apart"), "{}", ended.out);
    }
}

#[test]
fn a_guest_is_unmerged_merged_again_and_let_go() {
    if !can_manage("a_guest_is_unmerged_merged_again_and_let_go") {
        return;
    }
    let daemon = TestDaemon::start(&FAST);
    let mut one = TestGuest::start(&daemon.socket(), "one", "web");
    let mut two = TestGuest::start(&daemon.socket(), "two", "web");
    let both = || is_merged(&daemon, "one") && is_merged(&daemon, "two");
    wait_until(&daemon, "all duplicates are merged", both);

    let unmerged = daemon.ask(&["unmerge", "one", "--json"]).json();
    let expected = serde_json::json!({ "guest": "one", "pages": EQUAL_PAGES });
    assert_eq!(unmerged, expected, "{}", daemon.log());
    wait_until(&daemon, "the guest is unmerged", || {
        let status = guest_status(&daemon, "one").unwrap();
        status["state"]["name"] == "unmerged" && status["merged_bytes"] == 0
    });
    one.check();
    // By its process id this time.
    assert_eq!(daemon.ask(&["merge", &one.pid().to_string()]).code, Some(0));
    wait_until(&daemon, "it is merged again", both);

    assert_eq!(daemon.ask(&["unmanage", "two"]).code, Some(0));
    let gone = guest_status(&daemon, "two");
    assert!(gone.is_none(), "{gone:?} {}", daemon.log());
    wait_until(&daemon, "its agent ends", || two.has_ended());
    two.write(3);
    two.check();
    one.check();
    assert_eq!(daemon.ask(&["unmanage", "two"]).code, Some(4));
}

#[test]
fn across_nodes_changes_only_without_guests() {
    if !can_manage("across_nodes_changes_only_without_guests") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bindery.toml");
    std::fs::write(&file, "across_nodes = false\n").unwrap();
    let daemon = TestDaemon::start(&[&FAST[..], &["--config", file.to_str().unwrap()]].concat());
    let is_set = || daemon.ask(&["set", "--json"]).json()["across_nodes"].as_bool().unwrap();
    assert!(!is_set());
    let _guests = ["one", "two"].map(|name| TestGuest::start(&daemon.socket(), name, "web"));
    wait_until(&daemon, "guests of one node are merged", || is_merged(&daemon, "one"));

    let ended = daemon.ask(&["set", "across_nodes=true", "advisor_max_cpu=11"]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("restart the daemon"), "{}", ended.err);
    std::fs::write(&file, "advisor_max_cpu = 12\n").unwrap();
    let ended = daemon.ask(&["reload"]);
    assert_eq!(ended.code, Some(8), "{}", ended.err);
    assert!(ended.err.contains("across_nodes = true"), "{}", ended.err);
    let settings = daemon.ask(&["set", "--json"]).json();
    assert_eq!((is_set(), &settings["advisor_max_cpu"]), (false, &Value::from(50)));

    for name in ["one", "two"] {
        assert_eq!(daemon.ask(&["unmanage", name]).code, Some(0));
    }
    let ended = daemon.ask(&["set", "across_nodes=true"]);
    assert!(ended.out.contains("across_nodes=true\n"), "{}{}", ended.out, ended.err);
}

#[test]
fn a_name_is_taken_once() {
    if !can_manage("a_name_is_taken_once") {
        return;
    }
    let daemon = TestDaemon::start(&FAST);
    let first = TestGuest::start(&daemon.socket(), "web", "a");
    wait_until(&daemon, "the first is there", || guest_status(&daemon, "web").is_some());
    let mut second = TestGuest::start(&daemon.socket(), "web", "b");
    wait_until(&daemon, "the second is refused", || second.has_ended());
    second.check();
    assert_eq!(guest_status(&daemon, "web").unwrap()["pid"], first.pid());

    let ended = {
        let mut command = bindery(["run", "--name", "web", "--socket"]);
        // Any file will do for a shim: it does not come to preloading.
        command.arg(daemon.socket()).env("BINDERY_SHIM", std::env::current_exe().unwrap());
        command.args(["--", "true"]);
        run(command)
    };
    assert_eq!(ended.code, Some(6), "{}", ended.err);
    assert!(ended.err.contains(&format!("pid {}", first.pid())), "{}", ended.err);
}

#[test]
fn guests_outlive_daemons_and_are_taken_over() {
    if !can_manage("guests_outlive_daemons_and_are_taken_over") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    let daemon = TestDaemon::start_at(&socket, &FAST);
    let mut guests = ["one", "two"].map(|name| TestGuest::start(&socket, name, "web"));
    let merged = |daemon: &TestDaemon| is_merged(daemon, "one") && is_merged(daemon, "two");
    wait_until(&daemon, "all duplicates are merged", || merged(&daemon));
    // Killed.
    drop(daemon);
    guests.iter_mut().for_each(TestGuest::check);

    let mut daemon = TestDaemon::start_at(&socket, &FAST);
    wait_until(&daemon, "the next daemon has taken them over", || merged(&daemon));
    assert_eq!(domain_status(&daemon, "web")["pages_shared"], EQUAL_PAGES);
    guests.iter_mut().for_each(TestGuest::check);
    // Ended: guests keep what they have.
    assert_eq!(daemon.end_with("TERM"), Some(0));
    guests.iter_mut().for_each(TestGuest::check);

    let mut daemon = TestDaemon::start_at(&socket, &FAST);
    wait_until(&daemon, "they are back under their names", || merged(&daemon));
    let guest_pids = || guests.iter().map(|guest| guest.pid().cast_signed());
    assert!(guest_pids().all(has_merged_pages));
    assert_eq!(daemon.ask(&["stop", "--unmerge"]).code, Some(0));
    assert_eq!(daemon.await_end(), Some(0));
    assert!(!guest_pids().any(has_merged_pages), "`stop --unmerge` left merged pages");
    guests.iter_mut().for_each(TestGuest::check);
}

#[test]
fn a_guest_whose_name_was_taken_meanwhile_comes_back_once_it_is_free() {
    if !can_manage("a_guest_whose_name_was_taken_meanwhile_comes_back_once_it_is_free") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    let daemon = TestDaemon::start_at(&socket, &FAST);
    let mut guests = ["web", "mail"].map(|name| TestGuest::start(&socket, name, "all"));
    let merged = |daemon: &TestDaemon| is_merged(daemon, "web") && is_merged(daemon, "mail");
    wait_until(&daemon, "all duplicates are merged", || merged(&daemon));
    // Killed.
    drop(daemon);

    signal_process(guests[0].pid(), "STOP");
    let daemon = TestDaemon::start_at(&socket, &FAST);
    let other = shim::welcomed(&socket, "web");
    signal_process(guests[0].pid(), "CONT");
    wait_until(&daemon, "the guest is refused", || daemon.log().contains("refused a guest"));
    guests[0].check();
    assert!(!guests[0].has_ended());
    drop(other);
    wait_until(&daemon, "it is back under its name", || merged(&daemon));
    let status = guest_status(&daemon, "web").unwrap();
    assert_eq!((&status["pid"], &status["pages_foreign"]), (&guests[0].pid().into(), &0.into()));
    guests.iter_mut().for_each(TestGuest::check);
}

#[test]
fn a_guest_is_not_refused_because_descriptors_are_short() {
    let daemon = TestDaemon::start(&[]);
    // From now on it has the descriptor of its reserve.
    assert_eq!(daemon.ask(&["ps"]).code, Some(0));
    let files = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count() as u64;
    let limit = |current| {
        let new = Rlimit { current, ..getrlimit(Resource::Nofile) };
        prlimit(Pid::from_raw(daemon.pid().cast_signed()), Resource::Nofile, new).unwrap().current
    };
    // Not enough for a connection beside those that it has: it is hung up on, and may come again.
    let before = limit(Some(files));
    match shim::try_hello(&daemon.socket(), "web").map(|mut channel| channel.receive(PATIENCE)) {
        Ok(Ok(received)) => assert!(matches!(received, Received::Closed), "{received:?}"),
        Ok(Err(error)) => assert!(error.to_string().contains("reset"), "{error}"),
        Err(error) => {
            assert!(matches!(error.kind(), BrokenPipe | ConnectionReset), "{error}");
        }
    }
    wait_until(&daemon, "it says why", || daemon.log().contains("Too many open files"));
    limit(before);
    shim::welcomed(&daemon.socket(), "web");
}

/// Whether pages of a process are mapped from a canonical store. (The agent's own view of the store
/// is a shared mapping.)
fn has_merged_pages(pid: i32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().any(|line| line.contains("bindery-store") && line.contains("p 0"))
}

#[test]
fn guests_of_other_users_are_refused() {
    let test = "guests_of_other_users_are_refused";
    if !can_manage(test) || !can_change_user(test) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = program_for_all(directory.path());
    let sockets = directory.path().join("sockets");
    std::fs::create_dir(&sockets).unwrap();
    std::os::unix::fs::chown(&sockets, Some(NOBODY), Some(NOBODY)).unwrap();
    let socket = sockets.join("b.sock");
    let command = daemon_command(&socket, &FAST);
    let command = as_nobody(common::with_program(&command, &program));
    let daemon = TestDaemon::spawn(command, &socket);

    // This test's own user, root, whom no file mode keeps out.
    let mut guest = TestGuest::start(&socket, "intruder", "web");
    wait_until(&daemon, "the guest is refused", || guest.has_ended());
    guest.check();
    // Root may ask every daemon.
    assert!(daemon.ask(&["ps", "--json"]).json().as_array().unwrap().is_empty());
}
