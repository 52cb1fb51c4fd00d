//! What QEMU itself does with guest memory: the shim steps out of its way.
//!
//! Memory is managed where a daemon is there, and otherwise offered: the shim steps aside from both.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bindery_space::Space;
use bindery_testkit::bindery::Bindery;
use bindery_testkit::guest::{
    GuestBuilder, GuestImage, ImageKind, Kit, MemoryBackend, Qemu, QemuGuest,
};
use bindery_testkit::skipped;
use serde_json::json;
use tempfile::TempDir;

/// Where no daemon listens.
const NOBODY: &str = "/nonexistent/bindery.sock";

const BOOT: Duration = Duration::from_secs(120);
const MIGRATION: Duration = Duration::from_secs(120);

fn kit() -> Option<(Kit, GuestImage)> {
    if let Err(error) = Space::start() {
        skipped!("{error}");
        return None;
    }
    let kit = Kit::locate().map_err(|error| skipped!("{error}")).ok()?;
    let image = GuestImage::of_kit(&kit, ImageKind::Server).unwrap_or_else(|e| panic!("{e}"));
    Some((kit, image))
}

/// A QEMU with the shim in it, and the shim's log.
struct Shimmed {
    guest: QemuGuest,
    log: PathBuf,
}

impl Shimmed {
    fn start(builder: GuestBuilder, directory: &TempDir, name: &str, socket: &Path) -> Self {
        let program = std::env::current_exe().expect("this test has a path");
        let log = directory.path().join(name);
        let guest = builder
            .env("LD_PRELOAD", program.with_file_name("libbindery_shim.so"))
            .env("BINDERY_SOCKET", socket)
            .env("BINDERY_LOG_FILE", &log)
            .spawn()
            .expect("QEMU starts");
        Self { guest, log }
    }

    fn boot(&mut self) {
        self.guest.wait_ready(BOOT).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Whether guest memory of this process is watched.
    fn is_managed(&self) -> bool {
        let pid = self.guest.pid().expect("QEMU runs");
        let smaps = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("smaps"));
        let smaps = smaps.expect("our own child");
        smaps.lines().any(|line| line.starts_with("VmFlags:") && line.contains(" um "))
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn enable(&mut self, capability: &str) {
        let capabilities = json!({ "capabilities": [{ "capability": capability, "state": true }] });
        let qmp = self.guest.qmp().expect("QMP");
        qmp.execute("migrate-set-capabilities", &capabilities).expect("a capability of QEMU");
    }

    fn is_well(&mut self) {
        assert_eq!(self.guest.check("cat /tmp/mark").expect("the guest runs"), "kept\n");
        assert_eq!(self.guest.kernel_complaints().expect("dmesg"), Vec::<String>::new());
    }
}

#[test]
fn background_snapshots_work() {
    let Some((kit, image)) = kit() else { return };
    let daemon = match Bindery::locate() {
        Ok(bindery) => bindery.daemon(&[]).unwrap_or_else(|error| panic!("{error}")),
        Err(error) => return skipped!("{error}"),
    };
    for version in Qemu::ALL {
        let directory = tempfile::tempdir().expect("directory");
        let builder = QemuGuest::builder(&kit, &image).qemu(version);
        let mut source = Shimmed::start(builder, &directory, "log", &daemon.socket());
        source.boot();
        assert!(source.is_managed(), "{version:?}: {}", source.log());
        source.guest.check("echo kept > /tmp/mark").expect("the guest runs");

        source.enable("background-snapshot");
        let uri = format!("exec:cat > {}", directory.path().join("snapshot").display());
        source.guest.qmp().expect("QMP").migrate(&uri, MIGRATION).expect("a snapshot");
        let log = source.log();
        assert!(log.contains("userfaultfd: post-copy or background snapshot"), "{log}");
        assert!(log.contains("stepped aside"), "{log}");
        source.is_well();
        source.guest.shut_down();
    }
}

#[test]
fn post_copy_works_between_guests_that_are_managed() {
    let Some((kit, image)) = kit() else { return };
    for backend in [MemoryBackend::Anonymous, MemoryBackend::MemfdShared] {
        let directory = tempfile::tempdir().expect("directory");
        let builder = QemuGuest::builder(&kit, &image).qemu(Qemu::V10).memory_backend(backend);
        let mut source = Shimmed::start(builder.clone(), &directory, "source", Path::new(NOBODY));
        source.boot();
        source.guest.check("echo kept > /tmp/mark").expect("the guest runs");

        let uri = format!("unix:{}", directory.path().join("migrate").display());
        let incoming = builder.incoming(&uri);
        let mut destination =
            Shimmed::start(incoming, &directory, "destination", Path::new(NOBODY));
        let deadline = Instant::now() + BOOT;
        while destination.guest.qmp().is_err() {
            assert!(Instant::now() < deadline, "{}", destination.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        for side in [&mut source, &mut destination] {
            side.enable("postcopy-ram");
        }
        // So slow at first that only post-copy can end it.
        let slow = json!({ "max-bandwidth": 4 << 20 });
        let qmp = source.guest.qmp().expect("QMP");
        qmp.execute("migrate-set-parameters", &slow).expect("a parameter of QEMU");
        qmp.execute("migrate", &json!({ "uri": &uri })).expect("a migration");
        std::thread::sleep(Duration::from_millis(500));
        qmp.execute("migrate-start-postcopy", &json!({})).expect("post-copy");
        let fast = json!({ "max-bandwidth": 1 << 30 });
        qmp.execute("migrate-set-parameters", &fast).expect("a parameter of QEMU");
        await_completion(&mut source);

        let log = destination.log();
        assert!(log.contains("userfaultfd: post-copy or background snapshot"), "{log}");
        source.guest.shut_down();
        destination.is_well();
        destination.guest.shut_down();
    }
}

fn await_completion(source: &mut Shimmed) {
    let deadline = Instant::now() + MIGRATION;
    loop {
        let qmp = source.guest.qmp().expect("QMP");
        let answer = qmp.execute("query-migrate", &json!({})).expect("QEMU answers");
        match answer["status"].as_str() {
            Some("completed") => return,
            Some("failed" | "cancelled" | "postcopy-paused") => panic!("{answer}"),
            _ => assert!(Instant::now() < deadline, "{answer}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_guest_with_locked_memory_is_left_alone() {
    let Some((kit, image)) = kit() else { return };
    let directory = tempfile::tempdir().expect("directory");
    let builder = QemuGuest::builder(&kit, &image).args(["-overcommit", "mem-lock=on"]);
    let mut guest = Shimmed::start(builder, &directory, "log", Path::new(NOBODY));
    guest.boot();
    assert!(!guest.is_managed());
    assert!(guest.log().contains("mem-lock=off"), "{}", guest.log());
    guest.guest.shut_down();
}
