//! Guests that something was plugged into while they ran.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use bindery_testkit::guest::{Qemu, QemuGuest};
use fire::stage::Stage;
use fire::{PATIENCE, boot};
use serde_json::{Value, json};

const PLUGGED_MIB: u64 = 128;

/// Brings plugged memory into use, as `udev` does elsewhere.
const USE_MEMORY: &str = "until ls /sys/devices/system/memory | grep -q memory32; do sleep 0.1; done; \
    for m in /sys/devices/system/memory/memory*/state; do \
    grep -q offline $m && echo online > $m; done; true";

/// Fills more than there was room for before.
const FILL: &str = "mkdir -p /mnt/more && mount -t tmpfs -o size=90% more /mnt/more && \
    dd if=/dev/urandom of=/mnt/more/x bs=1M count=180 2>/dev/null";

fn plug(guest: &mut QemuGuest, commands: &[(&str, Value)]) {
    for (command, arguments) in commands {
        let done = guest.qmp().unwrap().execute(command, arguments);
        done.unwrap_or_else(|error| panic!("{command}: {error}\n{}", guest.log()));
    }
}

fn memory(nodes: &Value) -> [(&'static str, Value); 2] {
    let mut backend =
        json!({ "qom-type": "memory-backend-ram", "id": "more", "size": PLUGGED_MIB << 20 });
    if nodes.is_array() {
        backend["host-nodes"] = nodes.clone();
        backend["policy"] = "bind".into();
    }
    let module = json!({ "driver": "pc-dimm", "id": "dimm", "memdev": "more" });
    [("object-add", backend), ("device_add", module)]
}

#[test]
fn memory_that_was_plugged_in_is_restored() {
    let Some(stage) = Stage::new() else { return };
    for (qemu, nodes) in [(Qemu::V7, Value::Null), (Qemu::V10, json!([0]))] {
        let name = format!("{qemu:?}").to_lowercase();
        let builder = stage.builder(qemu, "q35", &name).pluggable_mib(PLUGGED_MIB as u32);
        // A kernel that may have memory above 4 GiB sets 64 MiB aside.
        let mut guest = boot(builder.memory_mib(320));
        plug(&mut guest, &memory(&nodes));
        guest.check(USE_MEMORY).unwrap();
        guest.check(FILL).unwrap();
        let sum = guest.check("md5sum < /mnt/more/x; grep MemTotal /proc/meminfo").unwrap();
        let made = stage.checkpoint(&name, "n");
        eprintln!("{name}: {made}");
        guest.shut_down();
        let mut guest = stage.restore(qemu, &format!("{name}@n"), &format!("{name}-2"));
        let now = guest.check("md5sum < /mnt/more/x; grep MemTotal /proc/meminfo").unwrap();
        assert_eq!(now, sum);
        // It is in the command line by now, and was not plugged in.
        stage.checkpoint(&format!("{name}-2"), "n");
        guest.shut_down();
        let mut guest = stage.restore(qemu, &format!("{name}-2@n"), &format!("{name}-3"));
        assert_eq!(guest.check("md5sum < /mnt/more/x; grep MemTotal /proc/meminfo").unwrap(), sum);
        guest.shut_down();
    }
}

#[test]
fn a_device_that_was_plugged_in_is_named_and_refused() {
    let Some(stage) = Stage::new() else { return };
    for qemu in Qemu::ALL {
        let name = format!("{qemu:?}").to_lowercase();
        let mut guest = boot(stage.builder(qemu, "pc", &name));
        let device = json!({ "driver": "virtio-rng-pci", "id": "dice" });
        plug(&mut guest, &[("device_add", device)]);
        let words = ["checkpoint", "create", &name, "--name", "n", "--without-disks"];
        let refused = stage.try_command(qemu, &words);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{said}");
        assert!(said.contains("dice (virtio-rng-pci) was plugged in"), "{said}");
        plug(&mut guest, &[("device_del", json!({ "id": "dice" }))]);
        guest.qmp().unwrap().wait_event("DEVICE_DELETED", PATIENCE).unwrap();
        stage.checkpoint(&name, "n");
        guest.shut_down();
    }
}
