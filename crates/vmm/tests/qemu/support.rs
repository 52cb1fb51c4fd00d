//! Guests with a memory checker and a heartbeat, and two QEMUs between which they are moved.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bindery_testkit::guest::{
    CustomImage, GuestBuilder, GuestImage, ImageKind, Kernel, Kit, Qemu as Version, QemuGuest,
};
use bindery_testkit::skipped;
use bindery_vmm::qmp::Qmp;
use bindery_vmm::{IncomingQemu, IncomingVmm, Qemu, QemuSettings};
use serde_json::json;
use tempfile::TempDir;

/// Memory of the guests, in MiB.
const MEMORY_MIB: u32 = 128;

const BOOT: Duration = Duration::from_secs(180);

/// The longest that a guest under TCG may take for a few beats on a busy machine.
const BEATS: Duration = Duration::from_secs(60);

/// The kit and an image, unless this machine has none.
pub(crate) struct Bench {
    kit: Kit,
    image: GuestImage,
    pub(crate) directory: TempDir,
    /// Directory of the files that are guests' memory: QEMU 10 takes 70 ms more to load with one on a disk.
    memory: TempDir,
}

/// A beat of a guest's heart, as its console shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) nonce: String,
    pub(crate) number: u64,
    pub(crate) verified: u64,
    pub(crate) bad: u64,
}

/// A guest, and where its monitor is that nobody else uses.
pub(crate) struct Monitored {
    pub(crate) guest: QemuGuest,
    pub(crate) monitor: PathBuf,
}

impl Bench {
    pub(crate) fn new() -> Option<Self> {
        let kit = Kit::locate().map_err(|error| skipped!("{error}")).ok()?;
        let directory = tempfile::tempdir().expect("a directory");
        let image = CustomImage::new(&kit, Kernel::Stable, directory.path());
        let image = image.and_then(CustomImage::write).unwrap_or_else(|error| panic!("{error}"));
        let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        Some(Self { kit, image, directory, memory })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn kit(&self) -> &Kit {
        &self.kit
    }

    /// Describes a guest with a monitor called `name`.
    pub(crate) fn builder(&self, version: Version, machine: &str) -> GuestBuilder {
        QemuGuest::builder(&self.kit, &self.image)
            .qemu(version)
            .machine_type(machine)
            .memory_mib(MEMORY_MIB)
    }

    /// Describes a guest that can make file systems.
    pub(crate) fn server(&self, version: Version) -> GuestBuilder {
        let image = GuestImage::of_kit(&self.kit, ImageKind::Server);
        let image = image.unwrap_or_else(|error| panic!("{error}"));
        QemuGuest::builder(&self.kit, &image).qemu(version)
    }

    /// Starts a guest and returns at once.
    pub(crate) fn spawn(&self, builder: GuestBuilder, name: &str) -> Monitored {
        let monitor = self.path(&format!("{name}.sock"));
        let socket = format!("unix:{},server=on,wait=off", monitor.display());
        let guest = builder.args(["-qmp", &socket]).spawn().expect("QEMU starts");
        Monitored { guest, monitor }
    }

    /// Starts a guest, and in it a checker of memory whose heartbeat is on the console.
    pub(crate) fn start(&self, builder: GuestBuilder, name: &str) -> Monitored {
        let mut started = self.spawn(builder, name);
        started.guest.wait_ready(BOOT).unwrap_or_else(|error| panic!("{error}"));
        let checker = "guest_agent heartbeat > /dev/console 2>&1";
        started.guest.run_in_background("heartbeat", checker).expect("the guest runs");
        started.wait_beats(3);
        started
    }

    /// Starts a QEMU that waits for device state, with memory in a file.
    pub(crate) fn start_incoming(
        &self,
        builder: GuestBuilder,
        name: &str,
    ) -> (Monitored, IncomingQemu) {
        let builder = builder.memory_file(self.memory_file(name)).incoming("defer").args(["-S"]);
        let mut started = self.spawn(builder, name);
        started.wait_monitor();
        let settings = QemuSettings::default();
        let incoming = IncomingQemu::connect(&started.monitor, settings);
        let incoming = incoming.unwrap_or_else(|error| panic!("{error}"));
        (started, incoming)
    }

    pub(crate) fn memory_file(&self, name: &str) -> PathBuf {
        self.memory.path().join(name)
    }

    /// Copies all memory of a stopped guest into the file that is another's memory.
    pub(crate) fn copy_memory(&self, from: &mut Qmp, name: &str) {
        let saved = self.path("pmemsave");
        let bytes = u64::from(MEMORY_MIB) << 20;
        let arguments = json!({ "val": 0, "size": bytes, "filename": saved });
        from.execute("pmemsave", arguments).expect("memory is saved");
        let content = std::fs::read(&saved).expect("QEMU wrote it");
        assert_eq!(content.len() as u64, bytes);
        let file = OpenOptions::new().write(true).open(self.memory_file(name));
        file.and_then(|file| file.write_all_at(&content, 0)).expect("the memory is there");
    }
}

impl Monitored {
    pub(crate) fn connect(&self, settings: QemuSettings) -> Qemu {
        Qemu::connect(&self.monitor, settings).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until QEMU has made its monitor's socket.
    pub(crate) fn wait_monitor(&mut self) {
        self.wait("a monitor", |started| started.monitor.exists());
    }

    /// Returns the last whole beat on the console.
    pub(crate) fn beat(&self) -> Option<Beat> {
        let console = self.guest.console();
        let (whole, _) = console.rsplit_once('\n')?;
        whole.lines().rev().find_map(read_beat)
    }

    /// Waits until the heart has beaten `count` times more, and returns the last beat.
    pub(crate) fn wait_beats(&mut self, count: u64) -> Beat {
        let until = self.beat().map_or(0, |beat| beat.number) + count;
        self.wait("a heartbeat", |started| started.beat().is_some_and(|beat| beat.number >= until));
        self.beat().expect("it was there")
    }

    /// Returns the first beat on the console.
    pub(crate) fn first_beat(&mut self) -> Beat {
        let first = |started: &Self| started.guest.console().lines().find_map(read_beat);
        self.wait("a heartbeat", |started| first(started).is_some());
        first(self).expect("it was there")
    }

    fn wait(&mut self, what: &str, mut is_there: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + BEATS;
        while !is_there(self) {
            let running = self.guest.is_running();
            let words = format!("{}{}", self.guest.log(), self.guest.console());
            assert!(running && Instant::now() < deadline, "no {what}: {words}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Reads a line of `guest_agent heartbeat`.
fn read_beat(line: &str) -> Option<Beat> {
    let rest = line.trim_end().split_once("HEARTBEAT ")?.1;
    let mut values =
        rest.split(' ').filter_map(|word| word.split_once('=')).map(|(_, value)| value);
    let mut next = || values.next();
    Some(Beat {
        nonce: next()?.to_owned(),
        number: next()?.parse().ok()?,
        verified: next()?.parse().ok()?,
        bad: next()?.parse().ok()?,
    })
}

/// Lets a loaded guest run, and checks that it is the one that was saved at `last` and goes on with the next
/// beat without a wrong byte.
pub(crate) fn assert_goes_on(loaded: &mut Monitored, incoming: &mut IncomingQemu, last: &Beat) {
    incoming.resume().unwrap_or_else(|error| panic!("{error}"));
    let first = loaded.first_beat();
    assert_eq!((&first.nonce, first.number), (&last.nonce, last.number + 1), "{last:?}");
    let later = loaded.wait_beats(20);
    assert!(later.bad == 0 && later.verified > last.verified, "{later:?}");
    assert_eq!(loaded.guest.kernel_complaints().expect("it runs"), Vec::<String>::new());
}

/// Returns what `qemu-img info` says of an image in use.
pub(crate) fn image_info(kit: &Kit, overlay: &Path) -> String {
    let output = std::process::Command::new(kit.qemu_img(Version::V10))
        .env("LD_LIBRARY_PATH", kit.library_path(Version::V10))
        .args(["info", "-U"])
        .arg(overlay)
        .output()
        .expect("qemu-img runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns true if another process has a raw image of 1 MiB open for writing.
pub(crate) fn is_locked(kit: &Kit, image: &Path) -> bool {
    let output = std::process::Command::new(kit.qemu_img(Version::V10))
        .env("LD_LIBRARY_PATH", kit.library_path(Version::V10))
        .args(["resize", "-f", "raw"])
        .arg(image)
        .arg("1M")
        .output()
        .expect("qemu-img runs");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || words.contains("lock"), "{words}");
    !output.status.success()
}

/// Sends a signal to a QEMU that this test started.
pub(crate) fn signal(pid: i32, name: &str) {
    let status = std::process::Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(status.expect("kill runs").success());
}
