//! Memory and screens of stopped guests before their checkpoint and after their restore: every byte is the same.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bindery_testkit::guest::{Qemu, QemuGuest};
use fire::stage::Stage;
use fire::{PATIENCE, await_guest, await_some, boot, figure};
use serde_json::json;

const MEMORY_MIB: u32 = 256;

/// Time in which a cursor is seen on and off.
const BLINKS: Duration = Duration::from_secs(10);

/// A machine, and what is special about it.
struct Kind {
    name: &'static str,
    machine: &'static str,
    kernel_arguments: &'static str,
    arguments: &'static [&'static str],
    has_screen: bool,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "pc",
        machine: "pc",
        kernel_arguments: "",
        arguments: &["-device", "VGA"],
        has_screen: true,
    },
    Kind {
        name: "q35",
        machine: "q35",
        kernel_arguments: "",
        arguments: &["-device", "VGA"],
        has_screen: true,
    },
    Kind {
        name: "nodes",
        machine: "q35",
        kernel_arguments: "",
        arguments: &[
            "-object",
            "memory-backend-ram,id=m0,size=96M",
            "-object",
            "memory-backend-ram,id=m1,size=160M,prealloc=on",
            "-numa",
            "node,memdev=m0",
            "-numa",
            "node,memdev=m1",
        ],
        has_screen: false,
    },
    Kind {
        name: "microvm",
        machine: "microvm,pcie=on,rtc=on",
        kernel_arguments: "tsc_early_khz=2000000",
        arguments: &[],
        has_screen: false,
    },
];

/// Memory and screen of a guest that stands, in files.
struct Image {
    memory: PathBuf,
    screen: Vec<u8>,
}

impl Image {
    fn take(guest: &mut QemuGuest, directory: &Path, name: &str, has_screen: bool) -> Self {
        let memory = directory.join(format!("{name}.memory"));
        let size = u64::from(MEMORY_MIB) << 20;
        let wanted = json!({ "val": 0, "size": size, "filename": memory });
        guest.qmp().unwrap().execute("pmemsave", &wanted).unwrap();
        let screen = if has_screen { screen(guest, directory) } else { Vec::new() };
        Self { memory, screen }
    }

    fn assert_same(&self, other: &Self, what: &str) {
        let read = |image: &Self| std::fs::read(&image.memory).unwrap();
        let (ours, theirs) = (read(self), read(other));
        assert_eq!(ours.len(), theirs.len(), "{what}");
        let pages = ours.chunks(4096).zip(theirs.chunks(4096)).enumerate();
        let others: Vec<usize> =
            pages.filter(|(_, (ours, theirs))| ours != theirs).map(|(page, _)| page).collect();
        assert!(others.is_empty(), "{what}: other pages {others:x?}");
    }
}

fn screen(guest: &mut QemuGuest, directory: &Path) -> Vec<u8> {
    let file = directory.join("screen.ppm");
    guest.qmp().unwrap().execute("screendump", &json!({ "filename": file })).unwrap();
    let screen = std::fs::read(&file).unwrap();
    assert!(screen.len() > 100_000, "a screen of {} bytes", screen.len());
    screen
}

/// Waits until a guest's screen is `before`: the cursor of a text screen blinks, also while the guest stands.
fn assert_screen(guest: &mut QemuGuest, directory: &Path, before: &[u8], what: &str) {
    let mut last = Vec::new();
    let differing = |last: &[u8]| last.iter().zip(before).filter(|(now, then)| now != then).count();
    let deadline = Instant::now() + BLINKS;
    while last != before {
        let (bytes, others) = (last.len(), differing(&last));
        assert!(Instant::now() < deadline, "{what}: {others} of {bytes} bytes are others");
        last = screen(guest, directory);
    }
}

fn state(guest: &mut QemuGuest) -> Option<String> {
    let answer = guest.qmp().ok()?.execute("query-status", &json!({})).ok()?;
    answer["status"].as_str().map(ToOwned::to_owned)
}

/// Restores a checkpoint of a guest that stands, and waits until the next one stands, too.
fn restored(stage: &Stage, qemu: Qemu, checkpoint: &str, name: &str) -> QemuGuest {
    let mut guest = stage.begin_restore_with(qemu, &[checkpoint, "--name", name, "--paused"]);
    await_some(
        "it is restored",
        PATIENCE,
        || state(&mut guest).filter(|state| !["inmigrate", "running"].contains(&state.as_str())),
        || stage.daemon.log(),
    );
    guest
}

fn is_identical(kind: &Kind) {
    let Some(stage) = Stage::new() else { return };
    for qemu in Qemu::ALL {
        let name = format!("{}-{qemu:?}", kind.name).to_lowercase();
        let builder = stage.builder(qemu, kind.machine, &name).memory_mib(MEMORY_MIB);
        let builder = builder.args(kind.arguments.iter().copied());
        let mut guest = boot(builder.kernel_arguments(kind.kernel_arguments));
        guest
            .check("dd if=/dev/urandom of=/tmp/x bs=1M count=40 2>/dev/null; cp /tmp/x /tmp/y")
            .unwrap();
        await_guest(&stage.daemon, &name, "it is merged", |status| {
            figure(status, "pages_merged") > 0
        });
        guest.qmp().unwrap().execute("stop", &json!({})).unwrap();
        let directory = stage.directory.path();
        let before = Image::take(&mut guest, directory, "before", kind.has_screen);
        let made = stage.checkpoint(&name, "n");
        eprintln!("{name}: {made}");
        guest.shut_down();
        let mut guest = restored(&stage, qemu, &format!("{name}@n"), &format!("{name}-2"));
        let after = Image::take(&mut guest, directory, "after", kind.has_screen);
        before.assert_same(&after, &name);
        if kind.has_screen {
            assert_screen(&mut guest, directory, &before.screen, &name);
        }
        guest.shut_down();
    }
}

#[test]
fn a_pc_is_identical_with_its_screen() {
    is_identical(&KINDS[0]);
}

#[test]
fn a_q35_is_identical_with_its_screen() {
    is_identical(&KINDS[1]);
}

#[test]
fn memory_of_two_nodes_is_identical() {
    is_identical(&KINDS[2]);
}

#[test]
fn a_microvm_is_identical() {
    is_identical(&KINDS[3]);
}
