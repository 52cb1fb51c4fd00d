//! The daemon in the background: what it has of whoever started it, which is nothing.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use common::{PATIENCE, bindery, run, run_within, signal_process};

/// Starts `words` from a shell whose descriptors, signals and settings no daemon should keep: a lock is
/// held as 9, its output is open as 7, SIGTERM is blocked. Returns once nobody has the output open.
fn start_from_shell(directory: &Path, words: &[&str]) {
    const SETTING: &str = r#"
        cd "$DIRECTORY"; umask 0; exec 9>lock; flock 9; exec 7>&1 8</dev/zero
        trap '' INT QUIT
        exec env --block-signal=TERM "$@"
    "#;
    let socket = directory.join("b.sock");
    let mut shell = Command::new("sh");
    shell.args(["-c", SETTING, "sh", env!("CARGO_BIN_EXE_bindery")]).args(words);
    shell.env("DIRECTORY", directory).env("BINDERY_SOCKET", socket);
    shell.env("NOTIFY_SOCKET", "@nobody").env("LISTEN_FDS", "1").env("HOME", directory);
    // The shim is looked for, not looked at.
    shell.env("BINDERY_SHIM", std::env::current_exe().unwrap());
    let ended = run_within(PATIENCE, shell);
    assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.err);
}

fn daemon_pid(socket: &Path) -> u32 {
    let mut command = bindery(["status", "--json", "--socket"]);
    command.arg(socket);
    u32::try_from(run(command).json()["pid"].as_u64().unwrap()).unwrap()
}

/// Where the descriptors of a process lead.
fn descriptors(pid: u32) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            let number = path.file_name()?.to_str()?.parse().ok()?;
            // One may be closed meanwhile: a connection's.
            Some((number, std::fs::read_link(path).ok()?))
        })
        .collect();
    found.sort();
    found
}

fn check(words: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    start_from_shell(path, words);
    let lock = Command::new("flock").arg("-n").arg(path.join("lock")).arg("true").status();
    assert!(lock.unwrap().success(), "{words:?}: the lock is still held");

    let socket = path.join("b.sock");
    let pid = daemon_pid(&socket);
    let found = descriptors(pid);
    let standard = ["/dev/null".into(), "/dev/null".into(), socket.with_extension("log")];
    let expected: Vec<_> = (0..).zip(standard).collect();
    assert_eq!(found[..3], expected, "{words:?}");
    let others = |(_, path): &&(u32, PathBuf)| path.ends_with("lock") || path.ends_with("zero");
    assert_eq!(found.iter().find(others), None, "{words:?}");

    let proc = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let status = String::from_utf8(proc("status")).unwrap();
    for line in ["Umask:\t0077", "SigBlk:\t0000000000000000"] {
        assert!(status.contains(line), "{words:?}: {line}: {status}");
    }
    let stat = String::from_utf8(proc("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let (session, terminal) = (fields[3], fields[4]);
    assert_eq!((session, terminal), (pid.to_string().as_str(), "0"), "{words:?}");
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    let environment = String::from_utf8(proc("environ")).unwrap();
    for variable in ["LD_PRELOAD=", "NOTIFY_SOCKET=", "LISTEN_FDS="] {
        assert!(!environment.contains(variable), "{words:?}: {environment}");
    }

    signal_process(pid, "TERM");
    let deadline = Instant::now() + PATIENCE;
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(Instant::now() < deadline, "{words:?}: SIGTERM does not end it");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_daemon_that_run_starts_keeps_nothing() {
    check(&["run", "--", "true"]);
}

#[test]
fn a_daemon_started_in_the_background_keeps_nothing() {
    check(&["daemon", "--background"]);
}
