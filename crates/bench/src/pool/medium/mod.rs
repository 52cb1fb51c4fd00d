//! A slow disk on a machine that has a fast one.
//!
//! A file system (`disk`) of one file that answers when the device that is played would, the kernel's
//! loop device on that file, and ext4 on that: who uses it meets a disk like any other, with its own queue,
//! read-ahead and accounts of what was read. The rates are the medium's own and not a control group's, so
//! writeback and the journal's thread pay, too.
//!
//! The threads that play it run before all others, as a device runs beside the processors; what they cost
//! is still the machine's: some 30 µs a request of one processor.

mod disk;
mod interrupts;
mod leftovers;
mod mounted;
mod service;

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail, ensure};
use bindery_sys::{cgroup, memory::MachineMemory};
use fuser::{BackgroundSession, Config, MountOption};

use self::disk::{Disk, FILE};
use self::interrupts::Interrupts;
use self::mounted::Mounted;
pub use self::service::Rates;

/// Of the real-time priorities (sched(7)) the least: before all that share the processors.
const PRIORITY: u32 = 1;

/// What the file system in user space is called in a list of mounts.
const NAME: &str = "bindery-medium";

/// Where it is mounted, and where the file system on its file is, in a directory of their own.
const BELOW: &str = "device";
const ABOVE: &str = "mounted";

/// A mounted disk. Gone when dropped, with all that it holds.
#[derive(Debug)]
pub struct Medium {
    is_held: Arc<AtomicBool>,
    // Dropped in this order. Whoever is killed leaves threads raised only beside a mount, which tells.
    _interrupts: Interrupts,
    mounted: Mounted,
    _looped: Looped,
    _session: Session,
    _places: tempfile::TempDir,
}

impl Medium {
    /// Makes an empty disk of so many bytes, in memory as far as it is written, and mounts it somewhere
    /// below `directory`. It is fast until it is [held](Self::hold). Takes root, mkfs.ext4, losetup and chrt.
    /// Clears first what a run has left that was killed.
    ///
    /// # Errors
    /// If the kernel has no FUSE or no loop device, one of the programs fails, a rate is 0, or memory for
    /// all of it may not be had.
    pub fn create(directory: &Path, bytes: u64, rates: Rates) -> Result<Self> {
        rates.check()?;
        check_machine()?;
        leftovers::clear().context("looking for what another run has left")?;
        check_memory(bytes)?;
        let places = tempfile::tempdir_in(directory)
            .with_context(|| format!("making a directory in {}", directory.display()))?;
        let [below, above] = [BELOW, ABOVE].map(|name| places.path().join(name));
        for place in [&below, &above] {
            std::fs::create_dir(place)?;
        }
        let is_held = Arc::new(AtomicBool::new(false));
        let session = Session::start(&below, bytes, rates, &is_held)
            .context("mounting a file system in user space")?;
        let looped = Looped::on(&below.join(FILE))?;
        // All is written now, and nothing of it in the background while something is measured.
        let at_once = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        perform("mkfs.ext4", [OsStr::new("-q"), "-E".as_ref(), at_once.as_ref(), looped.as_ref()])?;
        let mounted = Mounted::at(looped.as_ref(), above)?;
        let interrupts = Interrupts::before_all()?;
        Ok(Self {
            is_held,
            _interrupts: interrupts,
            mounted,
            _looped: looped,
            _session: session,
            _places: places,
        })
    }

    /// The same, if there are rates to hold it to.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_for(directory: &Path, bytes: u64, rates: Option<Rates>) -> Result<Option<Self>> {
        rates.map(|rates| Self::create(directory, bytes, rates)).transpose()
    }

    /// Where it is mounted.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.mounted.place()
    }

    /// Holds it to its rates from now on, or lets it go.
    pub fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Relaxed);
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        // What is not written yet is written as fast as it can be.
        self.hold(false);
    }
}

/// Says what is missing on this machine, before anything is changed.
fn check_machine() -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "playing a device takes root: it mounts file systems and raises threads");
    for (path, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
        ensure!(
            Path::new(path).exists(),
            "{path} is not there: `modprobe {module}`, if there is one"
        );
    }
    Ok(())
}

/// What is written to the disk stays in memory, and may be all of it.
fn check_memory(bytes: u64) -> Result<()> {
    let available = MachineMemory::read().context("reading /proc/meminfo")?.available_bytes;
    let own = cgroup::memory_left(rustix::process::getpid().as_raw_nonzero().get());
    let left = own.map_or(available, |left| left.bytes.min(available));
    ensure!(
        bytes <= left,
        "a played device of {} MiB is kept in memory, and {} MiB are left of the machine's and of this \
         control group's: measure less data, or lift the limit",
        bytes >> 20,
        left >> 20,
    );
    Ok(())
}

/// Runs a program, and gives what it says.
fn perform<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("starting {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} ended with {}: {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn complain(what: &str, result: Result<String>) {
    if let Err(error) = result {
        eprintln!("{what} is left: {error:#}");
    }
}

/// The file system with the one file.
#[derive(Debug)]
struct Session {
    session: Option<BackgroundSession>,
    thread: Option<JoinHandle<()>>,
}

impl Session {
    fn start(place: &Path, bytes: u64, rates: Rates, is_held: &Arc<AtomicBool>) -> Result<Self> {
        let (place, is_held) = (place.to_owned(), Arc::clone(is_held));
        // Threads have the priority of those that start them.
        let starting = thread::spawn(move || -> Result<Self> {
            let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
            perform("chrt", ["--fifo", "--pid", &PRIORITY.to_string(), &thread])?;
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
            let (disk, thread) = Disk::new(bytes, rates, is_held)?;
            let mut config = Config::default();
            config.mount_options = vec![MountOption::FSName(NAME.into())];
            let session = fuser::spawn_mount(disk, place, &config)?;
            Ok(Self { session: Some(session), thread: Some(thread) })
        });
        match starting.join() {
            Ok(started) => started,
            Err(_) => bail!("the thread that mounts has panicked; stderr has its message"),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let unmounted = self.session.take().map_or(Ok(()), BackgroundSession::umount_and_join);
        if let Err(error) = unmounted {
            // Then its threads live on.
            eprintln!("the medium's file system is left: {error}");
        } else if let Some(thread) = self.thread.take() {
            // A panic there has been reported, and must not become one here.
            let _ = thread.join();
        }
    }
}

/// A loop device.
#[derive(Debug)]
struct Looped(PathBuf);

impl Looped {
    fn on(file: &Path) -> Result<Self> {
        let options = ["--find", "--show", "--direct-io=on", "--sector-size=4096"];
        let arguments = options.iter().map(OsStr::new).chain([file.as_os_str()]);
        Ok(Self(perform("losetup", arguments)?.into()))
    }
}

impl AsRef<OsStr> for Looped {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

impl Drop for Looped {
    fn drop(&mut self) {
        let detached = perform("losetup", [OsStr::new("--detach"), self.0.as_os_str()]);
        complain(&self.0.display().to_string(), detached);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::process::Stdio;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use bindery_sys::direct::Buffer;

    use super::*;

    const RATES: Rates =
        Rates { latency: Duration::from_millis(5), bytes_per_s: 10 << 20, requests_per_s: 1_000 };

    /// What keeps a medium from being made here.
    fn lacks() -> Option<&'static str> {
        let is_there = |program| perform(program, ["--version"]).is_ok();
        match () {
            () if !rustix::process::geteuid().is_root() => Some("root"),
            () if !Path::new("/dev/fuse").exists() => Some("/dev/fuse"),
            () if !Path::new("/dev/loop-control").exists() => Some("loop devices"),
            () if !(is_there("losetup") && is_there("chrt")) => Some("util-linux"),
            () if perform("mkfs.ext4", ["-V"]).is_err() => Some("e2fsprogs"),
            () => None,
        }
    }

    /// One at a time: media clear what those before them have left.
    static ALONE: Mutex<()> = Mutex::new(());

    /// How many file systems are mounted below a directory.
    fn mounts(place: &Path) -> usize {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().filter(|line| line.contains(place.to_str().unwrap())).count()
    }

    #[test]
    fn a_held_medium_takes_its_time_and_leaves_nothing_behind() {
        if let Some(what) = lacks() {
            return bindery_testkit::skipped!("a medium cannot be made: {what} is missing");
        }
        let _alone = ALONE.lock();
        let place = tempfile::tempdir().unwrap();
        let medium = Medium::create(place.path(), 64 << 20, RATES).unwrap();
        assert_eq!(mounts(place.path()), 2);
        let path = medium.directory().join("file");
        fs::write(&path, [7; 1 << 20]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();

        medium.hold(true);
        let direct = libc::O_DIRECT;
        let file = File::options().read(true).custom_flags(direct).open(&path).unwrap();
        for bytes in [4096, 1 << 20] {
            let mut buffer = Buffer::zeroed(bytes);
            let asked = Instant::now();
            file.read_exact_at(&mut buffer, 0).unwrap();
            let transfer = Duration::from_secs_f64(bytes as f64 / RATES.bytes_per_s as f64);
            let least = RATES.latency + transfer.max(Duration::from_millis(1));
            assert!(asked.elapsed() >= least, "{bytes}: {:?}", asked.elapsed());
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
        medium.hold(false);

        drop((file, medium));
        assert_eq!(mounts(place.path()), 0);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    const PLACE: &str = "BINDERY_TEST_MEDIUM";

    /// The child of the test below; alone, it does nothing.
    #[test]
    fn a_medium_until_its_process_is_killed() {
        let Some(place) = std::env::var_os(PLACE) else { return };
        let medium = Medium::create(place.as_ref(), 64 << 20, RATES).unwrap();
        fs::write(medium.directory().join("file"), [7; 1 << 20]).unwrap();
        medium.hold(true);
        println!("ready");
        thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn what_a_killed_run_has_left_is_cleared_by_the_next() {
        if let Some(what) = lacks() {
            return bindery_testkit::skipped!("a medium cannot be made: {what} is missing");
        }
        let _alone = ALONE.lock();
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["a_medium_until_its_process_is_killed", "--nocapture"])
            .env(PLACE, place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_ready = lines.any(|line| line.unwrap().contains("ready"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_ready, "no medium was made");
        assert_eq!(mounts(place.path()), 2);

        let elsewhere = tempfile::tempdir().unwrap();
        let medium = Medium::create(elsewhere.path(), 64 << 20, RATES).unwrap();
        assert_eq!(mounts(place.path()), 0);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        let loops =
            perform("losetup", ["--list", "--noheadings", "--output", "BACK-FILE"]).unwrap();
        assert!(!loops.contains(place.path().to_str().unwrap()), "{loops}");
        drop(medium);
        // Another run on this machine has them raised while it has one mounted.
        let is_alone = !fs::read_to_string("/proc/self/mounts").unwrap().contains(NAME);
        assert!(!is_alone || interrupts::are_as_others(), "threads are left raised");
    }

    #[test]
    fn a_device_that_never_answers_and_one_that_memory_does_not_hold_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let none = Rates { requests_per_s: 0, ..RATES };
        let refused = Medium::create(place.path(), 64 << 20, none).unwrap_err();
        assert!(refused.to_string().contains("0 bytes or requests"), "{refused}");
        let refused = check_memory(1 << 60).unwrap_err();
        assert!(refused.to_string().contains("MiB are left"), "{refused}");
    }
}
