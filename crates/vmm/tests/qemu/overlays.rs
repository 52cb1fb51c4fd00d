//! No overlay is lost, left behind or made where it would be of no use.

use std::time::Duration;

use serde_json::json;

use crate::support::{Bench, is_locked, signal};
use bindery_testkit::guest::Qemu as Version;
use bindery_vmm::qmp::{Event, Qmp, QmpError};
use bindery_vmm::{Overlay, Paused, Purpose, QemuSettings, Vmm, VmmError};

#[test]
fn disks_with_relative_paths_get_no_overlay() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let disk = bench.path(&format!("{version:?}.raw"));
        std::fs::File::create(&disk).and_then(|file| file.set_len(1 << 20)).unwrap();
        // From wherever QEMU works.
        let relative = format!("{}{}", "../".repeat(32), disk.display());
        let drive = format!("if=virtio,file={relative},format=raw");
        let builder = bench.builder(version, "pc").args(["-drive", &drive]);
        let mut started = bench.spawn(builder, &format!("{version:?}"));
        started.wait_monitor();
        let mut qemu = started.connect(QemuSettings::default());
        let path = bench.path(&format!("{version:?}.qcow2"));
        let node = qemu.describe().unwrap().disks[0].node.clone();
        let overlays = [Overlay { node, path: path.clone(), overlay_node: "overlay".to_owned() }];
        let prepared = Paused::begin(&mut qemu, &overlays).unwrap_err();
        let made_in_pause = qemu.snapshot_disks(&overlays).unwrap_err();
        for error in [prepared, made_in_pause] {
            assert!(matches!(&error, VmmError::Overlay { .. }), "{error}");
            assert!(error.to_string().contains("is relative"), "{error}");
        }
        assert!(!path.exists() && qemu.describe().unwrap().is_running);
        started.guest.shut_down();
    }
}

/// Leaves QEMU as a try to make an overlay leaves it that QEMU ended too late.
fn leave_job(bench: &Bench, qmp: &mut Qmp) {
    let path = bench.path("leftover");
    let create = json!({ "driver": "file", "filename": path, "size": 0 });
    let create = json!({ "job-id": "bindery-overlay", "options": create });
    qmp.execute("blockdev-create", create).unwrap();
    let is_over = |event: &Event| event.data["status"] == "concluded";
    qmp.wait_event(is_over, Duration::from_secs(30)).unwrap().unwrap();
    let add = json!({ "driver": "file", "filename": path, "node-name": "bindery-overlay-file" });
    qmp.execute("blockdev-add", add).unwrap();
}

#[test]
fn overlays_that_a_hanging_qemu_may_use_stay() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let disk = bench.path(&format!("{version:?}.raw"));
        std::fs::File::create(&disk).and_then(|file| file.set_len(1 << 20)).unwrap();
        let drive = format!("if=virtio,file={},format=raw", disk.display());
        let builder = bench.builder(version, "pc").args(["-drive", &drive]);
        let mut started = bench.spawn(builder, &format!("{version:?}"));
        started.wait_monitor();
        let limit = Duration::from_millis(500);
        let settings =
            QemuSettings { answer_limit: limit, save_limit: limit, ..Default::default() };
        let mut qemu = started.connect(settings);
        let pid = qemu.pid();
        let overlay = Overlay {
            node: qemu.describe().unwrap().disks[0].node.clone(),
            path: bench.path(&format!("{version:?}.qcow2")),
            overlay_node: "overlay".to_owned(),
        };
        let overlays = [overlay];
        leave_job(&bench, qemu.qmp());
        let mut paused = Paused::begin(&mut qemu, &overlays).unwrap_or_else(|e| panic!("{e}"));
        signal(pid, "STOP");
        let error = paused.save(Purpose::Checkpoint).unwrap_err();
        drop(paused);
        signal(pid, "CONT");
        let VmmError::Interrupted { error, overlays: kept, .. } = error else { panic!("{error}") };
        assert!(matches!(*error, VmmError::OverlaysInDoubt(QmpError::Silent { .. })), "{error}");
        assert_eq!(kept, [overlays[0].path.clone()]);
        // QEMU did all of it once it could. It forgets commands of a connection that is closed.
        let guest = (0..10).find_map(|_| qemu.describe().ok()).unwrap();
        assert_eq!(guest.disks[0].image, overlays[0].path.to_str().unwrap());
        assert!(guest.is_running && overlays[0].path.exists());
        started.guest.shut_down();
    }
}

#[test]
fn disks_are_let_go_of_in_a_hand_over_only() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let disk = bench.path(&format!("{version:?}.raw"));
        std::fs::File::create(&disk).and_then(|file| file.set_len(1 << 20)).unwrap();
        let drive = format!("if=virtio,file={},format=raw", disk.display());
        let builder = bench.builder(version, "pc").args(["-drive", &drive]);
        let mut started = bench.spawn(builder, &format!("{version:?}"));
        started.wait_monitor();
        let mut qemu = started.connect(QemuSettings::default());
        for (purpose, locked) in [(Purpose::Checkpoint, true), (Purpose::HandOver, false)] {
            let mut paused = Paused::begin(&mut qemu, &[]).unwrap();
            paused.save(purpose).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(is_locked(bench.kit(), &disk), locked, "{purpose:?}");
            paused.resume().unwrap_or_else(|error| panic!("{error}"));
            assert!(is_locked(bench.kit(), &disk), "{purpose:?}");
        }
        started.guest.shut_down();
    }
}
