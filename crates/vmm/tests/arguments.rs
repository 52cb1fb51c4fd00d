//! Command lines of restored QEMUs, before real ones.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bindery_testkit::guest::{Kit, Qemu as Version};
use bindery_testkit::skipped;
use bindery_vmm::qemu::arguments::{
    ArgumentError, DiskReplacement, RestoreArguments, monitor_arguments,
};
use bindery_vmm::{IncomingQemu, Qemu, QemuSettings};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(30);

/// A QEMU that this test started. Killed when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kit() -> Option<Kit> {
    Kit::locate().map_err(|error| skipped!("{error}")).ok()
}

/// Starts a QEMU with these words, the program first, and waits for its monitor.
fn start(kit: &Kit, version: Version, words: &[OsString], monitor: &Path) -> Started {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("LD_LIBRARY_PATH", kit.library_path(version));
    let mut started = Started(command.stdin(Stdio::null()).spawn().unwrap());
    let deadline = Instant::now() + PATIENCE;
    while !monitor.exists() {
        assert!(started.0.try_wait().unwrap().is_none(), "QEMU has ended: {words:?}");
        assert!(Instant::now() < deadline, "no monitor");
        std::thread::sleep(Duration::from_millis(10));
    }
    started
}

/// Returns the words that the kernel has of a process.
fn words_of(pid: u32) -> Vec<Vec<u8>> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let words = line.strip_suffix(&[0]).unwrap().split(|byte| *byte == 0);
    words.map(<[u8]>::to_vec).collect()
}

fn make_image(kit: &Kit, version: Version, words: &[&str]) {
    let mut command = Command::new(kit.qemu_img(version));
    command.args(["create", "-q"]).args(words).env("LD_LIBRARY_PATH", kit.library_path(version));
    assert!(command.status().unwrap().success());
}

#[test]
fn a_restored_qemu_waits_beside_the_saved_one() {
    let Some(kit) = kit() else { return };
    for version in [Version::V7, Version::V10] {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| -> PathBuf { directory.path().join(name) };
        let text = |name: &str| at(name).to_str().unwrap().to_owned();
        make_image(&kit, version, &["-f", "raw", &text("d.img"), "16M"]);
        make_image(&kit, version, &["-f", "qcow2", &text("e.qcow2"), "16M"]);
        let mut words: Vec<OsString> = vec![kit.qemu(version).into()];
        let drive = format!("if=none,id=d,format=raw,file={}", text("d.img"));
        let file = format!("driver=file,node-name=f,filename={}", text("e.qcow2"));
        for word in [
            "-machine",
            "none",
            "-nodefaults",
            "-display",
            "none",
            "-m",
            "64",
            "-name",
            "web",
            "-drive",
            &drive,
            "-blockdev",
            &file,
            "-blockdev",
            "driver=qcow2,node-name=e,file=f",
            "-serial",
            "null",
        ] {
            words.push(word.into());
        }
        words.extend(monitor_arguments(&at("saved.sock")));
        let saved = start(&kit, version, &words, &at("saved.sock"));

        let overlay = |backing: &str, format: &str, name: &str| {
            let (backing, path) = (text(backing), text(name));
            make_image(&kit, version, &["-f", "qcow2", "-b", &backing, "-F", format, &path]);
            path
        };
        let disks =
            [("d", overlay("d.img", "raw", "o1")), ("e", overlay("e.qcow2", "qcow2", "o2"))];
        let disks = disks.map(|(name, path)| DiskReplacement {
            names: vec![name.into()],
            path,
            format: "qcow2".into(),
        });
        let arguments = RestoreArguments {
            saved: words_of(saved.0.id()),
            disks: disks.into(),
            name: Some("copy".into()),
            ..RestoreArguments::default()
        };
        let made = arguments.rewrite(&at("new.sock")).unwrap();
        let words: Vec<OsString> = made.words.into_iter().map(OsString::from_vec).collect();
        let _restored = start(&kit, version, &words, &at("new.sock"));
        let mut incoming = IncomingQemu::connect(&at("new.sock"), QemuSettings::default()).unwrap();
        let name = incoming.qmp().execute("query-name", json!({})).unwrap();
        assert_eq!(name["name"], "copy");
        let nodes = incoming.qmp().execute("query-named-block-nodes", json!({})).unwrap();
        for path in ["o1", "o2"] {
            assert!(nodes.to_string().contains(&text(path)), "{path}: {nodes}");
        }
        // The saved one goes on with its own.
        Qemu::connect(&at("saved.sock"), QemuSettings::default()).unwrap();
    }
}

/// Options that a QEMU lists in its help are known here, but for those that end it at once.
#[test]
fn options_of_both_versions_are_known() {
    let Some(kit) = kit() else { return };
    for version in [Version::V7, Version::V10] {
        let mut command = Command::new(kit.qemu(version));
        command.arg("-help").env("LD_LIBRARY_PATH", kit.library_path(version));
        let help = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let names = help.lines().filter(|line| line.starts_with('-'));
        let names = names.filter_map(|line| line.split_whitespace().next());
        let mut unknown: Vec<&str> = names
            .flat_map(|name| name.split('/'))
            .filter(|name| {
                let saved = ["qemu", name].map(|word| word.as_bytes().to_vec()).into();
                let arguments = RestoreArguments { saved, ..RestoreArguments::default() };
                let made = arguments.rewrite(Path::new("/m"));
                matches!(made, Err(ArgumentError::Unknown(_)))
            })
            .collect();
        unknown.dedup();
        let ends_it = ["-h", "-version", "-audio-help"];
        // Options of other architectures and of graphics, which no guest here has had.
        let elsewhere = ["-portrait", "-rotate", "-xen-attach", "-xen-domid-restrict"];
        unknown.retain(|name| !ends_it.contains(name) && !elsewhere.contains(name));
        assert_eq!(unknown, Vec::<&str>::new(), "{version:?}");
    }
}
