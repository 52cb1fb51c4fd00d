//! Guests whose disks are checkpointed with their memory: the guest writes to overlays from then on, and one that is
//! restored has its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::path::{Path, PathBuf};
use std::process::Command;

use bindery_testkit::guest::{AioMode, Kit, Qemu, QemuGuest};
use fire::stage::Stage;
use fire::{assert_no_complaints, boot, raw_disk, uncached};

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
