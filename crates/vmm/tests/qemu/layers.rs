//! Layers of a disk that are merged while the guest runs, and merges that are cut off.

use std::path::PathBuf;

use serde_json::json;

use crate::support::Bench;
use bindery_testkit::guest::Qemu as Version;
use bindery_vmm::{Overlay, Qemu, QemuSettings, Vmm as _};

/// Runs a command of `qemu-io` on the guest's disk, and returns what it prints.
fn disk_command(qemu: &mut Qemu, command: &str) -> String {
    let device = qemu.describe().unwrap().disks[0].device.clone();
    let line = json!({ "command-line": format!("qemu-io {device} \"{command}\"") });
    let printed = qemu.qmp().execute("human-monitor-command", line).unwrap();
    printed.as_str().unwrap().to_owned()
}

fn write(qemu: &mut Qemu, pattern: u8, place: &str) {
    let printed = disk_command(qemu, &format!("write -P {pattern} {place}"));
    assert!(printed.contains("wrote"), "{printed}");
}

/// Asserts what the disk holds at some places.
fn assert_holds(qemu: &mut Qemu, places: &[(u8, &str)]) {
    for (pattern, place) in places {
        let printed = disk_command(qemu, &format!("read -P {pattern} {place}"));
        assert!(printed.contains("read") && !printed.contains("failed"), "{place}: {printed}");
    }
}

fn images(qemu: &mut Qemu) -> Vec<PathBuf> {
    let chains = qemu.disk_chains().unwrap();
    let chain = chains.iter().find(|chain| chain.images.len() > 1).unwrap();
    chain.images.iter().map(PathBuf::from).collect()
}

#[test]
fn merges_that_are_cut_off_are_begun_again() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let disk = bench.path(&format!("{version:?}.raw"));
        std::fs::File::create(&disk).and_then(|file| file.set_len(32 << 20)).unwrap();
        let drive = format!("if=virtio,file={},format=raw", disk.display());
        let builder = bench.builder(version, "pc").args(["-drive", &drive]);
        let mut started = bench.spawn(builder, &format!("{version:?}"));
        started.wait_monitor();
        let mut qemu = started.connect(QemuSettings::default());
        let path = |number: u8| bench.path(&format!("{version:?}-{number}.qcow2"));
        write(&mut qemu, 1, "0 32M");
        for number in 1..=3 {
            let node = qemu.describe().unwrap().disks[0].node.clone();
            let overlay_node = format!("overlay{number}");
            let overlay = Overlay { node, path: path(number), overlay_node };
            qemu.snapshot_disks(&[overlay]).unwrap();
            write(&mut qemu, number + 1, &format!("{number}M {}M", 16 - 4 * number));
        }
        let holds =
            [(1, "0 1M"), (2, "1M 1M"), (3, "2M 1M"), (4, "3M 4M"), (3, "7M 3M"), (2, "10M 3M")];
        assert_holds(&mut qemu, &holds);
        let before = images(&mut qemu);
        assert_eq!(before, [disk, path(1), path(2), path(3)]);

        // Whoever began it is gone before it is done.
        let slow = json!({
            "job-id": "bindery-merge", "device": "overlay3", "base-node": "overlay1",
            "top-node": "overlay2", "speed": 65_536, "auto-dismiss": false,
        });
        qemu.qmp().execute("block-commit", slow).unwrap();
        drop(qemu);
        let mut qemu = started.connect(QemuSettings::default());
        assert!(qemu.settle_merge(&|| true).unwrap());
        assert!(!qemu.settle_merge(&|| true).unwrap());
        assert_eq!(images(&mut qemu), before);
        assert_holds(&mut qemu, &holds);

        let chain = qemu.disk_chains().unwrap().into_iter().find(|chain| chain.images.len() > 1);
        let chain = chain.unwrap();
        let (base, top) = (chain.images[1].clone(), chain.images[2].clone());
        qemu.merge_layers(&chain, (&base, &top), &|| false).unwrap();
        assert_eq!(images(&mut qemu), [before[0].clone(), path(1), path(3)]);
        assert_holds(&mut qemu, &holds);
        // An image that no disk has.
        let error = qemu.merge_layers(&chain, (&base, "/none"), &|| false).unwrap_err();
        assert!(error.to_string().contains("only node of an image"), "{error}");
        started.guest.shut_down();
    }
}
