//! QEMU's own operations on the memory of a guest that is merged: migration, snapshots, shared
//! memory, post-copy. They work, with all of the guest's content; where QEMU watches its memory
//! itself, the shim steps aside and says so.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bindery_testkit::bindery::Daemon;
use bindery_testkit::guest::{
    AioMode, CacheMode, Drive, GuestBuilder, Kit, MemoryBackend, Qemu, QemuGuest,
};
use fire::{
    BOOT, PATIENCE, Writer, assert_no_complaints, await_guest, await_some, bindery_and_kit, boot,
    eager_daemon, figure, guest_status, managed_guest, server_image,
};
use serde_json::{Value, json};

const MIGRATION: Duration = Duration::from_secs(180);
const WRITERS: Duration = Duration::from_secs(180);

/// Two guests that may share pages, and what they boot from.
struct Stage {
    daemon: Daemon,
    kit: Kit,
    directory: tempfile::TempDir,
}

impl Stage {
    fn new() -> Option<Self> {
        let (bindery, kit) = bindery_and_kit()?;
        let directory = tempfile::tempdir().unwrap();
        Some(Self { daemon: eager_daemon(&bindery), kit, directory })
    }

    fn builder(&self, name: &str, qemu: Qemu) -> GuestBuilder {
        managed_guest(&self.daemon, &self.kit, &server_image(&self.kit), qemu, name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn qcow2(&self, name: &str) -> Drive {
        let path = self.path(name);
        let made = std::process::Command::new(self.kit.qemu_img(Qemu::V7))
            .env("LD_LIBRARY_PATH", self.kit.library_path(Qemu::V7))
            .args(["create", "-q", "-f", "qcow2"])
            .arg(&path)
            .arg("1G")
            .status();
        assert!(made.unwrap().success());
        Drive { path, format: "qcow2", cache: CacheMode::None, aio: AioMode::Threads }
    }

    fn await_merged(&self, name: &str) -> Value {
        await_guest(&self.daemon, name, "its pages are merged", |status| {
            figure(status, "pages_merged") > 0 && figure(status, "zero_pages") > 0
        })
    }
}

/// A destination that is waiting for a migration.
fn await_monitor(guest: &mut QemuGuest) {
    let deadline = Instant::now() + BOOT;
    while guest.qmp().is_err() {
        assert!(guest.is_running() && Instant::now() < deadline, "{}", guest.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn set_capability(guest: &mut QemuGuest, capability: &str) {
    let state = json!([{ "capability": capability, "state": true }]);
    let arguments = json!({ "capabilities": state });
    let set = guest.qmp().unwrap().execute("migrate-set-capabilities", &arguments);
    set.unwrap_or_else(|error| panic!("{capability}: {error}\n{}", guest.log()));
}

/// Something to verify afterwards, in memory that is merged and memory that is not.
fn put_marks(guest: &mut QemuGuest) -> String {
    guest.check("seq 1 200000 > /tmp/mark; cat /usr/bin/* > /tmp/copy 2>/dev/null; sync").unwrap();
    guest.check("cat /tmp/mark /tmp/copy | md5sum").unwrap()
}

fn marks(guest: &mut QemuGuest) -> String {
    guest.check("cat /tmp/mark /tmp/copy | md5sum").unwrap()
}

/// As libvirt starts it: no other program, and no thread that leaves what it shares by unshare(2).
#[test]
fn a_guest_in_qemus_sandbox_is_merged() {
    let Some(stage) = Stage::new() else { return };
    let sandbox = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
    for qemu in Qemu::ALL {
        let name = format!("{qemu:?}-sandboxed");
        let mut guest = boot(stage.builder(&name, qemu).args(["-sandbox", sandbox]));
        let expected = put_marks(&mut guest);
        stage.await_merged(&name);
        assert_eq!(marks(&mut guest), expected);
        assert_no_complaints(&mut guest);
        let ours = descriptors_of_ours(&guest);
        assert!(ours.is_empty(), "{ours:?}");
        guest.shut_down();
    }
}

/// Plugs in memory that is bound to a node, as libvirt does, and has the guest use it.
fn plug_in_bound_memory(guest: &mut QemuGuest, mib: u32) {
    let memory = json!({ "qom-type": "memory-backend-ram", "id": "plugged", "size": u64::from(mib) << 20,
        "host-nodes": [0], "policy": "bind" });
    let dimm = json!({ "driver": "pc-dimm", "id": "dimm", "memdev": "plugged" });
    for (command, arguments) in [("object-add", memory), ("device_add", dimm)] {
        let done = guest.qmp().unwrap().execute(command, &arguments);
        done.unwrap_or_else(|error| panic!("{command}: {error}\n{}", guest.log()));
    }
    let use_it = "until grep -qs . /sys/firmware/memmap/0/type && ls /sys/devices/system/memory | \
        grep -q memory32; do sleep 0.1; done; \
        for m in /sys/devices/system/memory/memory*/state; do \
        grep -q offline $m && echo online > $m; done; true";
    guest.check(use_it).unwrap();
}

/// Mapping of a VMM: where it begins and ends, whether it is a store's, and whether it is bound to a node.
struct VmmMapping {
    range: std::ops::Range<u64>,
    is_store: bool,
    is_bound: bool,
}

fn mappings(guest: &QemuGuest) -> Vec<VmmMapping> {
    let read =
        |file| std::fs::read_to_string(format!("/proc/{}/{file}", guest.pid().unwrap())).unwrap();
    // Both of one moment: nothing is mapped in between.
    let (maps, numa) = await_some(
        "mappings stay as they are",
        PATIENCE,
        || {
            let (maps, numa) = (read("maps"), read("numa_maps"));
            (maps == read("maps")).then_some((maps, numa))
        },
        String::new,
    );
    let bound: BTreeSet<&str> = numa
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(start, rest)| (rest.split(' ').next()? == "bind:0").then_some(start))
        .collect();
    let parse = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        rest.starts_with("rw").then_some(VmmMapping {
            range: number(start)?..number(end)?,
            is_store: rest.contains("bindery-store"),
            is_bound: bound.contains(start),
        })
    };
    maps.lines().filter_map(parse).collect()
}

/// Returns where the memory of a guest's first pc-dimm begins in the VMM.
fn plugged_memory(guest: &mut QemuGuest) -> u64 {
    let monitor = guest.qmp().unwrap();
    let devices = monitor.execute("query-memory-devices", &json!({})).unwrap();
    let physical = devices[0]["data"]["addr"].as_u64().unwrap();
    let said = monitor.human(&format!("gpa2hva {physical:#x}")).unwrap();
    let address = said.trim().rsplit("0x").next().unwrap();
    u64::from_str_radix(address, 16).unwrap_or_else(|error| panic!("{said}: {error}"))
}

#[test]
fn memory_that_is_plugged_in_is_merged_and_comes_back_on_its_nodes() {
    let Some(stage) = Stage::new() else { return };
    let mib = 256;
    for qemu in Qemu::ALL {
        let name = format!("{qemu:?}-plugged");
        // A kernel that may have memory above 4 GiB sets 64 MiB aside.
        let builder = stage.builder(&name, qemu).memory_mib(384).pluggable_mib(mib);
        let mut guest = boot(builder);
        stage.await_merged(&name);
        let before = figure(&guest_status(&stage.daemon, &name).unwrap(), "ram_bytes");
        plug_in_bound_memory(&mut guest, mib);
        await_guest(&stage.daemon, &name, "it has more memory", |status| {
            figure(status, "ram_bytes") == before + (u64::from(mib) << 20)
        });
        // More than there was room for before, and the same four times.
        guest
            .check(
                "mkdir -p /mnt/more && mount -t tmpfs -o size=90% more /mnt/more && \
                 dd if=/dev/urandom of=/mnt/more/1 bs=1M count=60 2>/dev/null && \
                 for n in 2 3 4 5; do cat /mnt/more/1 > /mnt/more/$n; done",
            )
            .unwrap();
        let expected = guest.check("cat /mnt/more/* | md5sum").unwrap();
        await_guest(&stage.daemon, &name, "copies are merged", |status| {
            figure(status, "pages_merged") > 20_000
        });
        assert_eq!(guest.check("cat /mnt/more/* | md5sum").unwrap(), expected);
        // Written anew, all of them come back.
        guest.check("cat /mnt/more/1 | dd of=/mnt/more/2 conv=notrunc bs=1M 2>/dev/null").unwrap();
        guest.check("tr a b < /mnt/more/1 | dd of=/mnt/more/3 conv=notrunc bs=1M").unwrap();
        let start = plugged_memory(&mut guest);
        let all = start..start + (u64::from(mib) << 20);
        let (store, own): (Vec<_>, Vec<_>) = mappings(&guest)
            .into_iter()
            .filter(|one| all.start < one.range.end && one.range.start < all.end)
            .partition(|one| one.is_store);
        println!("{name}: {} mappings, {} of a store", store.len() + own.len(), store.len());
        assert!(!store.is_empty() && own.len() > 1, "nothing is merged");
        for one in &own {
            assert!(one.is_bound, "{:x?} is not bound", one.range);
        }
        assert_no_complaints(&mut guest);
        guest.shut_down();
    }
}

/// Descriptors that the library needs, in a VMM that has none of these kinds itself.
fn descriptors_of_ours(guest: &QemuGuest) -> Vec<PathBuf> {
    let directory = PathBuf::from(format!("/proc/{}/fd", guest.pid().unwrap()));
    let links = std::fs::read_dir(directory).unwrap().flatten();
    let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let is_ours = |link: &PathBuf| {
        ["userfaultfd", "pagemap", "memfd:"]
            .iter()
            .any(|kind| link.to_string_lossy().contains(kind))
    };
    links.filter(is_ours).collect()
}

#[test]
fn a_merged_guest_migrates_to_a_managed_one() {
    let Some(stage) = Stage::new() else { return };
    for qemu in Qemu::ALL {
        let (from, to) = (format!("{qemu:?}-from"), format!("{qemu:?}-to"));
        let mut source = boot(stage.builder(&from, qemu));
        let expected = put_marks(&mut source);
        stage.await_merged(&from);
        let writer = Writer::start(&mut source, "writer", "--dir /tmp/w --rounds 3 --files 4");
        let uri = format!("unix:{}", stage.path(&format!("{qemu:?}.sock")).display());
        let mut destination = stage.builder(&to, qemu).incoming(&uri).spawn().unwrap();
        await_monitor(&mut destination);
        let migrated = source.qmp().unwrap().migrate(&uri, MIGRATION);
        migrated.unwrap_or_else(|error| panic!("{error}\n{}", source.log()));
        // What was sent is what the destination has, while the source still stands.
        assert_eq!(marks(&mut destination), expected);
        stage.await_merged(&to);
        source.shut_down();
        writer.finish(&mut destination, WRITERS);
        assert_eq!(marks(&mut destination), expected);
        assert_no_complaints(&mut destination);
    }
}

#[test]
fn a_merged_guest_is_saved_and_brought_back() {
    let Some(stage) = Stage::new() else { return };
    let disk = stage.qcow2("disk.qcow2");
    let mut guest = boot(stage.builder("saved", Qemu::V10).drive(disk));
    let expected = put_marks(&mut guest);
    stage.await_merged("saved");
    let writer = Writer::start(&mut guest, "writer", "--dir /tmp/w --rounds 4 --files 4");
    guest.qmp().unwrap().savevm("one").unwrap();
    guest.check("rm /tmp/copy; echo lost > /tmp/mark").unwrap();
    stage.await_merged("saved");
    guest.qmp().unwrap().loadvm("one").unwrap();
    assert_eq!(marks(&mut guest), expected);
    writer.finish(&mut guest, WRITERS);

    // The same by way of a file, which is how libvirt saves guests.
    let image = stage.path("image");
    guest.qmp().unwrap().execute("stop", &json!({})).unwrap();
    let uri = format!("exec:cat > {}", image.display());
    guest.qmp().unwrap().migrate(&uri, MIGRATION).unwrap();
    guest.shut_down();
    let again = format!("exec:cat {}", image.display());
    let disk = Drive { path: stage.path("disk.qcow2"), ..stage.qcow2("unused.qcow2") };
    let mut guest = stage.builder("again", Qemu::V10).drive(disk).incoming(again).spawn().unwrap();
    await_monitor(&mut guest);
    fire::await_some(
        "the image is read",
        MIGRATION,
        || {
            let answer = guest.qmp().ok()?.execute("query-migrate", &json!({})).ok()?;
            (answer["status"] == "completed").then_some(())
        },
        String::new,
    );
    guest.qmp().unwrap().execute("cont", &json!({})).unwrap();
    assert_eq!(marks(&mut guest), expected);
    stage.await_merged("again");
    assert_eq!(marks(&mut guest), expected);
    assert_no_complaints(&mut guest);
}

/// What others may look at is not merged; the rest of the guest's memory (video RAM, firmware) is.
#[test]
fn guests_in_shared_memory_are_left_alone() {
    let Some(stage) = Stage::new() else { return };
    for qemu in Qemu::ALL {
        let name = format!("{qemu:?}");
        let builder = stage.builder(&name, qemu).memory_backend(MemoryBackend::MemfdShared);
        let mut guest = boot(builder);
        let expected = put_marks(&mut guest);
        let status = await_guest(&stage.daemon, &name, "it is known", |_| true);
        assert!(figure(&status, "ram_bytes") < 256 << 20, "{status}");
        assert!(guest.log().contains("is shared memory (memfd)"), "{}", guest.log());
        let writer = Writer::start(&mut guest, "writer", "--dir /tmp/w --rounds 2 --files 4");
        writer.finish(&mut guest, WRITERS);
        assert_eq!(marks(&mut guest), expected);
        assert_no_complaints(&mut guest);
    }
}

/// Has QEMU save a guest in the background, which it does by watching the guest's memory itself.
fn snapshot_in_background(guest: &mut QemuGuest, to: &Path) {
    set_capability(guest, "background-snapshot");
    let uri = format!("exec:cat > {}", to.display());
    let saved = guest.qmp().unwrap().migrate(&uri, MIGRATION);
    saved.unwrap_or_else(|error| panic!("{error}\n{}", guest.log()));
    assert!(std::fs::metadata(to).unwrap().len() > 16 << 20);
}

#[test]
fn a_background_snapshot_has_the_shim_step_aside() {
    let Some(stage) = Stage::new() else { return };
    let mut guest = boot(stage.builder("watched", Qemu::V10));
    let mut other = boot(stage.builder("other", Qemu::V10));
    let expected = put_marks(&mut guest);
    stage.await_merged("watched");
    let writer = Writer::start(&mut guest, "writer", "--dir /tmp/w --rounds 3 --files 4");
    snapshot_in_background(&mut guest, &stage.path("image"));
    assert!(guest.log().contains("stepped aside"), "{}", guest.log());
    writer.finish(&mut guest, WRITERS);
    assert_eq!(marks(&mut guest), expected);
    assert_no_complaints(&mut guest);

    // An operator may have a guest step aside beforehand.
    stage.await_merged("other");
    let expected = put_marks(&mut other);
    stage.daemon.command(&["unmanage", "other"]).unwrap();
    assert!(guest_status(&stage.daemon, "other").is_none(), "{:?}", stage.daemon.guests());
    snapshot_in_background(&mut other, &stage.path("image-2"));
    assert_eq!(marks(&mut other), expected);
    assert_no_complaints(&mut other);
}

#[test]
fn post_copy_has_the_destination_step_aside() {
    let Some(stage) = Stage::new() else { return };
    let mut source = boot(stage.builder("from", Qemu::V10));
    let expected = put_marks(&mut source);
    stage.await_merged("from");
    let writer = Writer::start(&mut source, "writer", "--dir /tmp/w --rounds 4 --files 4");
    let uri = format!("unix:{}", stage.path("migrate.sock").display());
    let mut destination = stage.builder("to", Qemu::V10).incoming("defer").spawn().unwrap();
    await_monitor(&mut destination);
    set_capability(&mut destination, "postcopy-ram");
    set_capability(&mut source, "postcopy-ram");
    destination.qmp().unwrap().execute("migrate-incoming", &json!({ "uri": uri })).unwrap();
    let source_qmp = source.qmp().unwrap();
    source_qmp.execute("migrate", &json!({ "uri": uri })).unwrap();
    source_qmp.execute("migrate-start-postcopy", &json!({})).unwrap();
    let state = fire::await_some(
        "the migration ends",
        MIGRATION,
        || {
            let answer = source.qmp().ok()?.execute("query-migrate", &json!({})).ok()?;
            let state = answer["status"].as_str()?.to_owned();
            ["completed", "failed", "postcopy-paused"].contains(&state.as_str()).then_some(state)
        },
        String::new,
    );
    assert_eq!(state, "completed", "{}\n{}", source.log(), destination.log());
    assert!(destination.log().contains("stepped aside"), "{}", destination.log());
    source.shut_down();
    writer.finish(&mut destination, WRITERS);
    assert_eq!(marks(&mut destination), expected);
    assert_no_complaints(&mut destination);
}
