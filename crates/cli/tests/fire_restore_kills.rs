//! The daemon is killed while guests are checkpointed and restored. What was reported is whole, and guests go on.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bindery_testkit::guest::{GuestBuilder, Qemu};
use fire::busy::random;
use fire::stage::Stage;
use fire::{Writer, amount, assert_no_complaints, await_guest, boot};

const WRITERS: Duration = Duration::from_secs(240);

const KILLS: &str = "BINDERY_RESTORE_KILLS";

/// Fills files in the guest's memory, and keeps their sums.
const FILL: &str = "for i in 1 2 3 4; do dd if=/dev/urandom of=/tmp/f$i bs=1M count=20 2>/dev/null; done; cat /tmp/f? | md5sum > /tmp/sum";
const SUM: &str = "test \"$(cat /tmp/f? | md5sum)\" = \"$(cat /tmp/sum)\"";

fn guest(stage: &Stage, name: &str) -> GuestBuilder {
    stage.builder(Qemu::V10, "pc", name)
}

/// Starts a checkpoint whose end nobody waits for.
fn begin(stage: &Stage, name: &str, more: &[&str]) -> Child {
    let mut command = Command::new(stage.program());
    command.args(["checkpoint", "create", "guest", "--without-disks", "--name", name, "--socket"]);
    let command =
        command.arg(stage.daemon.socket()).args(more).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Kills beyond those that are wanted, until one comes in a pause.
const KILLS_MORE: u32 = 40;

#[test]
fn a_daemon_is_killed_while_it_makes_a_checkpoint() {
    let Some(mut stage) = Stage::new() else { return };
    let mut machine = boot(guest(&stage, "guest"));
    machine.check(FILL).unwrap();
    let writer = Writer::start(&mut machine, "writer", "--dir /tmp/w --rounds 6 --files 4");
    let mut reported = Vec::new();
    for kill in 0..amount(KILLS, 6) {
        let name = format!("n{kill}");
        let mut creating = begin(&stage, &name, &[]);
        // Later and later: a first checkpoint takes some hundred milliseconds.
        std::thread::sleep(Duration::from_millis(random(u64::from(kill + 1) * 120)));
        stage.daemon.kill();
        if creating.wait().unwrap().success() {
            reported.push(name);
        }
        stage.daemon.start().unwrap();
        await_guest(&stage.daemon, "guest", "it is back", |_| true);
        machine.check(SUM).unwrap();
    }
    stage.checkpoint("guest", "last");
    reported.push("last".into());
    eprintln!("reported: {reported:?}");
    stage.daemon.command(&["checkpoint", "verify", "--all"]).unwrap();
    let list = stage.daemon.command(&["checkpoint", "list", "--json"]).unwrap();
    for name in &reported {
        assert!(list.contains(&format!("\"{name}\"")), "{name} was reported: {list}");
    }
    machine.shut_down();
    let mut restored = stage.restore(Qemu::V10, "guest@last", "restored");
    restored.check(SUM).unwrap();
    writer.finish(&mut restored, WRITERS);
    assert_no_complaints(&mut restored);
    restored.shut_down();
}

#[test]
fn a_daemon_is_killed_while_a_guest_is_paused() {
    let Some(mut stage) = Stage::new() else { return };
    let mut machine = boot(guest(&stage, "guest"));
    machine.check(FILL).unwrap();
    let kills = amount(KILLS, 6);
    machine.qmp().unwrap();
    // Some kills come when the pause has just ended.
    for kill in 0..kills + KILLS_MORE {
        if kill >= kills && stage.daemon.log().contains("left paused") {
            break;
        }
        // As much of it in one pause as may be.
        let mut creating = begin(&stage, &format!("n{kill}"), &["--pause-max", "30s"]);
        machine.qmp().unwrap().wait_event("STOP", Duration::from_secs(20)).unwrap();
        stage.daemon.kill();
        let _ = creating.wait().unwrap();
        stage.daemon.start().unwrap();
        await_guest(&stage.daemon, "guest", "it is back", |_| true);
        machine.check(SUM).unwrap();
    }
    let log = stage.daemon.log();
    assert!(log.contains("left paused"), "no kill came in a pause: {log}");
    stage.checkpoint("guest", "last");
    machine.shut_down();
    let mut restored = stage.restore(Qemu::V10, "guest@last", "restored");
    restored.check(SUM).unwrap();
    restored.shut_down();
}

#[test]
fn a_daemon_is_killed_while_a_restored_guest_lacks_pages() {
    let Some(mut stage) = Stage::new() else { return };
    let mut machine = boot(guest(&stage, "guest"));
    machine.check(FILL).unwrap();
    let writer = Writer::start(&mut machine, "writer", "--dir /tmp/w --rounds 6 --files 4");
    let mut checkpoint = "guest@n".to_owned();
    stage.checkpoint("guest", "n");
    machine.shut_down();
    for kill in 0..amount(KILLS, 4) {
        let name = format!("guest{kill}");
        let mut starting = stage.begin_restore(Qemu::V10, &checkpoint, &name);
        // The kill is to come when memory is bound, and before all of it is there.
        fire::await_some(
            "memory is bound",
            fire::BOOT,
            || starting.log().contains("runs from").then_some(()),
            || starting.log() + &stage.daemon.log(),
        );
        std::thread::sleep(Duration::from_millis(random(40)));
        stage.daemon.kill();
        std::thread::sleep(Duration::from_millis(random(300)));
        let before = stage.daemon.log().len();
        stage.daemon.start().unwrap();
        // At once: what is missing must not count as zero.
        await_guest(&stage.daemon, &name, "it is back", |_| true);
        stage.checkpoint(&name, "next");
        let log = stage.daemon.log();
        eprintln!("{}", &log[before..]);
        starting.wait_ready(fire::BOOT).unwrap();
        starting.check(SUM).unwrap();
        starting.shut_down();
        checkpoint = format!("{name}@next");
    }
    stage.daemon.command(&["checkpoint", "verify", "--all"]).unwrap();
    let mut restored = stage.restore(Qemu::V10, &checkpoint, "last");
    restored.check(SUM).unwrap();
    writer.finish(&mut restored, WRITERS);
    assert_no_complaints(&mut restored);
    restored.shut_down();
}
