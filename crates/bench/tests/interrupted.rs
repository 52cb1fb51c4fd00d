//! `bindery-bench` that is interrupted: what was changed for a measurement is put back, and the rounds that
//! were finished are printed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use bindery_testkit::bindery::Bindery;
use bindery_testkit::machine::KsmGuard;
use bindery_testkit::skipped;
use rustix::process::Signal;
use serde_json::Value;

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
    let bindery = match Bindery::locate() {
        Ok(bindery) => bindery,
        Err(error) => return skipped!("an interrupted measurement: {error}"),
    };
    let merge = ["merge", "--rounds", "1", "--processes", "2", "--process-mib", "128"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_bindery-bench"));
    command.arg("--bindery").arg(bindery.program()).args(merge);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
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

#[test]
fn finished_rounds_are_printed_as_json() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bindery-bench"));
    command.args(["--json", "index", "--keys", "1000", "--operations", "500", "--threads", "1"]);
    command.args(["--content", "easy", "--rounds", "1000000"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    thread::sleep(Duration::from_secs(3));
    assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let printed: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let rounds = &printed["finished"][0];
    let finished = rounds["finished"].as_u64().unwrap();
    let samples = rounds["contenders"][0]["figures"][0]["samples"].as_array().unwrap();
    assert!(finished > 0 && samples.len() as u64 == finished, "{finished}, {}", samples.len());
    let complaint: Value = serde_json::from_slice(&ended.stderr).unwrap();
    assert!(complaint["error"]["message"].as_str().unwrap().contains("interrupted"), "{complaint}");
}
