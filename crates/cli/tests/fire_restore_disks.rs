//! Guests whose disks are checkpointed with their memory: the guest writes to overlays from then on, and one that is
//! restored has its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::path::{Path, PathBuf};
use std::process::Command;

use bindery_testkit::guest::{AioMode, Kit, Qemu, QemuGuest};
use fire::stage::Stage;
use fire::{PATIENCE, assert_no_complaints, await_some, boot, raw_disk, uncached};
use serde_json::Value;

const DISKS: [&str; 2] = ["/dev/vda", "/dev/vdb"];

/// Places of a disk, in blocks of 64 KiB, that are written at different times.
const BEFORE: u32 = 0;
const AFTER: u32 = 16;
const RESTORED: u32 = 32;

fn qcow2_disk(kit: &Kit, qemu: Qemu, directory: &Path) -> PathBuf {
    let path = directory.join("data.qcow2");
    let mut command = Command::new(kit.qemu(qemu).with_file_name("qemu-img"));
    command.args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("64M");
    let made = command.env("LD_LIBRARY_PATH", kit.library_path(qemu)).status().unwrap();
    assert!(made.success());
    path
}

fn write(guest: &mut QemuGuest, at: u32, text: &str) {
    for disk in DISKS {
        let write = format!("dd of={disk} bs=65536 seek={at} conv=notrunc,fsync");
        guest.check(&format!("yes '{text} {disk}' | head -c 65536 | {write}")).unwrap();
    }
}

/// Asserts what a place holds on each disk, past the guest's own cache; nothing was written there if `text` is empty.
fn assert_holds(guest: &mut QemuGuest, at: u32, text: &str) {
    guest.check("echo 3 > /proc/sys/vm/drop_caches").unwrap();
    for disk in DISKS {
        let read = guest.check(&format!("dd if={disk} bs=65536 skip={at} count=1 | tr -d '\\0'"));
        let line = if text.is_empty() { String::new() } else { format!("{text} {disk}\n") };
        let whole = line.repeat(if text.is_empty() { 0 } else { 65536 / line.len() + 1 });
        let read = read.unwrap();
        let (read, whole) = (read.trim_end(), whole.get(..65536).unwrap_or_default().trim_end());
        assert!(read == whole, "{disk}, block {at}, is not {text:?}: {:?}", read.get(..60));
    }
}

#[test]
fn disks_go_back_with_the_memory() {
    let Some(stage) = Stage::new() else { return };
    for qemu in Qemu::ALL {
        let version = format!("{qemu:?}").to_lowercase();
        let directory = stage.directory.path().join(&version);
        std::fs::create_dir(&directory).unwrap();
        let image = qcow2_disk(&stage.kit, qemu, &directory);
        let builder = stage
            .builder(qemu, "pc", &version)
            .drive(uncached(image, "qcow2", AioMode::Threads))
            .drive(uncached(raw_disk(&directory, "data.raw", 64), "raw", AioMode::Threads));
        let mut guest = boot(builder);
        write(&mut guest, BEFORE, "before");
        let made = stage.checkpoint_with_disks(&version, "first");
        assert_eq!(made["overlays"].as_array().unwrap().len(), 2, "{made}");
        write(&mut guest, AFTER, "after");

        // The one that runs is left alone.
        let name = format!("{version}-first");
        let mut restored = stage.restore(qemu, &format!("{version}@first"), &name);
        assert_holds(&mut restored, BEFORE, "before");
        assert_holds(&mut restored, AFTER, "");
        write(&mut restored, BEFORE, "overwritten");
        write(&mut restored, RESTORED, "restored");
        for (at, text) in [(BEFORE, "before"), (AFTER, "after"), (RESTORED, "")] {
            assert_holds(&mut guest, at, text);
        }

        // Each has a next checkpoint, above its own overlays.
        stage.checkpoint_with_disks(&version, "second");
        stage.checkpoint_with_disks(&name, "second");
        write(&mut guest, BEFORE, "later");
        write(&mut restored, BEFORE, "later");
        assert_no_complaints(&mut restored);
        restored.shut_down();
        let again = format!("{version}-again");
        let mut second = stage.restore(qemu, &format!("{name}@second"), &again);
        for (at, text) in [(BEFORE, "overwritten"), (AFTER, ""), (RESTORED, "restored")] {
            assert_holds(&mut second, at, text);
        }
        second.shut_down();
        let mut second = stage.restore(qemu, &format!("{version}@second"), &again);
        for (at, text) in [(BEFORE, "before"), (AFTER, "after"), (RESTORED, "")] {
            assert_holds(&mut second, at, text);
        }
        assert_no_complaints(&mut second);
        second.shut_down();
        assert_holds(&mut guest, BEFORE, "later");
        assert_no_complaints(&mut guest);
        guest.shut_down();
    }
}

/// Checkpoints of [`disks_of_a_guest_that_is_kept_have_bounded_chains`] that are kept.
const KEEP: u32 = 2;

/// Places that are written in each round, at the end, and by a restored guest.
const AGAIN: u32 = 720;
const LAST: u32 = 640;
const HERE: u32 = 900;

/// Paths of the overlays in a directory.
fn overlays(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_overlay = |path: &PathBuf| {
        path.extension().is_some_and(|it| it == "qcow2")
            && path.file_name().unwrap() != "data.qcow2"
    };
    let mut overlays: Vec<PathBuf> = entries.filter(is_overlay).collect();
    overlays.sort();
    overlays
}

fn delete(stage: &Stage, words: &[&str]) -> Value {
    let words = [&["checkpoint", "delete"], words, &["--json"]].concat();
    let deleted = stage.daemon.command(&words);
    let deleted = deleted.unwrap_or_else(|error| panic!("{error}\n{}", stage.daemon.log()));
    serde_json::from_str(&deleted).unwrap()
}

#[test]
fn disks_of_a_guest_that_is_kept_have_bounded_chains() {
    let Some(stage) = Stage::new() else { return };
    for qemu in Qemu::ALL {
        let version = format!("{qemu:?}").to_lowercase();
        let directory = stage.directory.path().join(&version);
        std::fs::create_dir(&directory).unwrap();
        let image = qcow2_disk(&stage.kit, qemu, &directory);
        let builder = stage
            .builder(qemu, "pc", &version)
            .drive(uncached(image.clone(), "qcow2", AioMode::Threads))
            .drive(uncached(raw_disk(&directory, "data.raw", 64), "raw", AioMode::Threads));
        let mut guest = boot(builder);
        let original = std::fs::read(&image).unwrap();
        let place = |round: u32| 8 * round;
        let name = |round: u32| format!("{version}@r{round}");
        let (mut merged, rounds) = (0, 7);
        // The guest writes all the while.
        guest.check("(while :; do dd if=/dev/urandom of=/dev/vda bs=65536 seek=500 count=4 conv=notrunc,fsync; done) > /dev/null 2>&1 & echo $! > /writer").unwrap();
        for round in 0..rounds {
            write(&mut guest, place(round), &format!("round {round}"));
            write(&mut guest, AGAIN, &format!("again {round}"));
            stage.checkpoint_with_disks(&version, &format!("r{round}"));
            if round >= KEEP {
                let deleted = delete(&stage, &[&name(round - KEEP)]);
                assert_eq!(
                    deleted["layers_left"],
                    Value::Null,
                    "{deleted}\n{}",
                    stage.daemon.log()
                );
                merged += deleted["merged_layers"].as_u64().unwrap();
            }
            // Of each disk those of the checkpoints, the one that is written, and one that takes the others.
            let there = overlays(&directory);
            assert!(there.len() <= 2 * (KEEP as usize + 2), "{there:?}");
        }
        assert!(merged >= 2 * 3, "{merged} layers of {rounds} rounds");
        guest.check("kill $(cat /writer)").unwrap();
        // What was there before any checkpoint is left alone but for what was written before the first one.
        assert!(original.len() <= std::fs::read(&image).unwrap().len());
        write(&mut guest, LAST, "last");
        let last = rounds - 1;
        for kept in [last - 1, last] {
            let called = format!("{version}-r{kept}");
            let mut restored = stage.restore(qemu, &name(kept), &called);
            for round in 0..rounds {
                let text = if round <= kept { format!("round {round}") } else { String::new() };
                assert_holds(&mut restored, place(round), &text);
            }
            assert_holds(&mut restored, AGAIN, &format!("again {kept}"));
            assert_holds(&mut restored, LAST, "");
            if kept == last {
                refuses_and_forces(&stage, &mut restored, &name(kept), &called);
                assert_holds(&mut restored, place(kept), &format!("round {kept}"));
            }
            assert_no_complaints(&mut restored);
            restored.shut_down();
        }
        for round in 0..rounds {
            assert_holds(&mut guest, place(round), &format!("round {round}"));
        }
        for (at, text) in [(AGAIN, format!("again {last}")), (LAST, "last".to_owned())] {
            assert_holds(&mut guest, at, &text);
        }
        assert_no_complaints(&mut guest);
        guest.shut_down();
    }
}

/// Asserts that a checkpoint is not deleted unawares on whose disks those of a restored guest stand.
fn refuses_and_forces(stage: &Stage, restored: &mut QemuGuest, name: &str, called: &str) {
    // Before that the checkpoint is in use.
    await_some(
        "it has all of its memory",
        PATIENCE,
        || {
            stage
                .daemon
                .log()
                .contains(&format!("all of its memory guest={called:?}"))
                .then_some(())
        },
        || stage.daemon.log(),
    );
    let refused = stage.daemon.command(&["checkpoint", "delete", name]).unwrap_err().to_string();
    assert!(refused.contains(called) && refused.contains("--force"), "{refused}");
    write(restored, HERE, "restored");
    let deleted = delete(stage, &[name, "--force"]);
    assert_eq!(deleted["checkpoints"].as_array().unwrap().len(), 1, "{deleted}");
    assert_holds(restored, HERE, "restored");
}
