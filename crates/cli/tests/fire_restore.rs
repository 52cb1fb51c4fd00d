//! Guests that are checkpointed while they run, and go on from their checkpoints, with every byte of their memory.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::time::Duration;

use bindery_testkit::guest::{Qemu, QemuGuest};
use fire::stage::Stage;
use fire::{Writer, amount, assert_no_complaints, await_guest, boot, figure};

const WRITERS: Duration = Duration::from_secs(180);

/// Something that only this guest's memory knows, and that no reboot brings back.
fn nonce(guest: &mut QemuGuest) -> String {
    guest.check("cat /tmp/nonce /proc/sys/kernel/random/boot_id").unwrap()
}

fn goes_on(machine: &str, kernel_arguments: &str) {
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
    goes_on("pc", "");
}

#[test]
fn q35_guests_go_on_from_their_checkpoints() {
    goes_on("q35", "");
}

#[test]
fn microvm_guests_go_on_from_their_checkpoints() {
    // It has one timer to find out the TSC's speed by. On a busy host that fails, and Linux waits for ever.
    goes_on("microvm,pcie=on,rtc=on", "tsc_early_khz=2000000");
}
