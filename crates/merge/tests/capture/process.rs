//! This process is the guest: threads write, discard and read from a disk past the page cache, while its pages are
//! merged over its own sockets, and a pause stops them as a VMM's does.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bindery_space::Space;
use bindery_space::agent::{Agent, AgentConfig};
use bindery_sys::mapping::Mapping;
use bindery_sys::process::{MemorySpan, read_memory};
use bindery_testkit::guest_memory::GuestMemory;
use bindery_transfer::{
    GuestMemory as Captured, Limits, Memory, PlacedBlock, Request, Tracker, TransferError, run,
};
use bindery_units::{HostAddress, PAGE_BYTES};
use bindery_vmm::{
    DeviceState, GuestDescription, Overlay, Pause, Purpose, SaveMethod, Vmm, VmmError,
};

use crate::daemon::{Daemon, listener};
use crate::image::Image;

/// Pages of the large block, of which those from `MANAGED` on are not managed.
const PAGES: usize = 12 * 1024;
const MANAGED: usize = PAGES - 40;

/// Pages of the small block, which nobody manages.
const SMALL: usize = 9;

/// Writing threads. The last one has a device read into its pages.
const WRITERS: usize = 3;

/// `O_DIRECT` of open(2) on x86-64.
const O_DIRECT: i32 = 0o40_000;

/// Stops and lets go of all that writes, once what is under way has ended.
#[derive(Default)]
pub(crate) struct Gate {
    lock: RwLock<()>,
    is_shut: AtomicBool,
    pub(crate) ends: AtomicBool,
}

impl Gate {
    /// Does a step, unless the guest is paused. Returns false at the end.
    pub(crate) fn pass(&self, step: impl FnOnce()) -> bool {
        if self.ends.load(Ordering::SeqCst) {
            return false;
        }
        let passing = self.lock.read().unwrap();
        if !self.is_shut.load(Ordering::SeqCst) {
            step();
            return true;
        }
        drop(passing);
        thread::sleep(Duration::from_micros(100));
        true
    }

    fn shut(&self) {
        let _nobody_passes = self.lock.write().unwrap();
        self.is_shut.store(true, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        self.is_shut.store(false, Ordering::SeqCst);
    }
}

pub(crate) struct Process {
    pub(crate) gate: Arc<Gate>,
    pub(crate) blocks: Vec<PlacedBlock>,
    pub(crate) has_saved: bool,
    pub(crate) oracle: Vec<Vec<u8>>,
}

impl Process {
    fn look(&mut self) {
        let read = |block: &PlacedBlock| {
            let bytes = block.pages as usize * PAGE_BYTES;
            let mut memory = vec![0; bytes];
            let mut done = 0;
            while done < bytes {
                let bytes = (bytes - done).min(1 << 20);
                let span = MemorySpan { address: block.address.plus(done), bytes };
                let pid = std::process::id().cast_signed();
                done += read_memory(pid, &[span], &mut memory[done..]).unwrap();
            }
            memory
        };
        self.oracle = self.blocks.iter().map(read).collect();
    }
}

impl Vmm for Process {
    fn describe(&mut self) -> Result<GuestDescription, VmmError> {
        Ok(GuestDescription {
            name: None,
            machine: "process".to_owned(),
            version: "1".to_owned(),
            vcpus: WRITERS,
            is_running: true,
            memory: Vec::new(),
            disks: Vec::new(),
            plugged_arguments: Vec::new(),
            obstacles: Vec::new(),
        })
    }

    fn pause(&mut self) -> Result<Pause, VmmError> {
        self.has_saved = false;
        self.gate.shut();
        Ok(Pause::Stopped { at: SystemTime::now() })
    }

    fn snapshot_disks(&mut self, _: &[Overlay]) -> Result<(), VmmError> {
        Ok(())
    }

    fn save_device_state(&mut self, _: Purpose) -> Result<DeviceState, VmmError> {
        self.has_saved = true;
        let (machine, version) = ("process".to_owned(), "1".to_owned());
        Ok(DeviceState { machine, version, method: SaveMethod::Callback, bytes: Vec::new() })
    }

    fn check_paused(&mut self) -> Result<(), VmmError> {
        if self.has_saved {
            self.look();
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<SystemTime, VmmError> {
        self.gate.open();
        Ok(SystemTime::now())
    }
}

/// Numbers that look random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) const fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Few contents, so that pages are merged; some are a thread's own.
fn content(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 0,
        1 | 2 => 1 + random.below(50) as u64,
        _ => 1 << 40 | random.below(1 << 30) as u64,
    }
}

/// Writes, discards and reads into the pages of `part`, of which the first `managed` are managed.
fn work(
    gate: &Gate,
    space: &Space,
    part: &mut [u8],
    managed: usize,
    disk: Option<&File>,
    seed: u64,
) {
    let mut random = Random(seed);
    let pages = part.len() / PAGE_BYTES;
    let step = |part: &mut [u8], random: &mut Random| {
        let page = random.below(pages);
        let bytes = &mut part[page * PAGE_BYTES..(page + 1) * PAGE_BYTES];
        match (random.below(30), disk) {
            (0, _) if page < managed => {
                let address = HostAddress(bytes.as_ptr().addr());
                space.discard(address, PAGE_BYTES, MADV_DONTNEED).unwrap();
            }
            (1..8, Some(disk)) => {
                let count = (pages - page).min(8);
                let bytes = &mut part[page * PAGE_BYTES..(page + count) * PAGE_BYTES];
                let at = random.below(DISK_PAGES - count) * PAGE_BYTES;
                disk.read_exact_at(bytes, at as u64).unwrap();
            }
            (8..12, _) => bytes[random.below(PAGE_BYTES)] ^= 0x5a,
            _ => {
                let word = content(random).to_le_bytes();
                bytes.as_chunks_mut::<8>().0.fill(word);
            }
        }
    };
    let mut steps = 0_u64;
    while gate.pass(|| step(part, &mut random)) {
        steps += 1;
        if steps.is_multiple_of(64) {
            // Pages have to rest to be merged, and others need this machine's cores.
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// `MADV_DONTNEED` of madvise(2).
const MADV_DONTNEED: i32 = 4;

pub(crate) const DISK_PAGES: usize = 2048;

/// A file with random content, opened past the page cache where that can be.
pub(crate) fn disk(directory: &Path) -> Option<File> {
    let path = directory.join("disk");
    let mut random = Random(99);
    let mut file = File::create(&path).unwrap();
    for _ in 0..DISK_PAGES {
        let word = content(&mut random).to_le_bytes();
        file.write_all(&word.repeat(PAGE_BYTES / 8)).unwrap();
    }
    file.sync_all().unwrap();
    let opened = File::options().read(true).custom_flags(O_DIRECT).open(&path);
    opened.map_err(|error| bindery_testkit::skipped!("direct I/O in {path:?}: {error}")).ok()
}

pub(crate) fn address(memory: &GuestMemory) -> HostAddress {
    HostAddress(memory.page(0).addr())
}

pub(crate) fn slice(memory: &mut GuestMemory, pages: usize) -> &mut [u8] {
    memory.pages_mut(0..pages)
}

pub(crate) struct Scene {
    pub(crate) large: GuestMemory,
    pub(crate) small: GuestMemory,
    pub(crate) space: Arc<Space>,
    pub(crate) daemon: Daemon,
    pub(crate) agent: Agent,
    pub(crate) directory: tempfile::TempDir,
}

impl Scene {
    fn new(period: Duration) -> Option<Self> {
        let mut large = GuestMemory::over(Mapping::anonymous_aligned(PAGES * PAGE_BYTES).unwrap());
        let mut random = Random(7);
        // A part stays absent.
        for page in slice(&mut large, PAGES * 3 / 4).chunks_exact_mut(PAGE_BYTES) {
            let word = content(&mut random).to_le_bytes();
            page.as_chunks_mut::<8>().0.fill(word);
        }
        Self::over(large, MANAGED, period)
    }

    /// Puts the first `managed` pages of `large` under management, and merges them in periods of `period`.
    pub(crate) fn over(large: GuestMemory, managed: usize, period: Duration) -> Option<Self> {
        let space = match Space::start() {
            Ok(space) => space,
            Err(error) => {
                bindery_testkit::skipped!("no space can be managed here: {error}");
                return None;
            }
        };
        let small = GuestMemory::over(Mapping::anonymous(SMALL * PAGE_BYTES).unwrap());
        space.manage(address(&large), managed * PAGE_BYTES).unwrap();
        // Where there is a disk: in memory no file can be read past the page cache.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let sockets = tempfile::tempdir().unwrap();
        let socket = sockets.path().join("socket");
        let listener = listener(&socket);
        let config = AgentConfig { socket, ..AgentConfig::from_environment() };
        let agent = Agent::start(Arc::clone(&space), config).unwrap();
        let daemon = Daemon::take(&listener, period);
        daemon.wait_regions();
        Some(Self { large, small, space, daemon, agent, directory })
    }

    fn blocks(&self) -> Vec<PlacedBlock> {
        vec![Self::block("large", &self.large), Self::block("small", &self.small)]
    }

    pub(crate) fn block(name: &str, memory: &GuestMemory) -> PlacedBlock {
        PlacedBlock {
            name: name.to_owned(),
            address: address(memory),
            pages: memory.pages() as u32,
        }
    }
}

fn limits() -> Limits {
    Limits { pause_max: Duration::from_millis(8), rounds_max: 3, ..Limits::default() }
}

/// Captures the guest on top of `image`, and compares that with its memory in the pause.
fn capture(
    vmm: &mut Process,
    tracker: &mut Tracker,
    image: &mut Image,
    commits: bool,
) -> Result<String, TransferError> {
    capture_within(limits(), vmm, tracker, image, commits)
}

pub(crate) fn capture_within(
    limits: Limits,
    vmm: &mut Process,
    tracker: &mut Tracker,
    image: &mut Image,
    commits: bool,
) -> Result<String, TransferError> {
    let mut memory = Captured::new(tracker, vmm.blocks.clone())?;
    let request = Request {
        overlays: &[],
        purpose: Purpose::Checkpoint,
        limits,
        is_cancelled: &AtomicBool::new(false),
        progress: &|_| (),
    };
    let mut next = image.clone();
    next.puts = 0;
    let outcome = run(vmm, &mut memory, &mut next, &request)?;
    let (stop, total) = (outcome.last.pause.stop, outcome.last.pause.total);
    let words = format!(
        "{} rounds, {:?}; last: {} pages and {} zeros, stop {stop:?}, taking {:?}, reading {:?}, in all {total:?} \
         (with the test's own look); {} MB/s; {} pages put",
        outcome.rounds.len(),
        outcome.ending,
        outcome.last.pages,
        outcome.last.zeros,
        outcome.taking,
        outcome.reading,
        outcome.bytes_per_second.unwrap_or(0) / 1_000_000,
        next.puts,
    );
    if commits {
        outcome.epoch.commit();
    } else {
        drop(outcome);
    }
    for (block, oracle) in vmm.oracle.iter().enumerate() {
        let wrong = next.differences(block, oracle);
        assert!(wrong.is_empty(), "pages {wrong:?} of block {block} differ; {words}");
    }
    if commits {
        *image = next;
    }
    Ok(words)
}

#[test]
fn images_are_the_memory_while_pages_are_merged_written_discarded_and_read_from_a_disk() {
    let Some(mut scene) = Scene::new(Duration::from_millis(3)) else { return };
    let (gate, blocks) = (Arc::<Gate>::default(), scene.blocks());
    let disk = disk(scene.directory.path());
    let (daemon, space) = (&scene.daemon, &scene.space);
    let mut vmm = Process { gate: Arc::clone(&gate), blocks, has_saved: false, oracle: Vec::new() };
    let mut image = Image::new(&vmm.blocks);
    let large = slice(&mut scene.large, PAGES);
    let small = slice(&mut scene.small, SMALL);
    thread::scope(|scope| {
        let part = PAGES / WRITERS;
        for (number, pages) in large.chunks_exact_mut(part * PAGE_BYTES).enumerate() {
            let managed = part.min(MANAGED - number * part);
            let disk = disk.as_ref().filter(|_| number == WRITERS - 1);
            let gate = &gate;
            scope.spawn(move || work(gate, space, pages, managed, disk, 1 + number as u64));
        }
        let gate = &gate;
        scope.spawn(move || work(gate, space, small, 0, None, 77));
        let captured = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut tracker = Tracker::begin(Arc::clone(&daemon.guest)).unwrap();
            assert!(tracker.is_first());
            let (start, mut captures) = (Instant::now(), 0);
            while captures < 40 || start.elapsed() < Duration::from_secs(8) {
                let commits = captures % 4 != 2;
                let words = capture(&mut vmm, &mut tracker, &mut image, commits);
                let words = words.unwrap_or_else(|error| panic!("{error}"));
                if captures % 10 < 2 {
                    println!("{captures}: {words}; merged, zero, breaks: {:?}", daemon.counts());
                }
                captures += 1;
                thread::sleep(Duration::from_millis(20));
            }
            assert!(!tracker.is_first());
            println!("{captures} captures; merged, zero, breaks: {:?}", daemon.counts());
        }));
        gate.open();
        gate.ends.store(true, Ordering::SeqCst);
        if let Err(panic) = captured {
            std::panic::resume_unwind(panic);
        }
    });
    let (merged, _, breaks) = daemon.counts();
    assert!(merged > 0 && breaks > 0, "{merged} merged, {breaks} breaks");
    scene.agent.stop();
    scene.space.release().unwrap();
}

/// Reads all of it with one, two and four lanes, and from outside.
#[test]
fn memory_is_read_at_the_speed_that_is_printed() {
    let Some(scene) = Scene::new(Duration::from_millis(50)) else { return };
    // For all to be private.
    scene.daemon.set_idle(true);
    let mut tracker = Tracker::begin(Arc::clone(&scene.daemon.guest)).unwrap();
    let blocks = vec![PlacedBlock { pages: 8192, ..scene.blocks()[0].clone() }];
    let pages = bindery_units::PageRange::new(bindery_units::PageIndex(0), 8192);
    let all = [bindery_transfer::BlockPages { block: 0, pages }];
    let mut into = vec![1; 8192 * PAGE_BYTES];
    let mbps = |time: Duration| (8192 * PAGE_BYTES) as f64 / time.as_secs_f64() / 1e6;
    for lanes in [1, 2, 4] {
        let mut memory = Captured::new(&mut tracker, blocks.clone()).unwrap().with_lanes(lanes);
        let mut read = || {
            let start = Instant::now();
            memory.read(&all, &mut into).unwrap();
            start.elapsed()
        };
        let best = (0..10).map(|_| read()).min().unwrap();
        println!("{lanes} lanes: {:.0} MB/s", mbps(best));
    }
    let pid = std::process::id().cast_signed();
    let outside = |into: &mut [u8]| {
        let start = Instant::now();
        for at in (0..into.len()).step_by(1 << 20) {
            let span = MemorySpan { address: blocks[0].address.plus(at), bytes: 1 << 20 };
            assert_eq!(read_memory(pid, &[span], &mut into[at..]).unwrap(), 1 << 20);
        }
        start.elapsed()
    };
    let mut same = vec![2; into.len()];
    let best = (0..10).map(|_| outside(&mut same)).min().unwrap();
    println!("process_vm_readv: {:.0} MB/s", mbps(best));
    assert!(into == same);
    scene.agent.stop();
    scene.space.release().unwrap();
}
