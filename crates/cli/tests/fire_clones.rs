//! Several guests that go on from one checkpoint, and checkpoints that are made at an interval.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use bindery_testkit::guest::{Qemu, Qmp};
use fire::stage::Stage;
use fire::{await_guest, boot, figure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Makes checkpoints at an interval for a while, and looks which are left.
fn assert_interval_is_kept(stage: &Stage, guest: &str) {
    let mut command = Command::new(stage.daemon.program());
    command.args(["checkpoint", "create", guest, "--without-disks", "--json"]);
    command.args(["--every", "1s", "--keep", "2", "--socket"]).arg(stage.daemon.socket());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut made = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..4 {
        made.next().unwrap().unwrap();
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    let listed = stage.daemon.command(&["checkpoint", "list", guest, "--json"]).unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let names = listed.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap());
    let (every, others): (Vec<_>, Vec<_>) = names.partition(|name| name.starts_with("every-"));
    // The signal may have come between a checkpoint and the deletion.
    assert!((2..=3).contains(&every.len()) && others == ["booted"], "{every:?} {others:?}");
}

#[test]
fn clones_of_one_checkpoint_run_beside_each_other() {
    let Some(stage) = Stage::new() else { return };
    let mut source = boot(stage.builder(Qemu::V10, "pc", "ci"));
    source.check("true").unwrap();
    stage.checkpoint("ci", "booted");
    assert_interval_is_kept(&stage, "ci");
    source.shut_down();
    let directory = tempfile::Builder::new().prefix("bindery-clones-").tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let socket = stage.daemon.socket();
    let mut command = Command::new(stage.daemon.program());
    command.args(["clone", "ci@booted", "--count", "3", "--name", "runner", "--json", "--socket"]);
    command.arg(socket).env("LD_LIBRARY_PATH", stage.kit.library_path(Qemu::V10)).arg("--");
    command.args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp{}"))]);
    command.args(["-chardev", &format!("file,id=console,path={}", at("console{}"))]);
    let agent = format!("socket,id=agent,path={},server=on,wait=off", at("agent{}"));
    let output = command.args(["-chardev", &agent]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}{}", stage.daemon.log());
    let started: Value = serde_json::from_slice(&output.stdout).unwrap();
    let started = started["guests"].as_array().unwrap();
    let ended: Vec<Ended> = started.iter().map(Ended::when_dropped).collect();
    assert_eq!(ended.len(), 3);
    for (number, guest) in (1..).zip(started) {
        eprintln!("{guest}");
        assert_eq!(guest["guest"], format!("runner-{number}"));
        await_guest(&stage.daemon, &format!("runner-{number}"), "it is merged", |status| {
            status["pid"] == guest["pid"] && figure(status, "pages_merged") > 0
        });
        let mut qmp = Qmp::connect(Path::new(&at(&format!("qmp{number}")))).unwrap();
        let state = qmp.execute("query-status", &serde_json::json!({})).unwrap();
        assert_eq!(state["status"], "running", "clone {number}");
    }
}

/// A QEMU in the background, which is ended when this is dropped.
struct Ended(Pid);

impl Ended {
    fn when_dropped(guest: &Value) -> Self {
        Self(Pid::from_raw(guest["pid"].as_i64().unwrap() as i32).unwrap())
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // It fails only if the process has ended already.
        let _ = kill_process(self.0, Signal::KILL);
    }
}
