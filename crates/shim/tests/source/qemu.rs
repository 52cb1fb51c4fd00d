//! Unmodified QEMU: a guest goes on in another QEMU, the memory of which comes when it is touched.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bindery_guest::{Connection, Image, ImageError, ServeOptions};
use bindery_sys::socket;
use bindery_testkit::guest::{GuestBuilder, GuestImage, ImageKind, Kit, Qemu, QemuGuest};
use bindery_testkit::skipped;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::control::{BoundRange, Offered};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::{Daemon, accept};
use crate::{TOKEN, can_manage};

const BOOT: Duration = Duration::from_secs(180);

/// Memory of a stopped guest, block after block.
struct Ram(Vec<u8>);

impl Ram {
    fn page(&self, page: PageIndex) -> Option<&[u8]> {
        self.0.chunks(PAGE_BYTES).nth(page.at())
    }

    fn is_zero(&self, page: PageIndex) -> bool {
        self.page(page).is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0))
    }
}

impl Image for Ram {
    fn read(&self, first: PageIndex, into: &mut [u8]) -> Result<(), ImageError> {
        let start = first.at() * PAGE_BYTES;
        into.copy_from_slice(&self.0[start..start + into.len()]);
        Ok(())
    }

    fn zero_run(&self, page: PageIndex) -> Option<PageRange> {
        let run = (page.0..).take_while(|&page| self.is_zero(PageIndex(page))).take(4096);
        let count = run.count() as u32;
        (count > 0).then(|| PageRange::new(page, count))
    }
}

/// A QEMU under the library, and its daemon.
struct Shimmed {
    qemu: QemuGuest,
    daemon: Daemon,
    log: PathBuf,
}

impl Shimmed {
    fn start(builder: GuestBuilder, directory: &Path, name: &str) -> Self {
        let path = directory.join(name);
        let listener: OwnedFd = socket::listen(&path, 4).unwrap();
        let program = std::env::current_exe().unwrap();
        let log = directory.join(format!("{name}.log"));
        let qemu = builder
            .env("LD_PRELOAD", program.with_file_name("libbindery_shim.so"))
            .env("BINDERY_SOCKET", &path)
            .env("BINDERY_LOG_FILE", &log)
            .spawn()
            .unwrap();
        Self { qemu, daemon: accept(&listener), log }
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Value {
        self.qemu.qmp().unwrap().execute(command, arguments).unwrap_or_else(|error| {
            panic!("{command}: {error}: {}", fs::read_to_string(&self.log).unwrap_or_default())
        })
    }

    fn await_qmp(&mut self) {
        let begun = Instant::now();
        while self.qemu.qmp().is_err() {
            assert!(begun.elapsed() < BOOT, "no monitor");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns what QEMU offered, once it has made its machine.
    fn blocks(&mut self) -> Vec<Offered> {
        self.await_qmp();
        self.execute("query-status", &json!({}));
        self.daemon.offered(1);
        while self.daemon.guest.wait_events(Duration::from_millis(300)).unwrap() {}
        self.daemon.guest.offered()
    }
}

/// Puts what a destination wants around the state of devices: the machine's type, and an end.
fn stream(state: &[u8], machine: &str) -> Vec<u8> {
    let mut stream = state[..8].to_vec();
    stream.push(7);
    stream.extend((machine.len() as u32).to_be_bytes());
    stream.extend(machine.as_bytes());
    stream.extend(&state[8..]);
    stream.extend([6, 0, 0, 0, 2]);
    stream.extend(b"{}");
    stream
}

/// Stops the guest, and takes its memory and the state of its devices.
fn save(source: &mut Shimmed, blocks: &[Offered], directory: &Path) -> (Ram, PathBuf) {
    source.execute("stop", &json!({}));
    let state = directory.join("state");
    source.execute("xen-save-devices-state", &json!({ "filename": &state, "live": false }));
    let machine = source.execute("qom-get", &json!({ "path": "/machine", "property": "type" }));
    let machine = machine.as_str().unwrap().trim_end_matches("-machine").to_owned();
    fs::write(&state, stream(&fs::read(&state).unwrap(), &machine)).unwrap();
    // As ordinary memory, it is read from outside.
    source.daemon.guest.release().unwrap();
    while !source.daemon.guest.has_released() {
        // It hangs up after its last word.
        let heard = source.daemon.guest.wait_events(BOOT);
        assert!(heard.is_ok() || source.daemon.guest.has_released(), "{heard:?}");
    }
    let memory = File::open(format!("/proc/{}/mem", source.qemu.pid().unwrap())).unwrap();
    let mut ram = Vec::new();
    for block in blocks {
        let start = ram.len();
        ram.resize(start + block.bytes as usize, 0);
        memory.read_exact_at(&mut ram[start..], block.address.0 as u64).unwrap();
    }
    (Ram(ram), state)
}

#[test]
fn a_guest_goes_on_in_a_qemu_that_is_filled_on_demand() {
    if !can_manage() {
        return;
    }
    let kit = match Kit::locate() {
        Ok(kit) => kit,
        Err(error) => return skipped!("{error}"),
    };
    let image =
        GuestImage::of_kit(&kit, ImageKind::Server).unwrap_or_else(|error| panic!("{error}"));
    for version in Qemu::ALL {
        let directory: TempDir = tempfile::tempdir().unwrap();
        let builder = QemuGuest::builder(&kit, &image).qemu(version);
        let mut source = Shimmed::start(builder.clone(), directory.path(), "source");
        source.qemu.wait_ready(BOOT).unwrap_or_else(|error| panic!("{error}"));
        source
            .qemu
            .check("head -c 20000000 /dev/urandom > /tmp/mark && md5sum /tmp/mark > /tmp/sum")
            .unwrap();
        let blocks = source.blocks();
        let (ram, state) = save(&mut source, &blocks, directory.path());

        let incoming = builder.incoming("defer").args(["-S"]);
        let mut destination = Shimmed::start(incoming, directory.path(), "destination");
        let there = destination.blocks();
        let bytes = |blocks: &[Offered]| blocks.iter().map(|block| block.bytes).collect::<Vec<_>>();
        assert_eq!(bytes(&there), bytes(&blocks), "blocks come in the same order");
        let mut first = PageIndex(0);
        let ranges = there.iter().map(|block| {
            let range = BoundRange { address: block.address, bytes: block.bytes, first };
            first = range.pages().unwrap().end();
            range
        });
        let ranges: Vec<BoundRange> = ranges.collect();
        let begun = Instant::now();
        let link = destination.daemon.guest.bind(&ranges, TOKEN).unwrap();
        let bound = begun.elapsed();
        let slowly = ServeOptions { ahead_bytes_per_s: Some(64 << 20), ..ServeOptions::default() };
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| link.serve(&ram, std::iter::empty(), slowly));
            // QEMU forks for this, and touches the guest's memory itself.
            let uri = format!("exec:cat {}", state.display());
            destination.execute("migrate-incoming", &json!({ "uri": uri }));
            await_state(&mut destination);
            destination.execute("cont", &json!({}));
            let resumed = begun.elapsed();
            let sum = destination.qemu.check("md5sum -c /tmp/sum").unwrap();
            assert_eq!(sum, "/tmp/mark: OK\n");
            let served = serving.join().unwrap().unwrap_or_else(|error| panic!("{error}"));
            println!(
                "{version:?}: bound after {bound:?}, resumed after {resumed:?}; {} faults, longest {:?}, {} pages \
                 pushed, {} zero",
                served.faults, served.longest_fault, served.pushed_pages, served.zero_pages
            );
            assert!(served.faults > 0 && served.damaged.is_empty());
        });
        destination.daemon.wait_for_region();
        assert_eq!(destination.qemu.check("md5sum -c /tmp/sum").unwrap(), "/tmp/mark: OK\n");
        assert_eq!(destination.qemu.kernel_complaints().unwrap(), Vec::<String>::new());
        destination.qemu.shut_down();
        source.qemu.shut_down();
    }
}

/// Waits until the state of the devices is loaded.
fn await_state(destination: &mut Shimmed) {
    let begun = Instant::now();
    while destination.execute("query-status", &json!({}))["status"] == "inmigrate" {
        assert!(begun.elapsed() < BOOT, "the state is not loaded");
        std::thread::sleep(Duration::from_millis(5));
    }
}
