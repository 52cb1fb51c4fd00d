//! Unmodified QEMUs under the preload library, with direct I/O in flight and merged all the time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use bindery_guest::Connection;
use bindery_space::Space;
use bindery_sys::process::{MemorySpan, read_memory};
use bindery_testkit::guest::{
    AioMode, CacheMode, Drive, GuestImage, ImageKind, Kit, Qemu as Version, QemuGuest,
};
use bindery_testkit::skipped;
use bindery_transfer::{GuestMemory, Limits, PlacedBlock, Request, Tracker, place_blocks, run};
use bindery_units::{HostAddress, PAGE_BYTES};
use bindery_vmm::{
    DeviceState, GuestDescription, MemoryBlock, Overlay, Pause, Purpose, Qemu, QemuSettings, Vmm,
    VmmError,
};
use serde_json::json;

use crate::daemon::{Daemon, listener};
use crate::image::Image;

const BOOT: Duration = Duration::from_secs(180);

const MEMORY_MIB: u32 = 256;

/// Guest-physical memory in which other things than RAM are seen.
const LEGACY: std::ops::Range<usize> = 0xa_0000..0x10_0000;

/// Images that are compared with a guest's memory, and those whose pauses are only timed.
const COMPARED: usize = 12;
const TIMED: usize = 10;

fn library() -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap();
    let mut above = program.ancestors().skip(1).take(2);
    let found = above.find_map(|above| {
        let library = above.join("libbindery_shim.so");
        library.exists().then_some(library)
    });
    if found.is_none() {
        skipped!("no preload library: run `cargo build -p bindery-shim`");
    }
    found
}

/// QEMU, and its memory in the last pause as others see it.
struct Looked {
    qemu: Qemu,
    blocks: Vec<PlacedBlock>,
    looks: bool,
    has_saved: bool,
    saved: PathBuf,
    oracle: Vec<Vec<u8>>,
    physical: Vec<u8>,
}

impl Looked {
    fn look(&mut self) {
        let pid = self.qemu.pid();
        let read = |block: &PlacedBlock| {
            let mut memory = vec![0; block.pages as usize * PAGE_BYTES];
            for at in (0..memory.len()).step_by(1 << 20) {
                let bytes = (memory.len() - at).min(1 << 20);
                let span = MemorySpan { address: block.address.plus(at), bytes };
                assert_eq!(read_memory(pid, &[span], &mut memory[at..]).unwrap(), bytes);
            }
            memory
        };
        self.oracle = self.blocks.iter().map(read).collect();
        let bytes = u64::from(MEMORY_MIB) << 20;
        let arguments = json!({ "val": 0, "size": bytes, "filename": self.saved });
        self.qemu.qmp().execute("pmemsave", arguments).unwrap();
        self.physical = std::fs::read(&self.saved).unwrap();
    }
}

impl Vmm for Looked {
    fn describe(&mut self) -> Result<GuestDescription, VmmError> {
        self.qemu.describe()
    }

    fn pause(&mut self) -> Result<Pause, VmmError> {
        self.has_saved = false;
        self.qemu.pause()
    }

    fn snapshot_disks(&mut self, overlays: &[Overlay]) -> Result<(), VmmError> {
        self.qemu.snapshot_disks(overlays)
    }

    fn save_device_state(&mut self, purpose: Purpose) -> Result<DeviceState, VmmError> {
        self.has_saved = true;
        self.qemu.save_device_state(purpose)
    }

    fn check_paused(&mut self) -> Result<(), VmmError> {
        if self.has_saved && self.looks {
            self.look();
        }
        self.qemu.check_paused()
    }

    fn resume(&mut self) -> Result<SystemTime, VmmError> {
        self.qemu.resume()
    }
}

fn placed(memory: &[MemoryBlock], daemon: &Daemon) -> Vec<PlacedBlock> {
    let mut regions = daemon.guest.regions();
    regions.sort_unstable_by_key(|region| region.pages.first);
    let offered: Vec<(HostAddress, u64)> = regions
        .iter()
        .map(|region| (region.address, u64::from(region.pages.count) * PAGE_BYTES as u64))
        .collect();
    let unplaced: Vec<MemoryBlock> =
        memory.iter().map(|block| MemoryBlock { host_address: None, ..block.clone() }).collect();
    let by_order =
        place_blocks(&unplaced, &offered).unwrap_or_else(|e| panic!("{e}: {offered:x?}"));
    // QEMU 10 says where they are.
    assert_eq!(place_blocks(memory, &offered).unwrap(), by_order);
    by_order
}

fn disk(directory: &Path) -> Drive {
    let path = directory.join("disk");
    let bytes: Vec<u8> =
        (0..48_u32 << 18).flat_map(|word| (word / 1024 * 7919).to_le_bytes()).collect();
    std::fs::write(&path, bytes).unwrap();
    Drive { path, format: "raw", cache: CacheMode::None, aio: AioMode::Threads }
}

fn capture(looked: &mut Looked, tracker: &mut Tracker, image: &mut Image) -> Option<Duration> {
    let blocks = looked.blocks.clone();
    let mut memory = GuestMemory::new(tracker, blocks).unwrap_or_else(|error| panic!("{error}"));
    let request = Request {
        overlays: &[],
        purpose: Purpose::Checkpoint,
        limits: Limits { pause_max: Duration::from_millis(20), ..Limits::default() },
        is_cancelled: &AtomicBool::new(false),
        progress: &|_| (),
    };
    let outcome = run(looked, &mut memory, image, &request).unwrap_or_else(|e| panic!("{e}"));
    let times = outcome.last.pause;
    println!(
        "{} rounds, {:?}; last: {} pages, {} zeros; stop {:?}, save {:?}, taking {:?}, reading {:?}, outage {:?}; \
         {} MB/s; state {} bytes",
        outcome.rounds.len(),
        outcome.ending,
        outcome.last.pages,
        outcome.last.zeros,
        times.stop,
        times.save,
        outcome.taking,
        outcome.reading,
        times.outage,
        outcome.bytes_per_second.unwrap_or(0) / 1_000_000,
        outcome.device_state.bytes.len(),
    );
    outcome.epoch.commit();
    if looked.looks {
        for (block, oracle) in looked.oracle.iter().enumerate() {
            let wrong = image.differences(block, oracle);
            assert!(wrong.is_empty(), "{}: pages {wrong:?}", looked.blocks[block].name);
        }
        let ram = looked.blocks.iter().position(|block| block.name == "pc.ram").unwrap();
        let (image, physical) = (&image.blocks[ram], &looked.physical);
        assert_eq!(image.len(), physical.len());
        assert!(image[..LEGACY.start] == physical[..LEGACY.start], "low memory differs");
        assert!(image[LEGACY.end..] == physical[LEGACY.end..], "memory differs");
    }
    times.outage
}

fn images_are_the_memory(version: Version) {
    if let Err(error) = Space::start() {
        return skipped!("{error}");
    }
    let Ok(kit) = Kit::locate().map_err(|error| skipped!("{error}")) else { return };
    let Some(library) = library() else { return };
    let image = GuestImage::of_kit(&kit, ImageKind::Server).unwrap_or_else(|e| panic!("{e}"));
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let sockets = tempfile::tempdir().unwrap();
    let (socket, monitor) = (sockets.path().join("daemon"), sockets.path().join("monitor"));
    let listener = listener(&socket);
    let mut guest = QemuGuest::builder(&kit, &image)
        .qemu(version)
        .memory_mib(MEMORY_MIB)
        .drive(disk(directory.path()))
        .args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())])
        .env("LD_PRELOAD", library)
        .env("BINDERY_SOCKET", &socket)
        .env("BINDERY_LOG_FILE", directory.path().join("log"))
        .spawn()
        .unwrap();
    let daemon = Daemon::take(&listener, Duration::from_millis(50));
    guest.wait_ready(BOOT).unwrap_or_else(|error| panic!("{error}"));
    daemon.wait_regions();
    guest.run_in_background("heart", "guest_agent heartbeat > /tmp/heart 2>&1").unwrap();
    let reads = "while :; do cat /dev/vda > /dev/null; echo 1 > /proc/sys/vm/drop_caches; done";
    guest.run_in_background("reads", reads).unwrap();

    let mut qemu = Qemu::connect(&monitor, QemuSettings::default()).unwrap();
    let description = qemu.describe().unwrap();
    let blocks = placed(&description.memory, &daemon);
    println!("{version:?}: {blocks:?}");
    let mut image = Image::new(&blocks);
    let saved = directory.path().join("pmemsave");
    let (oracle, physical) = (Vec::new(), Vec::new());
    let mut looked =
        Looked { qemu, blocks, looks: true, has_saved: false, saved, oracle, physical };
    let mut tracker = Tracker::begin(Arc::clone(&daemon.guest)).unwrap();
    let start = Instant::now();
    for _ in 0..COMPARED {
        capture(&mut looked, &mut tracker, &mut image);
        std::thread::sleep(Duration::from_millis(100));
    }
    println!(
        "{COMPARED} images in {:?}; merged, zero, breaks: {:?}",
        start.elapsed(),
        daemon.counts()
    );
    looked.looks = false;
    let mut outages: Vec<Duration> = Vec::new();
    for _ in 0..TIMED {
        outages.extend(capture(&mut looked, &mut tracker, &mut image));
        std::thread::sleep(Duration::from_millis(100));
    }
    outages.sort_unstable();
    println!(
        "{version:?}: STOP to RESUME {:?} at least, {:?} in the median",
        outages[0],
        outages[TIMED / 2]
    );
    assert!(daemon.counts().0 + daemon.counts().1 > 1000, "{:?}", daemon.counts());
    let heart = guest.check("tail -n 1 /tmp/heart").unwrap();
    assert!(heart.contains("bad=0"), "{heart}");
    assert_eq!(guest.kernel_complaints().unwrap(), Vec::<String>::new());
    drop(looked);
    guest.shut_down();
}

#[test]
fn images_of_qemu_7_are_its_memory() {
    images_are_the_memory(Version::V7);
}

#[test]
fn images_of_qemu_10_are_its_memory() {
    images_are_the_memory(Version::V10);
}
