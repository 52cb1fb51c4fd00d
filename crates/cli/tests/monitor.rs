//! The monitor that `bindery run` gives a QEMU. Any library stands in for the shim.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bindery_host::monitors::Monitors;
use bindery_sys::process::effective_user;
use bindery_sys::socket;
use bindery_testkit::guest::{Kit, Qemu};
use common::{PATIENCE, TestDaemon, bindery};

/// A QEMU that `bindery run` started. Killed when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A library that preloading does no harm with: the C library of this very program.
fn harmless_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps.split_ascii_whitespace().find(|word| word.contains("/libc.so"));
    PathBuf::from(library.expect("tests are linked with the C library"))
}

/// Starts a QEMU without a machine, and returns it with the path that its monitor has.
fn start(daemon: &TestDaemon, kit: &Kit, flags: &[&str]) -> (Started, PathBuf) {
    let mut command = bindery(["run"]);
    command.args(flags).arg("--").arg(kit.qemu(Qemu::V10));
    command.args(["-machine", "none", "-display", "none", "-nodefaults", "-S"]);
    command.env("BINDERY_SOCKET", daemon.socket()).env("BINDERY_SHIM", harmless_library());
    command.env("LD_LIBRARY_PATH", kit.library_path(Qemu::V10)).stderr(Stdio::inherit());
    let started = Started(command.spawn().unwrap());
    let monitors = Monitors::of_daemon(&daemon.socket());
    let path = monitors.path(effective_user(), started.0.id());
    (started, path)
}

fn await_it(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: never");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_qemu_has_a_monitor_that_is_found_by_its_process_id() {
    let kit = match Kit::locate() {
        Ok(kit) => kit,
        Err(error) => return bindery_testkit::skipped!("{error}"),
    };
    let daemon = TestDaemon::start(&[]);
    let (first, path) = start(&daemon, &kit, &[]);
    await_it("a monitor answers", || {
        let Ok(monitor) = socket::connect(&path) else { return false };
        let mut greeting = [0; 512];
        assert!(socket::wait_readable(&monitor, PATIENCE).unwrap());
        let count = socket::receive(&monitor, &mut greeting, &mut Vec::new()).unwrap();
        assert!(greeting[..count].starts_with(b"{\"QMP\""), "{:?}", greeting.escape_ascii());
        assert_eq!(socket::peer(&monitor).unwrap().pid.cast_unsigned(), first.0.id());
        true
    });
    let monitors = Monitors::of_daemon(&daemon.socket());
    assert_eq!(monitors.of(effective_user(), first.0.id()), Some(path.clone()));

    let (second, none) = start(&daemon, &kit, &["--no-monitor"]);
    let program = format!("/proc/{}/comm", second.0.id());
    await_it("QEMU runs", || std::fs::read_to_string(&program).unwrap().contains("qemu"));
    let arguments = std::fs::read(format!("/proc/{}/cmdline", second.0.id())).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains("chardev"));
    assert!(!none.exists());

    // A killed QEMU leaves its socket, and the next one removes it.
    drop(first);
    assert!(path.exists());
    let (third, _) = start(&daemon, &kit, &[]);
    await_it("the old socket is removed", || !path.exists());
    drop((second, third));
}
