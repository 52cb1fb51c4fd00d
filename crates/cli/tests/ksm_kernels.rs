//! `bindery ksm` on the kernels that it is for: guests of Linux 5.10, 6.1 and 6.12, each with KSM of its
//! own. What a kernel lacks is told, and all else works.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::time::{Duration, Instant};

use bindery_testkit::bindery::Bindery;
use bindery_testkit::guest::{CustomImage, Kernel, Kit, Qemu, QemuGuest};
use bindery_testkit::skipped;
use serde_json::Value;

/// How long a guest may take to boot, and anything in it, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a scan is to take.
const TARGET_S: f64 = 1.0;

/// What an administrator had set: neither the kernel's defaults nor what a pilot would choose.
const SET_BEFORE: &str =
    "cd /sys/kernel/mm/ksm && echo 37 > pages_to_scan && echo 19 > sleep_millisecs";

const SETTINGS: &str = "cd /sys/kernel/mm/ksm && cat pages_to_scan sleep_millisecs run && \
    { [ ! -e advisor_mode ] || cat advisor_mode; }";

/// A kernel, and since when things are there that not all of them have.
struct Host {
    guest: QemuGuest,
    version: (u32, u32),
    _directory: tempfile::TempDir,
}

impl Host {
    /// Boots `kernel`; `None`, loudly, where that cannot be.
    fn boot(kernel: Kernel, version: (u32, u32)) -> Option<Self> {
        let bindery = Bindery::locate().map_err(|error| skipped!("{error}")).ok()?;
        let kit = Kit::locate().map_err(|error| skipped!("{error}")).ok()?;
        if let Err(error) = kit.kernel(kernel) {
            skipped!("`bindery ksm` on Linux {version:?}: {error}");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let image = CustomImage::new(&kit, kernel, directory.path())
            .and_then(|image| image.program(bindery.program())?.write())
            .unwrap_or_else(|error| panic!("{error}"));
        // QEMU 7.2 leaves wrong flags after cmpxchg16b under TCG, by which newer kernels allocate memory.
        let qemu = if version >= (6, 12) { Qemu::V10 } else { Qemu::V7 };
        let guest = QemuGuest::builder(&kit, &image).qemu(qemu).cpus(2).spawn().unwrap();
        let mut host = Self { guest, version, _directory: directory };
        let boot = host.guest.wait_ready(PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        let release = host.check("uname -r");
        println!("{} booted in {:.1} s", release.trim(), boot.as_secs_f64());
        assert!(release.starts_with(&format!("{}.{}.", version.0, version.1)), "{release}");
        Some(host)
    }

    fn since(&self, major: u32, minor: u32) -> bool {
        self.version >= (major, minor)
    }

    fn check(&mut self, script: &str) -> String {
        self.guest.check(script).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A process that holds pages which are offered to KSM, half of them the same in all.
    fn offer(&mut self, name: &str, pages: u32, seed: u32) {
        let script = format!("exec guest_agent mergeable --pages {pages} --seed {seed}");
        self.guest.run_in_background(name, &script).unwrap();
        self.await_in_log(name, "pages");
    }

    fn log(&mut self, name: &str) -> String {
        self.check(&format!("cat /tmp/{name}.log"))
    }

    fn await_in_log(&mut self, name: &str, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log(name).contains(what) {
            assert!(Instant::now() < deadline, "no {what} in {}", self.log(name));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Starts a pilot; its events go to a log of that name.
    fn pilot(&mut self, name: &str) {
        let script = format!(
            "exec bindery ksm run --json --start --target-scan-time {TARGET_S}s --max-cpu 60 \
             --min-pages 40 --max-pages 5000"
        );
        self.guest.run_in_background(name, &script).unwrap();
        self.await_in_log(name, "\"started\"");
    }

    fn events(&mut self, name: &str, event: &str) -> Vec<Value> {
        let log = self.log(name);
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|value| value["event"] == event).collect()
    }

    /// Waits until `wanted` finds something among the events of a pilot.
    fn await_event<T>(
        &mut self,
        name: &str,
        event: &str,
        mut wanted: impl FnMut(&[Value]) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = wanted(&self.events(name, event)) {
                return found;
            }
            assert!(Instant::now() < deadline, "no such {event} in\n{}", self.log(name));
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn is_near_target(scan: &Value) -> bool {
    let seconds = scan["scan_time_us"].as_f64().unwrap() / 1e6;
    scan["is_whole"] == true && (seconds / TARGET_S - 1.0).abs() < 0.25
}

#[test]
fn linux_6_1_is_paced() {
    if let Some(host) = Host::boot(Kernel::Stable, (6, 1)) {
        show_that_it_is_paced(host);
    }
}

#[test]
fn linux_6_12_is_paced() {
    if let Some(host) = Host::boot(Kernel::Backports, (6, 12)) {
        show_that_it_is_paced(host);
    }
}

#[test]
fn linux_5_10_is_paced() {
    if let Some(host) = Host::boot(Kernel::Oldest, (5, 10)) {
        show_that_it_is_paced(host);
    }
}

fn show_that_it_is_paced(mut host: Host) {
    host.check(SET_BEFORE);
    if host.since(6, 8) {
        host.check("echo scan-time > /sys/kernel/mm/ksm/advisor_mode");
    }
    let before = host.check(SETTINGS);
    host.offer("few", 3000, 1);
    what_is_missing_is_told(&mut host);
    the_target_is_met_and_met_again_after_growth(&mut host);
    another_writer_is_noticed(&mut host);
    the_status_is_told(&mut host);
    host.check("kill -TERM $(pidof bindery)");
    host.await_event("pilot", "ended", |events| events.first().cloned());
    assert_eq!(host.check(SETTINGS), before);
    what_was_killed_is_put_back(&mut host, &before);
    assert_eq!(host.guest.kernel_complaints().unwrap(), Vec::<String>::new());
}

/// `PR_SET_MEMORY_MERGE` is there since Linux 6.4, and what was offered outlives exec since 6.10.
fn what_is_missing_is_told(host: &mut Host) {
    let enable = "exec bindery ksm enable -- guest_agent mergeable --pages 500 --offer 0";
    if host.since(6, 10) {
        host.guest.run_in_background("enabled", enable).unwrap();
        host.await_in_log("enabled", "pages");
    } else if !host.since(6, 4) {
        let refused = host.guest.run(enable).unwrap();
        assert_eq!(refused.status, 7, "{}", refused.stderr);
        assert!(refused.stderr.contains("since 6.4"), "{}", refused.stderr);
        assert!(refused.stderr.contains("MADV_MERGEABLE"), "{}", refused.stderr);
    }
}

fn the_target_is_met_and_met_again_after_growth(host: &mut Host) {
    host.pilot("pilot");
    let started = host.events("pilot", "started").remove(0);
    let mode = if host.since(6, 8) { Value::from("scan-time") } else { Value::Null };
    assert_eq!(started["found"]["advisor_mode"], mode, "{started}");
    assert_eq!(started["names_writers"], true, "{started}");
    let few = host.await_event("pilot", "ksm_advisor", |scans| {
        scans.iter().find(|scan| is_near_target(scan)).cloned()
    });
    host.offer("more", 9000, 2);
    let at = few["full_scans"].as_u64().unwrap();
    let pace = few["pages_to_scan"].as_u64().unwrap();
    let many = host.await_event("pilot", "ksm_advisor", |scans| {
        let is_it = |scan: &&Value| {
            is_near_target(scan)
                && scan["full_scans"].as_u64().unwrap() > at + 1
                && scan["pages_to_scan"].as_u64().unwrap() > 2 * pace
        };
        scans.iter().find(is_it).cloned()
    });
    println!("{few}\n{many}");
    values_change_between_scans(host);
}

/// A host that is busy with other things may come late now and then, but not always: each growth has it
/// change the value once more.
fn values_change_between_scans(host: &mut Host) {
    let is_proven = |scan: &Value| scan["is_whole"] == true && scan["timing"] == "between-scans";
    let mut scans = host.events("pilot", "ksm_advisor");
    for seed in 3..8 {
        if scans.iter().any(is_proven) {
            return;
        }
        host.offer(&format!("more-{seed}"), 2000, seed);
        let enough = scans.len() + 3;
        scans = host.await_event("pilot", "ksm_advisor", |scans| {
            (scans.len() >= enough).then(|| scans.to_vec())
        });
    }
    panic!("{scans:?}");
}

fn another_writer_is_noticed(host: &mut Host) {
    host.check("echo 64 > /sys/kernel/mm/ksm/pages_to_scan");
    let write = host.await_event("pilot", "foreign_write", |events| events.first().cloned());
    assert_eq!((&write["setting"], &write["found"]), (&"pages_to_scan".into(), &"64".into()));
    assert!(write["suspect"]["pid"].is_u64(), "{write}");
    assert_ne!(host.check("cat /sys/kernel/mm/ksm/pages_to_scan").trim(), "64");
}

fn the_status_is_told(host: &mut Host) {
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        let status = host.check("bindery ksm status --json --for 200ms");
        let status: Value = serde_json::from_str(&status).unwrap();
        if status["pages_sharing"].as_u64().unwrap() > 0 {
            break status;
        }
        assert!(Instant::now() < deadline, "{status}");
    };
    assert_eq!(status["set_by"]["by"], "pilot", "{status}");
    assert!(status["ksmd_cpu_percent"].as_f64().unwrap() > 0.0, "{status}");
    for (figure, since) in [
        ("general_profit", (6, 4)),
        ("pages_per_second", (6, 6)),
        ("ksm_zero_pages", (6, 6)),
        ("smart_scan", (6, 7)),
        ("advisor_mode", (6, 8)),
    ] {
        assert_eq!(!status[figure].is_null(), host.version >= since, "{figure}: {status}");
    }
    let processes = &status["processes"];
    assert_eq!(!processes["lines"].as_array().unwrap().is_empty(), host.since(5, 19), "{status}");
    assert_eq!(processes["tells_profit"], host.since(6, 1), "{status}");
    let text = host.check("bindery ksm status --for 10ms");
    assert!(text.contains("set by a pilot, process"), "{text}");
    assert_eq!(text.contains("not told by this kernel"), !host.since(6, 1), "{text}");
}

fn what_was_killed_is_put_back(host: &mut Host, before: &str) {
    host.pilot("killed");
    host.check("kill -KILL $(pidof bindery); while pidof bindery; do sleep 0.1; done");
    assert_ne!(host.check(SETTINGS), before);
    let next = host.check("bindery ksm run --json --for 1s");
    let started: Value = serde_json::from_str(next.lines().next().unwrap()).unwrap();
    assert_eq!(started["is_taken_over"], true, "{next}");
    assert_eq!(host.check(SETTINGS), before);
}
