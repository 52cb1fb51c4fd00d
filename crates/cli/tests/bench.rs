//! `bindery bench`: what was changed for a measurement is put back, however it ends.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use bindery_testkit::machine::KsmGuard;
use bindery_testkit::skipped;
use rustix::process::Signal;

const SETTINGS: [&str; 5] =
    ["run", "pages_to_scan", "sleep_millisecs", "smart_scan", "use_zero_pages"];

fn ksm() -> Vec<Option<String>> {
    let read = |name| fs::read_to_string(format!("/sys/kernel/mm/ksm/{name}")).ok();
    SETTINGS.map(read).to_vec()
}

/// timeout(1) sends one signal to the process and another one to its group, what it started too.
#[test]
fn two_signals_at_once_end_a_measurement_and_ksm_is_as_before() {
    if let Err(error) = KsmGuard::stopped() {
        return skipped!("a measurement beside KSM: {error}");
    }
    let before = ksm();
    let bench = ["bench", "merge", "--rounds", "1", "--processes", "2", "--process-mib", "128"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_bindery"));
    command.args(bench).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.process_group(0);
    let mut child = command.spawn().unwrap();
    // KSM has the first turn.
    while ksm() == before {
        assert!(child.try_wait().unwrap().is_none(), "it ended before KSM was started");
        thread::sleep(Duration::from_millis(1));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process_group(pid, Signal::INT).unwrap();
    // Gone already, if the first was enough: what counts is what it leaves.
    let _ = rustix::process::kill_process(pid, Signal::INT);
    let ended = child.wait_with_output().unwrap();
    assert!(!ended.status.success(), "it was interrupted");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("the measurement failed: interrupted"), "{said}");
    assert_eq!(ksm(), before);
}
