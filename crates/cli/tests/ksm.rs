//! `bindery ksm`: a pilot puts everything back, however it ends, and says what is wrong.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bindery_testkit::machine::{KsmGuard, KsmSettings, SettingGuard};
use bindery_testkit::process::{ProcessGuest, serve_if_started};
use bindery_testkit::skipped;
use common::{as_nobody, bindery, can_change_user, program_for_all, run, signal_process};
use serde_json::Value;

/// How long a scan may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn guest_process() {
    serve_if_started();
}

/// KSM running at a known pace, for this test alone; `None`, loudly, where that cannot be.
fn ksm(test: &str) -> Option<KsmGuard> {
    let settings = KsmSettings {
        sleep_millisecs: Some(20),
        pages_to_scan: Some(100),
        smart_scan: None,
        // Zero pages would be merged with the kernel's, and count among no others.
        use_zero_pages: Some(false),
    };
    KsmGuard::start(settings).map_err(|error| skipped!("{test}: {error}")).ok()
}

fn file(name: &str) -> String {
    std::fs::read_to_string(format!("/sys/kernel/mm/ksm/{name}")).unwrap().trim().to_owned()
}

/// A process that offers memory to KSM.
fn offer(pages: usize, seed: u64) -> ProcessGuest {
    let mut guest = ProcessGuest::start(&[], pages, seed).unwrap();
    guest.offer().unwrap();
    guest
}

/// `bindery ksm run --json` at work, killed when dropped.
struct Pilot {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Pilot {
    fn start(state: &Path, arguments: &[&str]) -> Self {
        // Whoever runs the tests may ignore hangups, as under nohup(1): then children do, too.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_bindery")]);
        command.args(["ksm", "run", "--json", "--state"]).arg(state).args(arguments);
        command.env_remove("BINDERY_SOCKET").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut pilot = Self { child, lines };
        let started = pilot.next("started");
        assert!(started["found"]["pages_to_scan"].is_u64(), "{started}");
        pilot
    }

    /// The next event of that name.
    fn next(&mut self, event: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it ended without {event}");
            let value: Value = serde_json::from_str(&line).unwrap();
            if value["event"] == event {
                return value;
            }
            assert!(Instant::now() < deadline, "{event} never came");
        }
    }

    /// Passes over what it has said so far. It must be stopped.
    fn forget(&mut self) {
        while !self.lines.buffer().is_empty()
            || rustix::io::ioctl_fionread(self.lines.get_ref()).unwrap() > 0
        {
            self.lines.read_line(&mut String::new()).unwrap();
        }
    }

    fn signal(&self, signal: &str) {
        signal_process(self.child.id(), signal);
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn state() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ksm.json");
    (directory, path)
}

fn assert_as_before(state: &Path) {
    assert_eq!((file("pages_to_scan").as_str(), file("sleep_millisecs").as_str()), ("100", "20"));
    assert!(!state.exists());
}

#[test]
fn a_signal_to_end_puts_everything_back() {
    let Some(ksm) = ksm("a_signal_to_end_puts_everything_back") else { return };
    let (_directory, state) = state();
    let mut advisor = None;
    if Path::new("/sys/kernel/mm/ksm/advisor_mode").exists() {
        let mode = SettingGuard::set("/sys/kernel/mm/ksm/advisor_mode", "scan-time");
        advisor = Some(mode.unwrap());
    }
    ksm.pause().unwrap();
    for signal in ["TERM", "INT", "HUP", "QUIT"] {
        let mut pilot = Pilot::start(&state, &["--start", "--min-pages", "700"]);
        assert_eq!((file("pages_to_scan").as_str(), file("run").as_str()), ("700", "1"));
        if advisor.is_some() {
            assert_eq!(file("advisor_mode"), "[none] scan-time");
        }
        assert!(state.exists());
        pilot.signal(signal);
        let totals = pilot.next("ended");
        assert!(totals["pilot_cpu_us"].is_u64(), "{totals}");
        assert_eq!(pilot.child.wait().unwrap().code(), Some(0));
        assert_eq!((file("run").as_str(), file("sleep_millisecs").as_str()), ("0", "20"));
        match &advisor {
            Some(_) => assert_eq!(file("advisor_mode"), "none [scan-time]"),
            None => assert_as_before(&state),
        }
        assert!(!state.exists());
    }
    drop(advisor);
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ended when dropped.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process writes to where there is no room, and what would have to be read first.
fn full_stdout() -> (Stdio, UnixStream) {
    let (mut writer, reader) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    while writer.write(b".").is_ok() {}
    writer.set_nonblocking(false).unwrap();
    (OwnedFd::from(writer).into(), reader)
}

#[test]
fn a_reader_that_stalls_stops_neither_the_pacing_nor_the_end() {
    let Some(_ksm) = ksm("a_reader_that_stalls_stops_neither_the_pacing_nor_the_end") else {
        return;
    };
    let (_directory, state) = state();
    let (stdout, _never_read) = full_stdout();
    let mut command = bindery(["ksm", "run", "--min-pages", "700", "--state"]);
    let mut pilot = Kept(command.arg(&state).stdout(stdout).spawn().unwrap());
    wait_until("its pace", || file("pages_to_scan") == "700");
    std::fs::write("/sys/kernel/mm/ksm/pages_to_scan", "7").unwrap();
    wait_until("its pace again", || file("pages_to_scan") != "7");
    signal_process(pilot.0.id(), "TERM");
    wait_until("its end", || pilot.0.try_wait().unwrap().is_some());
    assert_eq!(pilot.0.wait().unwrap().code(), Some(0));
    assert_as_before(&state);
}

#[test]
fn a_hangup_that_was_ignored_stays_ignored() {
    let Some(_ksm) = ksm("a_hangup_that_was_ignored_stays_ignored") else { return };
    let (_directory, state) = state();
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" ksm run --min-pages 700 --state \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_bindery")]).arg(&state);
    let mut pilot = Kept(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    wait_until("its pace", || file("pages_to_scan") == "700");
    signal_process(pilot.0.id(), "HUP");
    std::fs::write("/sys/kernel/mm/ksm/pages_to_scan", "7").unwrap();
    wait_until("its pace again", || file("pages_to_scan") != "7");
    assert!(pilot.0.try_wait().unwrap().is_none(), "it has ended");
    signal_process(pilot.0.id(), "TERM");
    wait_until("its end", || pilot.0.try_wait().unwrap().is_some());
    assert_as_before(&state);
}

#[test]
fn who_may_only_look_cannot_shut_the_pilot_out() {
    let test = "who_may_only_look_cannot_shut_the_pilot_out";
    let Some(_ksm) = ksm(test) else { return };
    if !can_change_user(test) {
        return;
    }
    let mut command = Command::new("sh");
    // Everything of the pilot's that a user may open for reading, locked while the shell lives.
    command.args([
        "-c",
        // What a shell starts with `&` has no stdin if it is not given one.
        "cd /; exec 3<&0; for file in /sys/kernel/mm/ksm/pages_to_scan /run/bindery/ksm.lock; do
        flock --exclusive --nonblock $file cat <&3 & done; wait",
    ]);
    let mut locker = as_nobody(command);
    let mut locker = Kept(locker.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let inode = std::fs::metadata("/sys/kernel/mm/ksm/pages_to_scan").unwrap().ino();
    let suffix = format!(":{inode} 0 EOF");
    wait_until("its lock", || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("FLOCK") && line.ends_with(&suffix))
    });
    let (_directory, state) = state();
    let mut command = bindery(["ksm", "run", "--for", "100ms", "--state"]);
    command.arg(&state);
    let ended = run(command);
    drop(locker.0.stdin.take());
    locker.0.wait().unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

#[test]
fn what_a_killed_pilot_left_is_put_back_by_the_next() {
    let Some(_ksm) = ksm("what_a_killed_pilot_left_is_put_back_by_the_next") else { return };
    let (_directory, state) = state();
    let kill = || {
        let mut pilot = Pilot::start(&state, &["--min-pages", "700"]);
        pilot.signal("KILL");
        pilot.child.wait().unwrap();
        assert_eq!(file("pages_to_scan"), "700");
        assert!(state.exists());
    };
    kill();
    let mut command = bindery(["ksm", "run", "--json", "--for", "200ms", "--state"]);
    command.arg(&state);
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let started: Value = serde_json::from_str(ended.out.lines().next().unwrap()).unwrap();
    assert_eq!(started["is_taken_over"], true);
    assert_eq!(started["found"]["pages_to_scan"], 100, "not what the killed one had set");
    assert_as_before(&state);
    // And without running.
    kill();
    let restore = || {
        let mut command = bindery(["ksm", "restore", "--json", "--state"]);
        command.arg(&state);
        let ended = run(command);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.json()["restored"].clone()
    };
    assert_eq!(restore()["pages_to_scan"], 100);
    assert_as_before(&state);
    assert_eq!(restore(), Value::Null);
}

#[test]
fn a_second_pilot_is_refused_and_told_who_the_first_is() {
    let Some(_ksm) = ksm("a_second_pilot_is_refused_and_told_who_the_first_is") else { return };
    let (_directory, state) = state();
    let (_other_directory, other_state) = self::state();
    let pilot = Pilot::start(&state, &[]);
    let pid = pilot.child.id();
    for words in [["ksm", "run", "--for", "1s"].as_slice(), &["ksm", "restore"]] {
        let mut command = bindery(words);
        // Another state file does not make it another machine.
        command.arg("--state").arg(&other_state);
        let ended = run(command);
        assert_eq!(ended.code, Some(6), "{}", ended.err);
        assert!(ended.err.contains(&format!("process {pid} (bindery)")), "{}", ended.err);
    }
    let status = run(bindery(["ksm", "status", "--for", "50ms", "--json"])).json();
    assert_eq!((&status["set_by"]["by"], &status["set_by"]["pid"]), (&"pilot".into(), &pid.into()));
}

#[test]
fn a_pilot_that_comes_late_says_so() {
    let Some(_ksm) = ksm("a_pilot_that_comes_late_says_so") else { return };
    let _few = offer(2000, 1);
    let (_directory, state) = state();
    let mut pilot = Pilot::start(&state, &["--target-scan-time", "1s", "--min-pages", "50"]);
    for _ in 0..2 {
        pilot.next("ksm_advisor");
    }
    pilot.signal("STOP");
    let full_scans = || file("full_scans").parse::<u64>().unwrap();
    let before = full_scans();
    let _more = offer(8000, 2);
    let deadline = Instant::now() + PATIENCE;
    while full_scans() < before + 3 {
        assert!(Instant::now() < deadline, "KSM does not scan");
        std::thread::sleep(Duration::from_millis(10));
    }
    // A scan may have ended before it was stopped.
    pilot.forget();
    pilot.signal("CONT");
    let late = pilot.next("ksm_advisor");
    assert_eq!(late["timing"], "late", "{late}");
    // What has begun at the old pace is not taken for what it would have been at the new one.
    assert_eq!(pilot.next("ksm_advisor")["is_whole"], false);
    pilot.signal("TERM");
    assert!(pilot.next("ended")["late_changes"].as_u64().unwrap() >= 1);
}

#[test]
fn each_setting_out_of_range_is_named_with_its_range() {
    for (flag, value, named) in [
        ("--target-scan-time", "0s", "advisor_target_scan_time is 1 to 86400"),
        ("--target-scan-time", "1500ms", "advisor_target_scan_time is 1 to 86400"),
        ("--max-cpu", "half", "advisor_max_cpu is 1 to 25600, not \"half\""),
        ("--max-cpu", "-1", "advisor_max_cpu is 1 to 25600"),
        ("--min-pages", "99999999999999999999", "advisor_min_pages_to_scan is 1 to 100000000"),
        ("--max-cpu", "0", "advisor_max_cpu is 1 to 25600"),
        ("--max-cpu", "25601", "advisor_max_cpu is 1 to 25600"),
        ("--min-pages", "0", "advisor_min_pages_to_scan is 1 to 100000000"),
        ("--max-pages", "100000001", "advisor_max_pages_to_scan is 1 to 100000000"),
        ("--min-pages", "30001", "above advisor_max_pages_to_scan (30000): lower the one"),
        ("--mode", "fast", "advisor_mode is none, scan-time or steady"),
    ] {
        let ended = run(bindery(["ksm", "run", flag, value]));
        assert_eq!(ended.code, Some(2), "{flag} {value}: {}", ended.err);
        assert!(ended.err.contains(named), "{flag} {value}: {}", ended.err);
        assert!(ended.err.contains(flag), "{flag} {value}: {}", ended.err);
    }
}

#[test]
fn what_is_no_state_of_a_pilot_is_left_alone() {
    let Some(_ksm) = ksm("what_is_no_state_of_a_pilot_is_left_alone") else { return };
    let (_directory, state) = state();
    std::fs::write(&state, "{\"precious\":true}").unwrap();
    for words in [["ksm", "restore"].as_slice(), &["ksm", "run", "--for", "1s"]] {
        let mut command = bindery(words);
        command.arg("--state").arg(&state);
        let ended = run(command);
        assert_eq!(ended.code, Some(8), "{}", ended.err);
        assert!(ended.err.contains("--state"), "{}", ended.err);
    }
    assert_eq!(std::fs::read_to_string(&state).unwrap(), "{\"precious\":true}");
    assert_eq!(file("pages_to_scan"), "100");
}

#[test]
fn who_may_not_is_told_what_would_help() {
    if !can_change_user("who_may_not_is_told_what_would_help") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = program_for_all(directory.path());
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).stdin(Stdio::null());
        run(as_nobody(command))
    };
    for verb in ["run", "restore"] {
        let ended = as_nobody(&["ksm", verb]);
        assert_eq!(ended.code, Some(5), "{verb}: {}", ended.err);
        assert!(ended.err.contains("root"), "{verb}: {}", ended.err);
    }
    // To look needs no right.
    let ended = as_nobody(&["ksm", "status", "--for", "10ms", "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.json()["processes"]["unreadable"].as_u64().unwrap() > 0);
}

/// Runs a script where mounts are nobody else's.
fn in_own_mounts(script: &str) -> Option<common::Ended> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script]);
    command.env("BINDERY", env!("CARGO_BIN_EXE_bindery")).stdin(Stdio::null());
    let works = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    works.is_ok_and(|status| status.success()).then(|| run(command))
}

#[test]
fn a_kernel_without_ksm_is_told() {
    let script = "mount -t tmpfs none /sys/kernel/mm; code=0
        for words in 'run' 'status' 'restore'; do \"$BINDERY\" ksm $words || code=$?; done
        exit $code";
    let Some(ended) = in_own_mounts(script) else {
        return skipped!("a_kernel_without_ksm_is_told: mounts are for root");
    };
    assert_eq!(ended.code, Some(7), "{}", ended.err);
    assert_eq!(ended.err.matches("CONFIG_KSM").count(), 3, "{}", ended.err);
}

#[test]
fn a_kernel_without_the_advisor_is_paced_all_the_same() {
    let test = "a_kernel_without_the_advisor_is_paced_all_the_same";
    let Some(_ksm) = ksm(test) else { return };
    let _memory = offer(2000, 1);
    let (directory, state) = state();
    // The files of Linux 5.10, and none of those that came later.
    let script = format!(
        "cd {0}; mkdir ksm; for file in full_scans max_page_sharing pages_shared pages_sharing \
         pages_to_scan pages_unshared pages_volatile run sleep_millisecs stable_node_chains \
         stable_node_dups use_zero_pages; do touch ksm/$file; mount --bind \
         /sys/kernel/mm/ksm/$file ksm/$file; done; mount --rbind ksm /sys/kernel/mm/ksm; \
         \"$BINDERY\" ksm status --for 10ms --json > status; exec \"$BINDERY\" ksm run --json --for 8s \
         --target-scan-time 1s --min-pages 50 --state {1}",
        directory.path().display(),
        state.display()
    );
    let Some(ended) = in_own_mounts(&script) else {
        return skipped!("{test}: mounts are for root");
    };
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let events: Vec<Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["found"]["advisor_mode"], Value::Null);
    let scans: Vec<_> = events.iter().filter(|event| event["event"] == "ksm_advisor").collect();
    // The end of a scan whose pages nobody counts is met all the same.
    let is_proven = |scan: &&&Value| scan["is_whole"] == true && scan["timing"] != "late";
    assert!(scans.iter().filter(is_proven).count() > 0, "{}", ended.out);
    let is_met = |scan: &&&Value| scan["written_within_us"].as_u64().unwrap() < 20_000;
    assert!(scans.iter().filter(is_proven).any(|scan| is_met(&scan)), "{}", ended.out);
    assert!(scans.iter().all(|scan| scan["pages"].as_u64() == Some(2000)), "{}", ended.out);
    let status = std::fs::read_to_string(directory.path().join("status")).unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(
        (&status["pages_per_second"], &status["advisor_mode"]),
        (&Value::Null, &Value::Null)
    );
    assert_as_before(&state);
}

#[test]
fn all_memory_of_a_program_is_offered() {
    // Others count the pages that KSM scans, and take turns. Who may not set KSM has no others here.
    let _turn = KsmGuard::stopped().ok();
    let ended = run(bindery(["ksm", "enable", "--", "cat", "/proc/self/ksm_stat"]));
    if ended.code == Some(5) || ended.code == Some(7) {
        return skipped!("all_memory_of_a_program_is_offered: {}", ended.err);
    }
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    match ended.out.lines().find(|line| line.starts_with("ksm_merge_any")) {
        Some(line) => assert_eq!(line, "ksm_merge_any: yes"),
        None => skipped!("whether it was: before Linux 6.16 the kernel does not tell"),
    }
    let ended = run(bindery(["ksm", "enable", "--", "/nonexistent/program"]));
    assert_eq!(ended.code, Some(4), "{}", ended.err);
}

#[test]
fn status_tells_savings_net_and_who_gains() {
    let Some(_ksm) = ksm("status_tells_savings_net_and_who_gains") else { return };
    let _pilot = {
        let (directory, state) = state();
        (Pilot::start(&state, &["--min-pages", "5000", "--max-cpu", "95"]), directory)
    };
    let status = || run(bindery(["ksm", "status", "--for", "100ms", "--json"])).json();
    let net = |status: &Value| status["net_bytes"].as_i64().unwrap();
    // The kernel's counter of zero pages keeps some of processes that have ended.
    let net_before = net(&status());
    let guests = [offer(4000, 1), offer(4000, 2)];
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        let status = status();
        if net(&status) > net_before + (4 << 20) {
            break status;
        }
        assert!(Instant::now() < deadline, "{status}");
    };
    let number = |name: &str| status[name].as_i64().unwrap();
    assert_eq!(number("saved_bytes") - number("metadata_bytes"), number("net_bytes"));
    assert!(number("metadata_bytes") >= 64 * (number("pages_shared") + number("pages_sharing")));
    let lines = status["processes"]["lines"].as_array().unwrap();
    for guest in &guests {
        let line = lines.iter().find(|line| line["pid"] == guest.pid());
        assert!(line.unwrap()["profit_bytes"].as_i64().unwrap() > 0, "{status}");
    }
    let text = run(bindery(["ksm", "status", "--for", "10ms"]));
    assert!(text.out.contains("set by a pilot, process"), "{}", text.out);
}
