//! The demo's second act: a guest at work is checkpointed, ended, restored, and cloned.

use std::ffi::OsString;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bindery_testkit::bindery::{Bindery, Daemon};
use bindery_testkit::clones::Clones;
use bindery_testkit::guest::{GuestImage, ImageKind, Kit, Qemu, QemuGuest};
use bindery_testkit::machine::sum_pss;
use bindery_units::ByteCount;
use serde_json::Value;
use tempfile::TempDir;

use super::report::mib;
use super::screen::Screen;
use super::{DemoArgs, go_on};

/// Number of clones.
const CLONES: u32 = 8;

/// Size that the pool may grow to, in MiB.
const POOL_MIB: u64 = 4096;

const BOOT_TIMEOUT: Duration = Duration::from_secs(120);

/// Time for the guest's program to fill its memory.
const SETTLE: Duration = Duration::from_secs(6);

/// Memory of the guest's program, as a share of its RAM.
const WORK_SHARE: u32 = 5;

/// Clones' memory is watched no longer than this.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// Their memory has settled when it has shrunk by less than a hundredth for so long.
const QUIET: Duration = Duration::from_secs(4);

const GUEST: &str = "files";
const CHECKPOINT: &str = "files@demo";

/// Something that only this guest's memory knows, and that no boot brings back.
const NONCE: &str = "cat /tmp/nonce /proc/sys/kernel/random/boot_id";

/// One line of the table.
struct Step {
    what: &'static str,
    took: Duration,
    memory: Option<ByteCount>,
    words: String,
}

/// Plays the act and prints its table.
pub(super) fn run(arguments: &DemoArgs, kit: &Kit, stop: &AtomicBool) -> Result<()> {
    let screen = Screen::new("checkpoint");
    let stage = Stage::new(kit)?;
    screen.phase("booting a guest, whose programs fill its memory");
    let (mut guest, boot) = stage.boot(arguments.memory_mib)?;
    let known = guest.check(NONCE)?;
    wait(SETTLE, stop)?;
    let before = memory(&guest)?;
    screen.phase("making a checkpoint, while the guest runs");
    let (checkpoint, words) = stage.checkpoint()?;
    guest.shut_down();
    go_on(stop)?;
    screen.phase("the guest has ended; restoring it");
    let (mut restored, restore) = stage.restore()?;
    ensure!(restored.check(NONCE)? == known, "the restored guest is another one");
    let after = memory(&restored)?;
    restored.shut_down();
    go_on(stop)?;
    screen.phase("starting clones, which share what they have not written");
    let start = Instant::now();
    let clones = Clones::start(&stage.daemon, (kit, Qemu::V7), CHECKPOINT, CLONES)?;
    let started = start.elapsed();
    let all = settle(&clones, stop)?;
    let each = ByteCount(all.0 / u64::from(CLONES));
    drop(screen);
    print(&[
        step("boot, until it runs commands", boot, Some(before), String::new()),
        step("checkpoint", checkpoint, None, words),
        step("restore, until it runs commands", restore, Some(after), "with all its memory".into()),
        step("eight clones, until they run", started, Some(all), format!("{} each", mib(each))),
    ]);
    Ok(())
}

const fn step(
    what: &'static str,
    took: Duration,
    memory: Option<ByteCount>,
    words: String,
) -> Step {
    Step { what, took, memory, words }
}

fn print(steps: &[Step]) {
    println!("\nA guest that serves files from memory, kept by Bindery:");
    println!("{:<36} {:>9} {:>10}", "", "time", "Pss");
    for Step { what, took, memory, words } in steps {
        let memory = memory.map_or_else(|| "-".to_owned(), mib);
        println!("{what:<36} {:>7.2} s {memory:>10}  {words}", took.as_secs_f64());
    }
}

/// A daemon that keeps checkpoints, and what the guest boots from.
struct Stage<'k> {
    kit: &'k Kit,
    image: GuestImage,
    daemon: Daemon,
    // Removed once the daemon has ended.
    _directory: TempDir,
}

impl<'k> Stage<'k> {
    fn new(kit: &'k Kit) -> Result<Self> {
        let bindery = Bindery::locate()?;
        let directory = tempfile::Builder::new().prefix("bindery-demo-").tempdir();
        let directory = directory.context("a directory for the pool")?;
        let pool = bindery.create_pool(directory.path(), POOL_MIB)?;
        let pool = pool.to_str().context("the pool's path is no text")?;
        let daemon = bindery.daemon(&["--checkpoint-pool", pool])?;
        let image = GuestImage::of_kit(kit, ImageKind::Server)?;
        Ok(Self { kit, image, daemon, _directory: directory })
    }

    /// Boots the guest, and has it work. Returns the time until it ran commands, too.
    fn boot(&self, memory_mib: u32) -> Result<(QemuGuest, Duration)> {
        let builder = QemuGuest::builder(self.kit, &self.image).memory_mib(memory_mib);
        let mut guest = builder.launcher(self.daemon.launcher(GUEST)).spawn()?;
        let took = guest.wait_ready(BOOT_TIMEOUT)?;
        guest.check("head -c 16 /dev/urandom | od -x > /tmp/nonce")?;
        let mib = memory_mib / WORK_SHARE;
        guest.run_in_background("work", &format!("guest_agent load files --mib {mib}"))?;
        Ok((guest, took))
    }

    /// Makes the checkpoint. Returns the time that it took, and what is to be said of it.
    fn checkpoint(&self) -> Result<(Duration, String)> {
        let words = ["checkpoint", "create", GUEST, "--name", "demo", "--without-disks", "--json"];
        let start = Instant::now();
        let made = self.daemon.command(&words)?;
        let took = start.elapsed();
        let made: Value = serde_json::from_str(&made).context("the answer is no JSON")?;
        let pause = made["pause_us"].as_u64().unwrap_or(0) as f64 / 1e3;
        let bytes = made["checkpoint"]["written_bytes"].as_u64().unwrap_or(0);
        Ok((took, format!("{} written, {pause:.1} ms of pause", mib(ByteCount(bytes)))))
    }

    /// Starts a guest that goes on from the checkpoint. Returns the time until it ran commands, too.
    fn restore(&self) -> Result<(QemuGuest, Duration)> {
        let mut words = vec![self.daemon.program().as_os_str().to_owned()];
        words.extend(["restore", "--socket"].map(OsString::from));
        words.push(self.daemon.socket().into());
        words.extend([CHECKPOINT, "--name", "restored"].map(OsString::from));
        let builder = QemuGuest::builder(self.kit, &self.image).launcher(words);
        let mut guest = builder.spawn_restored()?;
        let took = guest.wait_ready(BOOT_TIMEOUT).context("restoring the guest")?;
        Ok((guest, took))
    }
}

fn memory(guest: &QemuGuest) -> Result<ByteCount> {
    sum_pss(guest.pid()).context("reading the guest's memory")
}

/// Waits until the memory of clones no longer shrinks. Returns the Pss of all.
fn settle(clones: &Clones, stop: &AtomicBool) -> Result<ByteCount> {
    let memory = || sum_pss(clones.pids().iter().copied()).context("reading clones' memory");
    let start = Instant::now();
    let (mut since, mut level) = (start, memory()?);
    while start.elapsed() < SETTLE_LIMIT && since.elapsed() < QUIET {
        wait(Duration::from_millis(500), stop)?;
        let now = memory()?;
        if now.0 < level.0 - level.0 / 100 {
            (since, level) = (Instant::now(), now);
        }
    }
    memory()
}

/// Rests, but for Ctrl-C.
fn wait(time: Duration, stop: &AtomicBool) -> Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        go_on(stop)?;
        std::thread::sleep(Duration::from_millis(100).min(time));
    }
    Ok(())
}
