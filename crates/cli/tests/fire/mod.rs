//! What the tests under fire share: the programs as they are installed, guests that verify every
//! byte they wrote, and the daemon's own figures.

#![allow(dead_code, reason = "each test program uses its own part of this module")]

pub(crate) mod busy;
pub(crate) mod children;
pub(crate) mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bindery_testkit::bindery::{Bindery, Daemon};
use bindery_testkit::guest::{
    AioMode, CacheMode, Drive, GuestBuilder, GuestImage, ImageKind, Kit, Qemu, QemuGuest,
};
use bindery_testkit::skipped;
use rustix::fs::{major, minor};
use serde_json::Value;

/// How long a guest may take to boot, on a machine that does much else.
pub(crate) const BOOT: Duration = Duration::from_secs(120);

/// How long merging may take to do what a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The installed programs; says loudly when they were not built.
pub(crate) fn bindery() -> Option<Bindery> {
    Bindery::locate().map_err(|error| skipped!("{error}")).ok()
}

/// The installed programs and what guests boot from; says loudly what is missing.
pub(crate) fn bindery_and_kit() -> Option<(Bindery, Kit)> {
    let kit = Kit::locate().map_err(|error| skipped!("{error}")).ok()?;
    Some((bindery()?, kit))
}

/// A daemon that merges as fast as it may.
pub(crate) fn eager_daemon(bindery: &Bindery) -> Daemon {
    daemon_with(bindery, &[])
}

/// [`eager_daemon`] with more arguments.
pub(crate) fn daemon_with(bindery: &Bindery, more: &[&str]) -> Daemon {
    let arguments = [&["--period", "100ms", "--workers", "2"], more].concat();
    bindery.daemon(&arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// How often something is done: what the environment says, or `short`.
pub(crate) fn amount(variable: &str, short: u32) -> u32 {
    std::env::var(variable).map_or(short, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable}={text}: a number is expected"))
    })
}

/// Waits until `look` finds something.
///
/// # Panics
/// When that takes longer than `patience`, with what `explain` says.
pub(crate) fn await_some<T>(
    what: &str,
    patience: Duration,
    mut look: impl FnMut() -> Option<T>,
    explain: impl FnOnce() -> String,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {patience:?}\n{}", explain());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A guest's figures, as `bindery ps --json` has them; `None` when it is not listed.
pub(crate) fn guest_status(daemon: &Daemon, name: &str) -> Option<Value> {
    let guests = daemon.guests().ok()?;
    guests.as_array()?.iter().find(|guest| guest["name"] == name).cloned()
}

/// One figure of a guest.
///
/// # Panics
/// When it has no such figure: the field's name is part of what operators rely on.
pub(crate) fn figure(status: &Value, field: &str) -> u64 {
    status[field].as_u64().unwrap_or_else(|| panic!("no {field} in {status}"))
}

/// Waits until the guest called `name` is listed and `look` is content with it.
pub(crate) fn await_guest(
    daemon: &Daemon,
    name: &str,
    what: &str,
    mut look: impl FnMut(&Value) -> bool,
) -> Value {
    await_some(
        &format!("guest {name}: {what}"),
        PATIENCE,
        || guest_status(daemon, name).filter(|status| look(status)),
        || format!("{:?}\nthe daemon's log:\n{}", daemon.guests(), daemon.log()),
    )
}

/// An empty disk of the host.
pub(crate) fn raw_disk(directory: &Path, name: &str, mib: u64) -> PathBuf {
    let path = directory.join(name);
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    path
}

/// A disk that the host does not cache: its I/O is from and to guest memory.
pub(crate) fn uncached(path: PathBuf, format: &'static str, aio: AioMode) -> Drive {
    Drive { path, format, cache: CacheMode::None, aio }
}

/// A guest of two CPUs, under `daemon`.
pub(crate) fn managed_guest(
    daemon: &Daemon,
    kit: &Kit,
    image: &GuestImage,
    qemu: Qemu,
    name: &str,
) -> GuestBuilder {
    QemuGuest::builder(kit, image)
        .qemu(qemu)
        .cpus(2)
        .memory_mib(256)
        .launcher(daemon.launcher(name))
}

/// The image that guests boot.
pub(crate) fn server_image(kit: &Kit) -> GuestImage {
    GuestImage::of_kit(kit, ImageKind::Server).unwrap_or_else(|error| panic!("{error}"))
}

/// Starts a guest and waits until it runs commands.
///
/// QEMU with several TCG CPUs sometimes ends while it boots, on this assertion and on a slow host
/// mostly: its bug 1921, with or without memory managed. Then it is started again.
pub(crate) fn boot(builder: GuestBuilder) -> QemuGuest {
    const QEMU_BUG: &str = "iotlb_to_section";
    for _ in 0..3 {
        let mut guest = builder.clone().spawn().unwrap_or_else(|error| panic!("{error}"));
        match guest.wait_ready(BOOT) {
            Ok(_) => return guest,
            Err(error) if error.to_string().contains(QEMU_BUG) => eprintln!("again: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("QEMU ended three times on its own bug");
}

/// A writer in a guest's background that verifies what it wrote.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    name: String,
}

impl Writer {
    /// Starts it; `options` are those of `guest_agent writer`.
    pub(crate) fn start(guest: &mut QemuGuest, name: &str, options: &str) -> Self {
        guest
            .run_in_background(name, &format!("guest_agent writer {options}"))
            .unwrap_or_else(|error| panic!("{error}"));
        Self { name: name.to_owned() }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self, guest: &mut QemuGuest) -> bool {
        let looked = guest.run(&format!("test -e /tmp/{}.status", self.name));
        looked.unwrap_or_else(|error| panic!("{error}")).status == 0
    }

    /// Waits for its end, and for every byte to be what was written.
    pub(crate) fn finish(&self, guest: &mut QemuGuest, patience: Duration) {
        let name = &self.name;
        let deadline = Instant::now() + patience;
        while !self.has_ended(guest) {
            assert!(Instant::now() < deadline, "writer {name} has not ended within {patience:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
        let log = guest.check(&format!("cat /tmp/{name}.log")).unwrap();
        let status = guest.check(&format!("cat /tmp/{name}.status")).unwrap();
        assert_eq!(status.trim(), "0", "writer {name}: {log}");
        assert!(log.contains("\"pages_bad\":0"), "writer {name}: {log}");
    }
}

/// A guest's kernel has seen nothing wrong.
pub(crate) fn assert_no_complaints(guest: &mut QemuGuest) {
    let complaints = guest.kernel_complaints().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(complaints, Vec::<String>::new());
}

/// The descriptors of stores that a process holds, with the stores' devices and inodes, as in
/// `/proc/PID/maps`.
pub(crate) fn store_descriptors(pid: u32) -> BTreeMap<i32, (String, u64)> {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return BTreeMap::new();
    };
    let stores = descriptors.filter_map(|entry| {
        let path = entry.ok()?.path();
        let link = std::fs::read_link(&path).ok()?;
        let number = path.file_name()?.to_str()?.parse().ok()?;
        let is_store = link.to_string_lossy().contains("bindery-store");
        let file = std::fs::metadata(&path).ok()?;
        let device = format!("{:02x}:{:02x}", major(file.dev()), minor(file.dev()));
        is_store.then_some((number, (device, file.ino())))
    });
    stores.collect()
}

/// The stores' files that a process maps, by device and inode.
pub(crate) fn mapped_stores(pid: u32) -> BTreeSet<(String, u64)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let stores = maps.lines().filter(|line| line.contains("bindery-store"));
    let identity = |line: &str| {
        let mut fields = line.split_whitespace().skip(3);
        Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
    };
    stores.map(|line| identity(line).unwrap()).collect()
}
