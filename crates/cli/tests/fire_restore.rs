//! Guests that are checkpointed while they run, and go on from their checkpoints, with every byte of their memory.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bindery_testkit::bindery::Daemon;
use bindery_testkit::guest::{GuestBuilder, Kit, Qemu, QemuGuest, Qmp};
use fire::{
    BOOT, Writer, amount, assert_no_complaints, await_guest, bindery_and_kit, boot, daemon_with,
    figure, managed_guest, server_image,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const WRITERS: Duration = Duration::from_secs(180);

/// A daemon that merges and keeps checkpoints, and what guests boot from.
struct Stage {
    daemon: Daemon,
    kit: Kit,
    _directory: tempfile::TempDir,
}

impl Stage {
    fn new() -> Option<Self> {
        let (bindery, kit) = bindery_and_kit()?;
        let directory = tempfile::tempdir().unwrap();
        let pool = directory.path().join("pool");
        std::fs::create_dir(&pool).unwrap();
        make_pool(bindery.program(), &pool, directory.path());
        let daemon = daemon_with(&bindery, &["--checkpoint-pool", pool.to_str().unwrap()]);
        Some(Self { daemon, kit, _directory: directory })
    }

    fn builder(&self, qemu: Qemu, machine: &str, name: &str) -> GuestBuilder {
        let builder = managed_guest(&self.daemon, &self.kit, &server_image(&self.kit), qemu, name);
        builder.machine_type(machine)
    }

    /// Makes a checkpoint without disks.
    fn checkpoint(&self, guest: &str, name: &str) -> Value {
        let words = ["checkpoint", "create", guest, "--name", name, "--without-disks", "--json"];
        let made = self.daemon.command(&words);
        serde_json::from_str(&made.unwrap_or_else(|e| panic!("{e}\n{}", self.daemon.log())))
            .unwrap()
    }

    /// Starts a guest that goes on from a checkpoint, and waits until it runs commands.
    fn restore(&self, qemu: Qemu, checkpoint: &str, name: &str) -> QemuGuest {
        let mut words = vec![self.program().into_os_string()];
        words.extend(["restore", "--socket"].map(Into::into));
        words.push(self.daemon.socket().into());
        words.extend([checkpoint, "--name", name].map(Into::into));
        let builder = QemuGuest::builder(&self.kit, &server_image(&self.kit)).qemu(qemu);
        let mut guest = builder.launcher(words).spawn_restored().unwrap();
        if let Err(error) = guest.wait_ready(BOOT) {
            panic!("{error}\n{}\n{}", guest.log(), self.daemon.log());
        }
        guest
    }

    fn program(&self) -> PathBuf {
        self.daemon.program().to_path_buf()
    }
}

fn make_pool(program: &Path, pool: &Path, registry: &Path) {
    let mut command = Command::new(program);
    command.args(["pool", "create", "guests", "--size", "2G", "--capacity"]).arg(pool);
    let made = command.env("BINDERY_POOLS", registry.join("registry")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Something that only this guest's memory knows, and that no reboot brings back.
fn nonce(guest: &mut QemuGuest) -> String {
    guest.check("cat /tmp/nonce /proc/sys/kernel/random/boot_id").unwrap()
}

fn goes_on(machine: &str) {
    goes_on_with(machine, "");
}

fn goes_on_with(machine: &str, kernel_arguments: &str) {
    let Some(stage) = Stage::new() else { return };
    for qemu in Qemu::ALL {
        let version = format!("{qemu:?}").to_lowercase();
        let builder = stage.builder(qemu, machine, &version).kernel_arguments(kernel_arguments);
        let mut guest = boot(builder);
        guest.check("head -c 16 /dev/urandom | od -x > /tmp/nonce").unwrap();
        let known = nonce(&mut guest);
        await_guest(&stage.daemon, &version, "it is merged", |status| {
            figure(status, "pages_merged") > 0
        });
        let writer = Writer::start(&mut guest, "writer", "--dir /tmp/w --rounds 6 --files 4");
        let mut name = version.clone();
        for round in 0..amount("BINDERY_RESTORES", 3) {
            let made = stage.checkpoint(&name, &format!("n{round}"));
            eprintln!("{qemu:?} {machine}: {made}");
            assert!(made["pause_us"].as_u64().unwrap() > 0, "{made}");
            // It runs on, and what it does from here on is undone.
            guest.check("echo after > /tmp/nonce").unwrap();
            guest.shut_down();
            let checkpoint = format!("{name}@n{round}");
            name = format!("{version}-{round}");
            guest = stage.restore(qemu, &checkpoint, &name);
            assert_eq!(nonce(&mut guest), known, "it is another guest");
        }
        writer.finish(&mut guest, WRITERS);
        assert_no_complaints(&mut guest);
        // A guest that has all of its memory is merged like any other.
        await_guest(&stage.daemon, &name, "it is merged again", |status| {
            figure(status, "pages_merged") > 0
        });
        guest.shut_down();
    }
}

#[test]
fn pc_guests_go_on_from_their_checkpoints() {
    goes_on("pc");
}

#[test]
fn q35_guests_go_on_from_their_checkpoints() {
    goes_on("q35");
}

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

#[test]
fn microvm_guests_go_on_from_their_checkpoints() {
    // It has one timer to find out the TSC's speed by. On a busy host that fails, and Linux waits for ever.
    goes_on_with("microvm,pcie=on,rtc=on", "tsc_early_khz=2000000");
}
