//! The daemon as a service: what it says to the service manager, and which rights it needs.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/guest.rs"]
mod guest;

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, TestDaemon, can_change_user, daemon_command};
use guest::{EQUAL_PAGES, TestGuest, can_manage};

#[test]
#[ignore = "a guest's process, which tests start"]
fn guest_process() {
    guest::live();
}

#[test]
fn the_service_manager_hears_how_far_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(directory.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut text = [0; 256];
        let bytes = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..bytes]).into_owned()
    };
    let file = directory.path().join("bindery.toml");
    std::fs::write(&file, "workers = 1\n").unwrap();
    let socket = directory.path().join("b.sock");
    let mut command = daemon_command(&socket, &["--config", file.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", directory.path().join("notify"));
    let mut daemon = TestDaemon::spawn(command, &socket);
    assert_eq!(heard(), "READY=1");
    // It says that it is ready again whether or not the file can be.
    for (text, code) in [("workers = 2\n", 0), ("workers = none\n", 8)] {
        std::fs::write(&file, text).unwrap();
        assert_eq!(daemon.ask(&["reload"]).code, Some(code));
        let reloading = heard();
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        assert_eq!(heard(), "READY=1");
    }
    assert_eq!(daemon.end_with("TERM"), Some(0));
    assert_eq!(heard(), "STOPPING=1");
}

/// The rights that the unit leaves to the daemon, as capabilities(7) calls them, without `CAP_`.
fn rights_of_unit() -> Vec<String> {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/bindery.service");
    let text = std::fs::read_to_string(unit).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.unwrap().split_whitespace();
    names.map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase()).collect()
}

#[test]
fn the_rights_that_the_unit_leaves_are_enough_to_merge() {
    let test = "the_rights_that_the_unit_leaves_are_enough_to_merge";
    if !can_change_user(test) || !can_manage(test) {
        return;
    }
    let rights = rights_of_unit().iter().fold("-all".to_owned(), |set, name| set + ",+" + name);
    let setpriv = || {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", &rights, "--no-new-privs"]);
        command
    };
    if !setpriv().arg("true").status().is_ok_and(|status| status.success()) {
        return bindery_testkit::skipped!(
            "{test}: setpriv (util-linux) may not take rights away here"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    let own = daemon_command(&socket, &["--period", "50ms", "--group", "users"]);
    let mut command = setpriv();
    command.arg(own.get_program()).args(own.get_args()).env_remove("BINDERY_SOCKET");
    command.stdout(Stdio::null());
    let daemon = TestDaemon::spawn(command, &socket);
    let mut guests = ["one", "two"].map(|name| TestGuest::start(&socket, name, "web"));
    let deadline = Instant::now() + 3 * PATIENCE;
    let merged = || {
        let list = daemon.ask(&["ps", "--json"]).json();
        let is_merged = |guest: &&serde_json::Value| {
            guest["pages_merged"].as_u64().unwrap() >= EQUAL_PAGES as u64
        };
        list.as_array().unwrap().iter().filter(is_merged).count() == 2
    };
    while !merged() {
        assert!(Instant::now() < deadline, "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    guests.iter_mut().for_each(TestGuest::check);
}
