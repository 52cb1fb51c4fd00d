//! Restores that cannot be, and guests that end when they should not: each is said, and leaves nothing behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bindery_testkit::guest::Qemu;
use fire::stage::Stage;
use fire::{PATIENCE, await_guest, await_some, boot, guest_status};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const QEMU: Qemu = Qemu::V10;

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn is_there(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

/// Processes whose arguments name the daemon's socket or its monitors: commands and VMMs of it.
fn processes(stage: &Stage) -> Vec<String> {
    let own = stage.daemon.pid();
    let directory = stage.daemon.socket().parent().unwrap().display().to_string();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let named = pids.filter(|pid| Some(*pid) != own).filter_map(|pid| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        (words.contains(&directory) && is_there(pid)).then(|| format!("{pid}: {words}"))
    });
    named.collect()
}

fn assert_nothing_left(stage: &Stage) {
    await_some(
        "no process is left",
        PATIENCE,
        || processes(stage).is_empty().then_some(()),
        || format!("{:?}\n{}", processes(stage), stage.daemon.log()),
    );
}

/// Restores in the background with the options of QEMU that a detached one needs.
fn detached(stage: &Stage, more: &[&str], instead: &[&str]) -> Output {
    detached_command(stage, more, instead).output().unwrap()
}

fn detached_command(stage: &Stage, more: &[&str], instead: &[&str]) -> Command {
    let directory = stage.directory.path();
    let at = |name: &str| directory.join(name).display().to_string();
    let mut command = Command::new(stage.program());
    command.args(["restore", "--detach", "--socket"]).arg(stage.daemon.socket());
    command.args(["--log", &at("vmm.log"), "--json"]).args(more).arg("--");
    command.args(["-chardev", &format!("file,id=console,path={}", at("console.log"))]);
    let _ = std::fs::remove_file(at("qmp.sock"));
    command.args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp.sock"))]);
    command.args(["-chardev", "null,id=agent"]).args(instead);
    command.env("LD_LIBRARY_PATH", stage.kit.library_path(QEMU));
    command
}

#[test]
fn what_cannot_be_restored_is_said_and_leaves_nothing() {
    let Some(stage) = Stage::new() else { return };
    let mut machine = boot(stage.builder(QEMU, "pc", "guest"));
    machine
        .check(
            "dd if=/dev/urandom of=/tmp/x bs=1M count=16 2>/dev/null; md5sum < /tmp/x > /tmp/sum",
        )
        .unwrap();
    stage.checkpoint("guest", "n");

    // Names: of no checkpoint, of one that is taken, and of a guest that is taken.
    let wrong = stage.try_command(QEMU, &["restore", "guest@other", "--name", "x"]);
    assert_eq!(wrong.status.code(), Some(4), "{}", said(&wrong));
    let wrong = detached(&stage, &["guest@other", "--name", "x"], &[]);
    assert_eq!(wrong.status.code(), Some(4), "{}", said(&wrong));
    let again = stage
        .try_command(QEMU, &["checkpoint", "create", "guest", "--name", "n", "--without-disks"]);
    assert_eq!(again.status.code(), Some(6), "{}", said(&again));
    machine.check("md5sum < /tmp/x | cmp - /tmp/sum").unwrap();
    let taken = detached(&stage, &["guest@n", "--name", "guest"], &[]);
    assert_eq!(taken.status.code(), Some(6), "{}", said(&taken));
    let taken = stage.try_command(QEMU, &["restore", "guest@n"]);
    assert_eq!(taken.status.code(), Some(6), "{}", said(&taken));

    // A QEMU that does not start, in the background and in the foreground.
    let begun = Instant::now();
    let failed = detached(&stage, &["guest@n", "--name", "x"], &["-device", "no-such-device"]);
    assert_eq!(failed.status.code(), Some(1), "{}", said(&failed));
    assert!(said(&failed).contains("output") || said(&failed).contains("standard error"));
    let log = std::fs::read_to_string(stage.directory.path().join("vmm.log")).unwrap();
    assert!(log.contains("no-such-device"), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let words = ["restore", "guest@n", "--name", "x", "--socket"];
    let mut command = Command::new(stage.program());
    command.args(words).arg(stage.daemon.socket()).args(["--", "-device", "no-such-device"]);
    let command = command.env("LD_LIBRARY_PATH", stage.kit.library_path(QEMU));
    let failed = command.output().unwrap();
    assert!(!failed.status.success(), "{}", said(&failed));

    // A machine that is another than the saved one.
    let other = detached(&stage, &["guest@n", "--name", "x"], &["-m", "128M"]);
    assert!(said(&other).contains("as the saved one was"), "{}", said(&other));
    assert!(!other.status.success(), "{}", said(&other));

    machine.check("md5sum < /tmp/x | cmp - /tmp/sum").unwrap();
    machine.shut_down();
    assert_nothing_left(&stage);
    let monitors = stage.daemon.socket().with_extension("monitors");
    let left = || -> usize {
        let users = std::fs::read_dir(&monitors).unwrap().flatten();
        users.map(|user| std::fs::read_dir(user.path()).unwrap().count()).sum()
    };
    // Daemons sweep when a guest leaves, or when they begin.
    assert!(left() <= 1, "{} monitors are left", left());

    // In the background, and paused.
    let restored = detached(&stage, &["guest@n", "--name", "restore", "--paused"], &[]);
    assert!(restored.status.success(), "{}", said(&restored));
    let pid = serde_json::from_slice::<Value>(&restored.stdout).unwrap()["pid"].as_u64().unwrap();
    let mut qmp =
        bindery_testkit::guest::Qmp::connect(&stage.directory.path().join("qmp.sock")).unwrap();
    let state = qmp.execute("query-status", &serde_json::json!({})).unwrap();
    assert_eq!(state["running"], false, "{state}");
    let made = stage.checkpoint("restore", "paused");
    assert!(made["pause_us"].is_null(), "{made}");
    qmp.execute("cont", &serde_json::json!({})).unwrap();
    let _ = qmp.execute("quit", &serde_json::json!({}));
    await_some("it ends", PATIENCE, || (!is_there(pid as u32)).then_some(()), String::new);
    let mut last = stage.restore(QEMU, "restore@paused", "last");
    last.check("md5sum < /tmp/x | cmp - /tmp/sum").unwrap();
    last.shut_down();
    assert_nothing_left(&stage);
}

#[test]
fn a_vmm_that_ends_in_the_middle_of_a_checkpoint_is_said() {
    let Some(stage) = Stage::new() else { return };
    for after_ms in [50, 150, 300] {
        let machine = boot(stage.builder(QEMU, "pc", "guest"));
        let pid = machine.pid().unwrap();
        let mut command = Command::new(stage.program());
        command.args(["checkpoint", "create", "guest", "--without-disks", "--socket"]);
        command.arg(stage.daemon.socket()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let creating = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after_ms));
        send(pid, Signal::KILL);
        let output = creating.wait_with_output().unwrap();
        let said = said(&output);
        let is_known = output.status.success() || said.contains("has ended");
        assert!(is_known, "after {after_ms} ms: {} {said}", output.status);
        await_some(
            "the guest has left",
            PATIENCE,
            || guest_status(&stage.daemon, "guest").is_none().then_some(()),
            || stage.daemon.log(),
        );
        stage.daemon.command(&["checkpoint", "verify", "--all"]).unwrap_or_default();
    }
    // One that is cancelled leaves the guest as it was.
    let mut machine = boot(stage.builder(QEMU, "pc", "guest"));
    let mut command = Command::new(stage.program());
    command.args(["checkpoint", "create", "guest", "--name", "x", "--without-disks", "--socket"]);
    command.arg(stage.daemon.socket()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let creating = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(60));
    send(creating.id(), Signal::INT);
    let output = creating.wait_with_output().unwrap();
    eprintln!("cancelled: {} {}", output.status, said(&output));
    machine.check("true").unwrap();
    stage.checkpoint("guest", "after");
    machine.shut_down();
    let mut restored = stage.restore(QEMU, "guest@after", "restored");
    restored.check("true").unwrap();
    restored.shut_down();
    assert_nothing_left(&stage);
}

#[test]
fn a_restore_that_is_interrupted_leaves_nothing() {
    let Some(stage) = Stage::new() else { return };
    let mut machine = boot(stage.builder(QEMU, "pc", "guest"));
    stage.checkpoint("guest", "n");
    for after_ms in [5, 20, 40, 60, 80, 120, 200, 300] {
        let mut command = detached_command(&stage, &["guest@n", "--name", "restored"], &[]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let restoring = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after_ms));
        // It may have ended by itself.
        let _ = kill_process(Pid::from_raw(restoring.id().cast_signed()).unwrap(), Signal::INT);
        let output = restoring.wait_with_output().unwrap();
        if output.status.success() {
            let restored: Value = serde_json::from_slice(&output.stdout).unwrap();
            send(restored["pid"].as_u64().unwrap() as u32, Signal::TERM);
        }
        eprintln!("after {after_ms} ms: {}", output.status);
        // The guest that runs, and no other.
        await_some(
            "no process is left",
            PATIENCE,
            || (processes(&stage).len() == 1).then_some(()),
            || format!("{:?}\n{}", processes(&stage), stage.daemon.log()),
        );
        await_some(
            "the guest has left",
            PATIENCE,
            || guest_status(&stage.daemon, "restored").is_none().then_some(()),
            || stage.daemon.log(),
        );
    }
    machine.check("true").unwrap();
    machine.shut_down();
}

#[test]
fn a_checkpoint_stays_while_a_guest_is_filled_from_it() {
    let Some(mut stage) = Stage::new() else { return };
    let mut machine = boot(stage.builder(QEMU, "pc", "guest"));
    let fill =
        "dd if=/dev/urandom of=/tmp/x bs=1M count=100 2>/dev/null; md5sum < /tmp/x > /tmp/sum";
    machine.check(fill).unwrap();
    stage.checkpoint("guest", "n");
    machine.shut_down();
    let mut restored = stage.begin_restore(QEMU, "guest@n", "restored");
    await_some(
        "the guest runs",
        fire::BOOT,
        || restored.log().contains("runs from").then_some(()),
        || restored.log() + &stage.daemon.log(),
    );
    let deleted = stage.try_command(QEMU, &["checkpoint", "delete", "guest@n"]);
    eprintln!("{}", said(&deleted));
    stage.daemon.kill();
    stage.daemon.start().unwrap();
    await_guest(&stage.daemon, "restored", "it is back", |_| true);
    restored.wait_ready(fire::BOOT).unwrap();
    restored.check("md5sum < /tmp/x | cmp - /tmp/sum").unwrap();
    stage.checkpoint("restored", "next");
    // Once all is there, it may go.
    if !deleted.status.success() {
        stage.daemon.command(&["checkpoint", "delete", "guest@n"]).unwrap();
    }
    restored.check("md5sum < /tmp/x | cmp - /tmp/sum").unwrap();
    restored.shut_down();
}
