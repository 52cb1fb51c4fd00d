//! Boots guests of both images under both QEMUs and uses everything that other tests rely on.

use std::time::Duration;

use bindery_testkit::guest::{
    AioMode, CacheMode, Drive, GuestError, GuestImage, ImageKind, Kit, MemoryBackend, Qemu,
    QemuGuest,
};
use bindery_testkit::skipped;

const BOOT: Duration = Duration::from_secs(120);

fn kit() -> Option<Kit> {
    Kit::locate().map_err(|error| skipped!("{error}")).ok()
}

fn image(kit: &Kit, kind: ImageKind) -> GuestImage {
    GuestImage::of_kit(kit, kind).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn both_images_boot_under_both_qemus_and_verify_what_they_write() {
    let Some(kit) = kit() else { return };
    for (version, kind) in [(Qemu::V7, ImageKind::Server), (Qemu::V10, ImageKind::Database)] {
        let image = image(&kit, kind);
        let disk = tempfile::NamedTempFile::new().unwrap();
        disk.as_file().set_len(64 << 20).unwrap();
        let drive = Drive {
            path: disk.path().to_path_buf(),
            format: "raw",
            cache: CacheMode::None,
            aio: AioMode::IoUring,
        };
        let mut guest = QemuGuest::builder(&kit, &image)
            .qemu(version)
            .cpus(2)
            .drive(drive)
            .balloon(true)
            .spawn()
            .unwrap();
        let boot = guest.wait_ready(BOOT).unwrap_or_else(|error| panic!("{error}"));
        println!("{version:?} booted {kind:?} in {:.1} s", boot.as_secs_f64());
        assert_eq!(guest.check("nproc").unwrap(), "2\n");
        guest.check("mke2fs -q /dev/vda && mount /dev/vda /mnt").unwrap();
        for place in ["--dir /tmp/w", "--dir /mnt/w", "--dir /mnt/d --direct 1"] {
            let verified = guest.check(&format!("guest_agent writer {place} --rounds 2")).unwrap();
            assert!(verified.contains("\"pages_bad\":0"), "{verified}");
        }
        guest.qmp().unwrap().balloon(192 << 20).unwrap();
        guest.check("umount /mnt").unwrap();
        assert_eq!(guest.kernel_complaints().unwrap(), Vec::<String>::new());
        guest.shut_down();
    }
}

#[test]
fn a_corrupted_file_is_noticed() {
    let Some(kit) = kit() else { return };
    let image = image(&kit, ImageKind::Server);
    let mut guest = QemuGuest::builder(&kit, &image).spawn().unwrap();
    guest.wait_ready(BOOT).unwrap_or_else(|error| panic!("{error}"));
    guest
        .run_in_background("writer", "guest_agent writer --dir /tmp/w --rounds 100000 --files 1")
        .unwrap();
    let vandal = "sleep 1; for i in $(seq 100); do \
                  printf x | dd of=/tmp/w/writer-1-0 conv=notrunc bs=1 seek=70000 2>/dev/null; \
                  grep -q 'page 17 byte' /tmp/writer.log && break; sleep 0.1; done";
    guest.check(vandal).unwrap();
    let log = guest.check("cat /tmp/writer.log").unwrap();
    assert!(log.contains("page 17 byte 368"), "{log}");
}

#[test]
fn memfd_guests_migrate_and_save_themselves() {
    let Some(kit) = kit() else { return };
    let image = image(&kit, ImageKind::Server);
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk.qcow2");
    let made = std::process::Command::new(kit.qemu_img(Qemu::V7))
        .env("LD_LIBRARY_PATH", kit.library_path(Qemu::V7))
        .args(["create", "-q", "-f", "qcow2"])
        .arg(&disk)
        .arg("1G")
        .status()
        .unwrap();
    assert!(made.success());
    let builder = || {
        QemuGuest::builder(&kit, &image).memory_backend(MemoryBackend::MemfdShared).drive(Drive {
            path: disk.clone(),
            format: "qcow2",
            cache: CacheMode::Writeback,
            aio: AioMode::Threads,
        })
    };
    let mut source = builder().spawn().unwrap();
    source.wait_ready(BOOT).unwrap_or_else(|error| panic!("{error}"));
    source.check("echo kept > /tmp/mark").unwrap();
    source.qmp().unwrap().savevm("one").unwrap();
    source.check("echo lost > /tmp/mark").unwrap();
    source.qmp().unwrap().loadvm("one").unwrap();
    assert_eq!(source.check("cat /tmp/mark").unwrap(), "kept\n");

    let uri = format!("unix:{}", directory.path().join("migrate.sock").display());
    let mut destination = builder().incoming(&uri).spawn().unwrap();
    // The destination listens once its monitor answers.
    let deadline = std::time::Instant::now() + BOOT;
    while destination.qmp().is_err() {
        assert!(destination.is_running() && std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    source.qmp().unwrap().migrate(&uri, Duration::from_secs(120)).unwrap();
    source.shut_down();
    assert_eq!(destination.check("cat /tmp/mark").unwrap(), "kept\n");
    assert_eq!(destination.kernel_complaints().unwrap(), Vec::<String>::new());
}

#[test]
fn a_guest_that_cannot_boot_says_why() {
    let Some(kit) = kit() else { return };
    let broken = GuestImage::from_files("/dev/null".into(), "/dev/null".into());
    let mut guest = QemuGuest::builder(&kit, &broken).spawn().unwrap();
    let error = guest.wait_ready(Duration::from_secs(30)).unwrap_err();
    let GuestError::Ended { words, .. } = error else { panic!("{error}") };
    assert!(words.contains("qemu"), "{words}");
}

#[test]
fn the_probe_measures() {
    let Some(kit) = kit() else { return };
    let image = image(&kit, ImageKind::Server);
    let mut guest = QemuGuest::builder(&kit, &image).spawn().unwrap();
    guest.wait_ready(BOOT).unwrap_or_else(|error| panic!("{error}"));
    let line = guest.check("guest_agent probe --seconds 0.5 --samples 200").unwrap();
    println!("{line}");
    let found: serde_json::Value = serde_json::from_str(&line).unwrap();
    for name in ["cpu_loops_per_s", "pages_written_per_s", "timer_late_p999_us"] {
        assert!(found[name].as_f64().unwrap() > 0.0, "{name} in {line}");
    }
}
