//! Several guests that go on from one checkpoint, and checkpoints that are made at an interval.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bindery_testkit::guest::{Qemu, QemuGuest, Qmp};
use fire::children::{Nursery, answer};
use fire::stage::Stage;
use fire::{BOOT, await_guest, boot, figure};
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

/// Number of clones in the test of how much memory they take.
const CLONES: u32 = 8;

/// Memory that a QEMU takes beside its guest's, most of it translated code, in MiB.
const OWN_MIB: u64 = 40;

/// Returns the proportional set sizes of some processes, summed up, in MiB.
fn pss_mib(pids: &[u64]) -> u64 {
    let pss = |pid: &u64| {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    pids.iter().filter_map(pss).sum::<u64>() / 1024
}

/// Returns the processes of the clones that there are.
fn clones(stage: &Stage) -> Vec<u64> {
    let guests = stage.daemon.guests().unwrap_or_default();
    let guests = guests.as_array().cloned().unwrap_or_default();
    let named = guests.iter().filter(|guest| guest["name"].as_str().unwrap().starts_with("clone-"));
    named.map(|guest| guest["pid"].as_u64().unwrap()).collect()
}

#[test]
fn clones_that_are_filled_take_less_than_half_of_their_memory() {
    let Some(stage) = Stage::new() else { return };
    // Pacing and huge pages are others' tests.
    stage.daemon.command(&["set", "advisor_mode=none", "pages_to_scan=0"]).unwrap();
    let mut source = boot(stage.builder(Qemu::V10, "pc", "ci").memory_mib(512));
    source.check("dd if=/dev/urandom of=/tmp/x bs=1M count=200 2>/dev/null && md5sum < /tmp/x > /tmp/sum").unwrap();
    let written = source.check("stat -c %s /tmp/x").unwrap().trim().parse::<u64>().unwrap() >> 20;
    let info = stage.checkpoint("ci", "filled");
    let stored = info["checkpoint"]["stored_bytes"].as_u64().unwrap() >> 20;
    source.shut_down();
    let nursery = Nursery::new(CLONES);
    let count = CLONES.to_string();
    let words = ["clone", "ci@filled", "--count", &count, "--name", "clone"];
    let mut command = nursery.command(&stage, Qemu::V10, &words);
    let cloning = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (begun, mut highest, mut last) = (Instant::now(), 0, 0);
    // What QEMU takes beside the guest: its heap and translated code.
    let own = u64::from(CLONES) * OWN_MIB;
    let mut whole = 0;
    while begun.elapsed() < Duration::from_secs(400) {
        last = pss_mib(&clones(&stage));
        highest = last.max(highest);
        let now = stage.daemon.log().matches("has all of its memory").count();
        if now != whole {
            whole = now;
            eprintln!("{:?}: {whole} are whole, {last} MiB", begun.elapsed());
        }
        if whole as u32 == CLONES && last <= stored + stored / 4 + own {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let started = answer(&cloning.wait_with_output().unwrap(), &stage);
    let mut guests = nursery.adopt(&started);
    eprintln!(
        "{written} MiB of random data, {stored} MiB stored: {CLONES} clones took {highest} MiB at most, {last} MiB \
         in the end after {:?}",
        begun.elapsed()
    );
    assert_eq!(whole as u32, CLONES, "{}", stage.daemon.log());
    assert!(highest <= u64::from(CLONES) * stored / 2 + own, "{highest} MiB");
    assert!(last <= stored + stored / 4 + own, "{last} MiB");
    for guest in &mut guests {
        guest.wait_ready(BOOT).unwrap();
        guest.check("md5sum < /tmp/x | cmp - /tmp/sum").unwrap();
    }
    guests.into_iter().for_each(QemuGuest::shut_down);
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
