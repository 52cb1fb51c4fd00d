//! Other processes, as the kernel tells of them.
//!
//! A child has all descriptors of who starts it until it executes: a test that closes one and looks at
//! what becomes of it cannot run beside these.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use bindery_sys::pidfd::PeerProcess;
use bindery_sys::socket::{accept, connect, listen, wait_readable};
use bindery_sys::watch::{Access, WriteWatch};

#[test]
fn the_end_of_a_process_is_seen() {
    // Only a process other than ours can end: this very test, run again as the child.
    if let Ok(path) = std::env::var("BINDERY_TEST_PEER") {
        let _socket = connect(path.as_ref()).unwrap();
        let _ = io::stdin().read_line(&mut String::new());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = listen(&path, 1).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_end_of_a_process_is_seen"])
        .env("BINDERY_TEST_PEER", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let process = PeerProcess::of(accept(&listener).unwrap()).unwrap();
    assert!(!process.has_ended().unwrap());
    child.kill().unwrap();
    assert!(process.wait_ended(Duration::from_secs(20)).unwrap());
    child.wait().unwrap();
    assert!(process.has_ended().unwrap());
}

#[test]
fn the_writer_of_a_file_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let other = tempfile::NamedTempFile::new().unwrap();
    let watch = match WriteWatch::new(&[other.path(), file.path()]) {
        Ok(watch) => watch,
        Err(error) => return bindery_testkit::skipped!("the_writer_of_a_file_is_named: {error}"),
    };
    assert_eq!(watch.take().unwrap(), []);
    let script = format!("echo 7 > {}", file.path().display());
    let mut shell = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let pid = Some(shell.id());
    shell.wait().unwrap();
    let mut seen = Vec::new();
    while !seen.contains(&Access { file: Some(1), pid, is_written: true }) {
        assert!(wait_readable(&watch, Duration::from_secs(20)).unwrap(), "{seen:?}");
        seen.extend(watch.take().unwrap());
    }
    assert!(seen.iter().all(|access| access.file == Some(1)), "{seen:?}");
}
