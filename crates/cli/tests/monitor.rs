//! The monitor that `bindery run` gives a QEMU. Any library stands in for the shim.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bindery_host::monitors::Monitors;
use bindery_sys::group::group_id;
use bindery_sys::process::effective_user;
use bindery_sys::socket;
use bindery_testkit::guest::{Kit, Qemu};
use common::{
    Ended, NOBODY, PATIENCE, TestDaemon, bindery, can_change_user, program_for_all, run,
    with_program,
};

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

/// A program that counts as QEMU and prints its arguments, where all users may run it.
fn echo(directory: &Path) -> PathBuf {
    let path = directory.join("kvm");
    std::fs::write(&path, "#!/bin/sh\necho \"$$ $@\"\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs that program by `bindery run`.
fn run_echo(daemon: &TestDaemon, change: impl FnOnce(Command) -> Command, words: &[&str]) -> Ended {
    let program = echo(daemon.directory());
    let mut command = bindery(["run"]);
    command.arg("--socket").arg(daemon.socket()).arg("--").arg(program).args(words);
    let mut command = change(command);
    command.env("BINDERY_SHIM", harmless_library()).stdout(Stdio::piped()).stderr(Stdio::piped());
    run(command)
}

#[test]
fn a_qemu_without_room_for_a_monitor_runs_all_the_same() {
    let daemon = TestDaemon::start(&[]);
    let ended = run_echo(&daemon, |command| command, &["-daemonize"]);
    assert!(!ended.out.contains("chardev") && ended.err.contains("-daemonize"), "{}", ended.err);
    let directory = tempfile::tempdir().unwrap();
    let room = 100 - directory.path().as_os_str().len() - "//b.sock".len();
    let long = directory.path().join("x".repeat(room));
    std::fs::create_dir(&long).unwrap();
    let daemon = TestDaemon::start_at(&long.join("b.sock"), &[]);
    let ended = run_echo(&daemon, |command| command, &["-m", "1G"]);
    assert_eq!(ended.code, Some(0));
    assert!(ended.out.ends_with(" -m 1G\n") && ended.err.contains("--socket"), "{}", ended.err);
}

#[test]
fn members_of_the_group_have_monitors_of_their_own() {
    let test = "members_of_the_group_have_monitors_of_their_own";
    let Some(gid) = group_id("users").unwrap() else {
        return bindery_testkit::skipped!("{test}: this machine has no group users");
    };
    if !can_change_user(test) {
        return;
    }
    let daemon = TestDaemon::start(&["--group", "users"]);
    let program = program_for_all(daemon.directory());
    let as_member = |command: Command| {
        let mut command = with_program(&command, &program);
        command.uid(NOBODY).gid(gid).current_dir("/");
        command
    };
    let ended = run_echo(&daemon, as_member, &[]);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let pid = ended.out.split(' ').next().unwrap().parse().unwrap();
    let path = Monitors::of_daemon(&daemon.socket()).path(NOBODY, pid);
    assert!(ended.out.contains(path.to_str().unwrap()), "{}", ended.out);
    let mode = std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}
