//! `bindery serve-faults`: microVMs that restore their memory as Firecracker does, byte for byte.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/kept.rs"]
mod kept;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bindery_testkit::skipped;
use bindery_units::PAGE_BYTES;
use common::{
    Ended, NOBODY, PATIENCE, TestDaemon, as_nobody, bindery, can_change_user, run, run_within,
};
use kept::{Kept, content};
use serde_json::Value;

/// Pages of the snapshots here. The peer's order of reading needs a number that 40503 has no factor in common with.
const PAGES: u64 = 2000;

/// Time for a microVM to read all of its memory, and more than once.
const LIMIT: Duration = Duration::from_secs(60);

/// A pool with a snapshot in it, `fn1@warm`, and a process that restores as Firecracker does.
struct Stage {
    kept: Kept,
    microvm: PathBuf,
}

impl Stage {
    /// Compiles the process and writes the files of a snapshot. `None` where nothing of this can run.
    fn new() -> Option<Self> {
        let kept = Kept::new();
        let microvm = kept.at("microvm");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/microvm.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-pthread", "-o"]).arg(&microvm).arg(source);
        match compiler.status() {
            Ok(status) => assert!(status.success(), "the case does not compile"),
            Err(error) => {
                skipped!("serve_faults: no C compiler (cc): {error}");
                return None;
            }
        }
        if let Err(error) = bindery_sys::userfault::Userfault::open(0) {
            skipped!("serve_faults: userfaultfd: {error}");
            return None;
        }
        let memory = File::create(kept.at("mem")).unwrap();
        memory.set_len(PAGES * PAGE_BYTES as u64).unwrap();
        // A third is zero: holes, and zeros that were written.
        for page in (0..PAGES).filter(|page| page % 3 != 0 || page % 2 == 1) {
            let number = if page % 3 == 0 { 0 } else { page };
            memory.write_all_at(&content(number), page * PAGE_BYTES as u64).unwrap();
        }
        fs::write(kept.at("state"), content(77)).unwrap();
        Some(Self { kept, microvm })
    }

    fn import(&self, daemon: &TestDaemon) -> String {
        let words =
            ["import-memory", "mem", "--state", "state", "--guest", "fn1", "--name", "warm"];
        self.kept.done(daemon, &words)
    }

    fn handler(&self, daemon: &TestDaemon, checkpoint: &str, flags: &[&str]) -> Handler {
        let socket = self.kept.at("uffd.sock");
        let mut command = bindery(["serve-faults", checkpoint, "--json", "--listen"]);
        command.arg(&socket).args(flags).env("BINDERY_SOCKET", daemon.socket());
        command.current_dir(self.kept.at("")).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut handler = Handler { child, lines, socket };
        assert_eq!(handler.event()["event"], "listening");
        handler
    }

    fn microvm(&self, handler: &Handler, file: &str, how: &[&str]) -> Command {
        let mut command = Command::new(&self.microvm);
        command.arg(&handler.socket).arg(self.kept.at(file)).args(how);
        command
    }

    /// Runs a microVM that must find its memory right.
    fn right(&self, handler: &Handler, file: &str, how: &[&str]) {
        let ended = run_within(LIMIT, self.microvm(handler, file, how));
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "ok\n"), "{how:?}: {}", ended.err);
    }
}

/// `bindery serve-faults`, killed when dropped.
struct Handler {
    child: Child,
    lines: BufReader<ChildStdout>,
    socket: PathBuf,
}

impl Handler {
    fn event(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Waits for an event of this kind.
    fn await_event(&mut self, kind: &str) -> Value {
        loop {
            let event = self.event();
            if event["event"] == kind {
                return event;
            }
        }
    }

    /// Waits for its end, and returns its exit code.
    fn end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "serve-faults does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_snapshot_comes_back_byte_for_byte() {
    let Some(stage) = Stage::new() else { return };
    let daemon = stage.kept.daemon();
    assert!(stage.import(&daemon).contains("fn1@warm is there"));
    let shown = stage.kept.json(&daemon, &["show", "fn1@warm"]);
    assert_eq!(
        (&shown["vmm"], &shown["device_state_bytes"]),
        (&"firecracker".into(), &4096.into())
    );
    assert_eq!(shown["blocks"][0]["stored_bytes"], 1333 * PAGE_BYTES as u64);
    assert_eq!(shown["is_restored"], false);

    let mut handler = stage.handler(&daemon, "fn1@warm", &["--state-to", "st", "--count", "5"]);
    assert!(fs::read(stage.kept.at("st")).unwrap() == content(77));
    for how in [&["verify", "1"][..], &["verify", "8"], &["split"], &["first", "900"]] {
        stage.right(&handler, "mem", how);
    }
    let ended = handler.await_event("ended");
    assert_eq!(ended["content_pages"].as_u64().unwrap(), 1333, "{ended}");
    assert_eq!(ended["zero_pages"].as_u64().unwrap(), 667, "{ended}");
    // What is discarded while it comes stays zero.
    stage.right(&handler, "mem", &["remove"]);
    assert_eq!(handler.end(), Some(0));
    assert!(!handler.socket.exists(), "the socket is left behind");
    let shown = stage.kept.json(&daemon, &["show", "fn1@warm"]);
    assert_eq!(shown["is_restored"], true, "what was touched is recorded");
}

#[test]
fn what_is_discarded_never_comes_back() {
    let Some(stage) = Stage::new() else { return };
    let daemon = stage.kept.daemon();
    stage.import(&daemon);
    let handler = stage.handler(&daemon, "fn1@warm", &[]);
    for _ in 0..10 {
        stage.right(&handler, "mem", &["remove"]);
    }
    drop(handler);
    let handler = stage.handler(&daemon, "fn1@warm", &["--lazy"]);
    for _ in 0..10 {
        stage.right(&handler, "mem", &["remove"]);
    }
}

#[test]
fn many_microvms_are_served_at_once() {
    let Some(stage) = Stage::new() else { return };
    let daemon = stage.kept.daemon();
    stage.import(&daemon);
    let mut handler = stage.handler(&daemon, "fn1@warm", &["--count", "24"]);
    let begun = Instant::now();
    let ways = [&["verify", "2"][..], &["remove"], &["verify", "1"]];
    let start = |number: usize| {
        let mut command = stage.microvm(&handler, "mem", ways[number % 3]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..24).map(start).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert_eq!(handler.end(), Some(0));
    println!("24 microVMs of {PAGES} pages, each read whole: {:?}", begun.elapsed());
}

#[test]
fn messages_that_make_no_sense_are_refused() {
    let Some(stage) = Stage::new() else { return };
    let daemon = stage.kept.daemon();
    stage.import(&daemon);
    let mut handler = stage.handler(&daemon, "fn1@warm", &[]);
    for (how, why) in [
        ("garbage", "no JSON list"),
        ("nothing", "no memory"),
        ("two", "2 descriptors"),
        ("none", "0 descriptors"),
        ("other", "no userfaultfd"),
        ("outside", "another snapshot"),
        ("overlap", "overlap"),
        ("overflow", "beyond what can be mapped"),
        ("hangup", "ended before"),
    ] {
        stage.right(&handler, "mem", &[how]);
        let refused = handler.event();
        assert_eq!(refused["event"], "refused", "{refused}");
        assert!(refused["why"].as_str().unwrap().contains(why), "{how}: {refused}");
    }
    // Others are served as ever, also beside one that is killed.
    let mut waits =
        stage.microvm(&handler, "mem", &["wait"]).stdout(Stdio::null()).spawn().unwrap();
    handler.await_event("filled");
    stage.right(&handler, "mem", &["verify", "2"]);
    waits.kill().unwrap();
    waits.wait().unwrap();
    let pids = [handler.await_event("ended"), handler.await_event("ended")]
        .map(|ended| ended["pid"].clone());
    assert!(pids.contains(&waits.id().into()), "{pids:?}");
}

#[test]
fn a_daemon_that_is_killed_is_waited_for() {
    let Some(stage) = Stage::new() else { return };
    let mut daemon = stage.kept.daemon();
    stage.import(&daemon);
    let mut handler = stage.handler(&daemon, "fn1@warm", &["--once", "--lazy"]);
    let mut command = stage.microvm(&handler, "mem", &["wait"]);
    let mut first = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "waits\n");
    drop(handler);
    first.kill().unwrap();
    first.wait().unwrap();

    handler = stage.handler(&daemon, "fn1@warm", &["--once", "--lazy"]);
    let socket = daemon.socket();
    let reader = stage.microvm(&handler, "mem", &["verify", "2"]).stdout(Stdio::piped()).spawn();
    let reader = reader.unwrap();
    handler.await_event("served");
    common::signal_process(daemon.pid(), "KILL");
    daemon.await_end();
    let lost = handler.event();
    // It may have read all of it before.
    let is_lost = lost["event"] == "source-lost";
    let pool = stage.kept.pool();
    let start = || TestDaemon::start_at(&socket, &["--checkpoint-pool", pool.to_str().unwrap()]);
    let _again = is_lost.then(start);
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    if is_lost {
        handler.await_event("ended");
    }
    assert_eq!(handler.end(), Some(0));
}

#[test]
fn a_damaged_page_is_named_and_others_are_right() {
    let Some(stage) = Stage::new() else { return };
    let daemon = stage.kept.daemon();
    stage.import(&daemon);
    drop(daemon);
    stage.kept.damage(1000);
    let daemon = stage.kept.daemon();
    let mut handler = stage.handler(&daemon, "fn1@warm", &[]);
    for _ in 0..2 {
        stage.right(&handler, "mem", &["damaged", "1000"]);
        let damaged = handler.await_event("damaged");
        assert_eq!((&damaged["offset"], &damaged["pages"]), (&4_096_000.into(), &1.into()));
        assert_eq!(handler.await_event("ended")["damaged_pages"], 1);
    }
    assert!(daemon.log().contains("page 1000 of memory block memory"), "{}", daemon.log());
}

#[test]
fn diff_snapshots_become_whole_checkpoints() {
    let Some(stage) = Stage::new() else { return };
    let daemon = stage.kept.daemon();
    stage.import(&daemon);
    let page = |number: u64| number * PAGE_BYTES as u64;
    fs::copy(stage.kept.at("mem"), stage.kept.at("whole")).unwrap();
    let whole = File::options().write(true).open(stage.kept.at("whole")).unwrap();
    let diff = File::create(stage.kept.at("diff")).unwrap();
    diff.set_len(page(PAGES)).unwrap();
    for number in (0..PAGES).filter(|number| number % 17 == 5) {
        // Zeros that were written count too.
        let new = content(if number % 2 == 0 { 0 } else { 10_000 + number });
        for file in [&diff, &whole] {
            file.write_all_at(&new, page(number)).unwrap();
        }
    }
    let import = |file: &'static str, name: &'static str, more: &[&'static str]| {
        let words = ["import-memory", file, "--state", "state", "--guest", "fn1", "--name", name];
        [&words[..], more].concat()
    };
    stage.kept.done(&daemon, &import("diff", "later", &["--on", "fn1@warm"]));
    stage.kept.done(&daemon, &["delete", "fn1@warm"]);
    let handler = stage.handler(&daemon, "fn1@later", &[]);
    stage.right(&handler, "whole", &["verify", "2"]);
    // What is served stays, and what does not fit is refused.
    diff.set_len(page(PAGES - 1)).unwrap();
    let short = import("diff", "x", &["--on", "fn1@later"]);
    stage.kept.refused(&daemon, &short, 8, &["another length"]);
    stage.kept.refused(&daemon, &import("diff", "x", &["--on", "fn1@none"]), 4, &["no checkpoint"]);
    stage.kept.refused(&daemon, &import("nonesuch", "x", &[]), 4, &["nonesuch"]);
    fs::write(stage.kept.at("odd"), [1; 5000]).unwrap();
    stage.kept.refused(&daemon, &import("odd", "x", &[]), 8, &["whole pages"]);
}

#[test]
fn others_are_not_served() {
    let Some(stage) = Stage::new() else { return };
    let daemon = stage.kept.daemon();
    stage.import(&daemon);
    let ask = |words: &[&str]| -> Ended {
        let mut command = bindery(["serve-faults", "--listen"]);
        command.arg(stage.kept.at("uffd.sock")).args(words).env("BINDERY_SOCKET", daemon.socket());
        run(command)
    };
    assert_eq!(ask(&["fn1@none"]).code, Some(4));
    let mut handler = stage.handler(&daemon, "fn1@warm", &[]);
    assert_eq!(ask(&["fn1@warm"]).code, Some(6), "the socket is taken");
    // One that was left behind is not.
    handler.child.kill().unwrap();
    handler.child.wait().unwrap();
    assert!(handler.socket.exists());
    drop(handler);
    if !can_change_user("serve_faults") {
        return;
    }
    let user = NOBODY.to_string();
    let mut handler = stage.handler(&daemon, "fn1@warm", &["--socket-user", &user]);
    stage.right_or_refused(&mut handler);
}

impl Stage {
    /// Connects as this user to a socket that is another's, and as that one.
    fn right_or_refused(&self, handler: &mut Handler) {
        let mut ours = self.microvm(handler, "mem", &["garbage"]);
        assert_eq!(ours.stdout(Stdio::null()).status().unwrap().code(), Some(0));
        let refused = handler.event();
        assert!(refused["why"].as_str().unwrap().contains("is of user"), "{refused}");
        open_to_all(&self.kept.at(""));
        let theirs = run(as_nobody(self.microvm(handler, "mem", &["verify", "1"])));
        if theirs.code == Some(77) {
            return skipped!("serve_faults: another user: {}", theirs.out);
        }
        assert_eq!(theirs.code, Some(0), "{}", theirs.out);
    }
}

fn open_to_all(directory: &Path) {
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory, all).unwrap();
}
