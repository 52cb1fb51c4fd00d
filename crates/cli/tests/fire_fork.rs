//! Guests that are forked while they run: parent and children go on with every byte, and nothing of the memory between
//! them stays.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bindery_testkit::guest::{Qemu, QemuGuest};
use bindery_testkit::machine::ControlGroup;
use bindery_testkit::skipped;
use fire::children::{Nursery, answer};
use fire::stage::Stage;
use fire::{
    BOOT, PATIENCE, Writer, assert_no_complaints, await_guest, await_some, boot, guest_status,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const WRITERS: Duration = Duration::from_secs(240);

/// Fills files in the guest's memory, and keeps their sums.
const FILL: &str = "for i in 1 2 3 4; do dd if=/dev/urandom of=/tmp/f$i bs=1M count=20 2>/dev/null; done; cat /tmp/f? | md5sum > /tmp/sum";
const SUM: &str = "test \"$(cat /tmp/f? | md5sum)\" = \"$(cat /tmp/sum)\"";

/// Directory of the daemon's pools in memory.
fn memory_pools(stage: &Stage) -> PathBuf {
    let socket = stage.daemon.socket().display().to_string().replace('/', "+");
    let user = rustix::process::geteuid().as_raw();
    format!("/dev/shm/bindery-{user}{socket}").into()
}

fn assert_memory_is_let_go(stage: &Stage) {
    let directory = memory_pools(stage);
    await_some(
        "nothing is left in memory",
        PATIENCE,
        || (!directory.exists()).then_some(()),
        || format!("{:?}\n{}", std::fs::read_dir(&directory), stage.daemon.log()),
    );
}

fn generation_id(guest: &mut QemuGuest) -> String {
    let answer = guest.qmp().unwrap().execute("query-vm-generation-id", &json!({})).unwrap();
    answer["guid"].as_str().unwrap().to_owned()
}

fn fork(stage: &Stage, qemu: Qemu, words: &[&str], count: u32) -> (Value, Vec<QemuGuest>) {
    let nursery = Nursery::new(count);
    let count = count.to_string();
    let words = [&["fork", "guest", "--without-disks", "--count", &count], words].concat();
    let output = nursery.command(stage, qemu, &words).output().unwrap();
    let started = answer(&output, stage);
    let children = nursery.adopt(&started);
    (started, children)
}

#[test]
fn a_parent_and_its_children_go_on() {
    let Some(stage) = Stage::new() else { return };
    for qemu in Qemu::ALL {
        let builder = stage.builder(qemu, "pc", "guest").args(["-device", "vmgenid,guid=auto"]);
        let mut parent = boot(builder);
        parent.check(FILL).unwrap();
        let writer = Writer::start(&mut parent, "writer", "--dir /tmp/w --rounds 4 --files 4");
        let (started, mut children) = fork(&stage, qemu, &["--name", "child"], 3);
        eprintln!("{qemu:?}: STOP to RESUME {} us", started["parent"]["pause_us"]);
        for guest in started["guests"].as_array().unwrap() {
            eprintln!("{qemu:?}: {guest}");
        }
        assert_eq!(children.len(), 3);
        let mut ids = vec![generation_id(&mut parent)];
        for child in &mut children {
            child.wait_ready(BOOT).unwrap();
            child.check(SUM).unwrap();
            ids.push(generation_id(child));
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 4, "{ids:?}");
        for child in &mut children {
            writer.finish(child, WRITERS);
            assert_no_complaints(child);
        }
        assert_memory_is_let_go(&stage);
        parent.check(SUM).unwrap();
        writer.finish(&mut parent, WRITERS);
        assert_no_complaints(&mut parent);
        // A checkpoint of it is whole, though a fork came between.
        stage.checkpoint("guest", &format!("{qemu:?}"));
        children.into_iter().for_each(QemuGuest::shut_down);
        parent.shut_down();
    }
}

#[test]
fn a_large_guest_stands_still_for_milliseconds() {
    let Some(stage) = Stage::new() else { return };
    let mut parent = boot(stage.builder(Qemu::V10, "pc", "guest").memory_mib(1536));
    let fill = "for i in 1 2 3; do dd if=/dev/urandom of=/tmp/f$i bs=1M count=100 2>/dev/null; done; cat /tmp/f? | md5sum > /tmp/sum";
    parent.check(fill).unwrap();
    for _ in 0..3 {
        let (started, mut children) = fork(&stage, Qemu::V10, &["--name", "child"], 1);
        eprintln!("1.5 GiB: {started}");
        children[0].wait_ready(BOOT).unwrap();
        children[0].check(SUM).unwrap();
        children.into_iter().for_each(QemuGuest::shut_down);
    }
    parent.check(SUM).unwrap();
    parent.shut_down();
    assert_memory_is_let_go(&stage);
}

#[test]
fn children_are_filled_though_the_daemon_is_killed() {
    let Some(mut stage) = Stage::new() else { return };
    let mut parent = boot(stage.builder(Qemu::V10, "pc", "guest"));
    parent.check(FILL).unwrap();
    let (_, mut children) = fork(&stage, Qemu::V10, &["--name", "child"], 2);
    stage.daemon.kill();
    assert!(memory_pools(&stage).exists(), "all was there already");
    stage.daemon.start().unwrap();
    for (number, child) in (1..).zip(&mut children) {
        await_guest(&stage.daemon, &format!("child-{number}"), "it is back", |_| true);
        child.wait_ready(BOOT).unwrap();
        child.check(SUM).unwrap();
    }
    parent.check(SUM).unwrap();
    assert_memory_is_let_go(&stage);
    children.into_iter().for_each(QemuGuest::shut_down);
    parent.shut_down();
}

#[test]
fn a_fork_is_refused_where_memory_is_short() {
    // Dropped last: the daemon is in it.
    let group = match ControlGroup::create("fork") {
        Ok(group) => group,
        Err(error) => return skipped!("no control group can be made: {error}"),
    };
    let Some(stage) = Stage::new() else { return };
    let mut parent = boot(stage.builder(Qemu::V10, "pc", "guest"));
    parent.check(FILL).unwrap();
    group.put(stage.daemon.pid().unwrap()).unwrap();
    group.set_memory_limit(100 << 20).unwrap();
    let words = ["fork", "guest", "--without-disks", "--name", "child"];
    let refused = stage.try_command(Qemu::V10, &words);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("MiB"), "{said}");
    assert!(said.contains("memory limit"), "{said}");
    assert!(!memory_pools(&stage).exists());
    parent.check(SUM).unwrap();
    group.set_memory_limit(8 << 30).unwrap();
    let (_, children) = fork(&stage, Qemu::V10, &["--name", "child"], 1);
    children.into_iter().for_each(QemuGuest::shut_down);
    parent.shut_down();
    assert_memory_is_let_go(&stage);
}

#[test]
fn a_hook_that_fails_ends_its_child_alone() {
    let Some(stage) = Stage::new() else { return };
    let mut parent = boot(stage.builder(Qemu::V10, "pc", "guest"));
    parent.check("true").unwrap();
    let at = |name: &str| stage.directory.path().join(name).display().to_string();
    let (hook, seen) = (at("hook"), at("seen"));
    let script = format!(
        "#!/bin/sh\ntest -S \"$BINDERY_QMP\" || exit 3\n\
         echo \"$BINDERY_INDEX $BINDERY_GUEST $BINDERY_CHECKPOINT\" >> {seen}\n\
         test \"$BINDERY_INDEX\" != 2\n"
    );
    std::fs::write(&hook, script).unwrap();
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    let nursery = Nursery::new(3);
    let words =
        ["fork", "guest", "--without-disks", "--count", "3", "--name", "child", "--hook", &hook];
    let output = nursery.command(&stage, Qemu::V10, &words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("child-2 was ended"), "{said}");
    assert!(said.contains("vmgenid"), "{said}");
    let seen = std::fs::read_to_string(&seen).unwrap();
    assert_eq!(seen, "1 child-1 guest@fork\n2 child-2 guest@fork\n3 child-3 guest@fork\n");
    let mut children = nursery.adopt(&serde_json::from_slice(&output.stdout).unwrap());
    assert_eq!(children.len(), 2);
    for child in &mut children {
        child.wait_ready(BOOT).unwrap();
    }
    await_some(
        "the child has left",
        PATIENCE,
        || guest_status(&stage.daemon, "child-2").is_none().then_some(()),
        || stage.daemon.log(),
    );
    children.into_iter().for_each(QemuGuest::shut_down);
    parent.shut_down();
    assert_memory_is_let_go(&stage);
}

#[test]
fn an_interrupted_fork_leaves_no_memory_behind() {
    let Some(stage) = Stage::new() else { return };
    let mut parent = boot(stage.builder(Qemu::V10, "pc", "guest"));
    parent.check(FILL).unwrap();
    for after_ms in [20, 100, 300, 600] {
        let nursery = Nursery::new(9);
        let words = ["fork", "guest", "--without-disks", "--count", "9", "--name", "child"];
        let mut command = nursery.command(&stage, Qemu::V10, &words);
        let forking = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after_ms));
        let _ = kill_process(Pid::from_child(&forking), Signal::INT);
        let output = forking.wait_with_output().unwrap();
        eprintln!("after {after_ms} ms: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success());
        for number in 1..=9 {
            if let Some(status) = guest_status(&stage.daemon, &format!("child-{number}")) {
                let pid = Pid::from_raw(status["pid"].as_i64().unwrap() as i32).unwrap();
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        assert_memory_is_let_go(&stage);
        parent.check(SUM).unwrap();
    }
    parent.shut_down();
}
