//! Layers of a disk that are merged while the guest runs, and merges that are cut off.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::support::Bench;
use bindery_testkit::guest::Qemu as Version;
use bindery_vmm::{Overlay, Qemu, QemuSettings, Vmm as _};

/// Length of the disk, in MiB.
const DISK_MIB: usize = 32;

/// Writes to the guest's disk, as a guest does.
fn write(qemu: &mut Qemu, pattern: u8, (first_mib, mib): (usize, usize)) {
    let device = qemu.describe().unwrap().disks[0].device.clone();
    let command = format!("write -P {pattern} {first_mib}M {mib}M");
    let line = json!({ "command-line": format!("qemu-io {device} \"{command}\"") });
    // Its words go to QEMU's own output.
    qemu.qmp().execute("human-monitor-command", line).unwrap();
}

/// Asserts what the disk holds, by MiB. No QEMU has it.
fn assert_holds(bench: &Bench, top: &Path, expected: &[u8; DISK_MIB]) {
    let raw = bench.path("read.raw");
    let mut command = Command::new(bench.kit().qemu_img(Version::V10));
    command.args(["convert", "-f", "qcow2", "-O", "raw"]).arg(top).arg(&raw);
    command.env("LD_LIBRARY_PATH", bench.kit().library_path(Version::V10));
    let converted = command.output().unwrap();
    assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
    let bytes = std::fs::read(&raw).unwrap();
    let found: Vec<u8> = bytes.chunks(1 << 20).map(|mib| mib[0]).collect();
    assert_eq!(found, expected, "{}", top.display());
    assert!(bytes.chunks(1 << 20).all(|mib| mib.iter().all(|byte| *byte == mib[0])));
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
        std::fs::File::create(&disk)
            .and_then(|file| file.set_len((DISK_MIB as u64) << 20))
            .unwrap();
        let drive = format!("if=virtio,file={},format=raw", disk.display());
        let builder = bench.builder(version, "pc").args(["-drive", &drive]);
        let mut started = bench.spawn(builder, &format!("{version:?}"));
        started.wait_monitor();
        let mut qemu = started.connect(QemuSettings::default());
        let path = |number: u8| bench.path(&format!("{version:?}-{number}.qcow2"));
        let mut expected = [1; DISK_MIB];
        write(&mut qemu, 1, (0, DISK_MIB));
        for number in 1..=3 {
            let node = qemu.describe().unwrap().disks[0].node.clone();
            let overlay_node = format!("overlay{number}");
            let overlay = Overlay { node, path: path(number), overlay_node };
            qemu.snapshot_disks(&[overlay]).unwrap();
            let (first, count) = (usize::from(number), 16 - 4 * usize::from(number));
            write(&mut qemu, number + 1, (first, count));
            expected[first..first + count].fill(number + 1);
        }
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

        let chain = qemu.disk_chains().unwrap().into_iter().find(|chain| chain.images.len() > 1);
        let chain = chain.unwrap();
        let (base, top) = (chain.images[1].clone(), chain.images[2].clone());
        qemu.merge_layers(&chain, (&base, &top), &|| false).unwrap();
        assert_eq!(images(&mut qemu), [before[0].clone(), path(1), path(3)]);
        // An image that no disk has.
        let error = qemu.merge_layers(&chain, (&base, "/none"), &|| false).unwrap_err();
        assert!(error.to_string().contains("only node of an image"), "{error}");
        started.guest.shut_down();
        assert_holds(&bench, &path(3), &expected);
    }
}
