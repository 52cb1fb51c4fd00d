//! A slow disk on a machine that has a fast one.
//!
//! A file system ([`disk`]) of one file that answers when the device that is played would, the kernel's
//! loop device on that file, and ext4 on that: who uses it meets a disk like any other, with its own queue,
//! read-ahead and accounts of what was read. The rates are the medium's own and not a control group's, so
//! writeback and the journal's thread pay, too.
//!
//! The threads that play it run before all others, as a device runs beside the processors; what they cost
//! is still the machine's: some 30 µs a request of one processor.

mod disk;
mod service;

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail, ensure};
use fuser::{BackgroundSession, Config, MountOption};

use self::disk::{Disk, FILE};
pub use self::service::Rates;

/// Of the real-time priorities (sched(7)) the least: before all that share the processors.
const PRIORITY: &str = "1";

/// A mounted disk. Gone when dropped, with all that it holds.
#[derive(Debug)]
pub struct Medium {
    is_held: Arc<AtomicBool>,
    // Dropped in this order.
    mounted: Mounted,
    _looped: Looped,
    _session: Session,
    _interrupts: Interrupts,
    _places: tempfile::TempDir,
}

impl Medium {
    /// Makes an empty disk of so many bytes, in memory as far as it is written, and mounts it somewhere
    /// below `directory`. It is fast until it is [held](Self::hold). Takes root, mkfs.ext4, losetup and chrt.
    ///
    /// # Errors
    /// If the kernel has no FUSE or no loop device, or one of the programs fails.
    pub fn create(directory: &Path, bytes: u64, rates: Rates) -> Result<Self> {
        let places = tempfile::tempdir_in(directory)
            .with_context(|| format!("making a directory in {}", directory.display()))?;
        let [below, above] = ["device", "mounted"].map(|name| places.path().join(name));
        for place in [&below, &above] {
            std::fs::create_dir(place)?;
        }
        let is_held = Arc::new(AtomicBool::new(false));
        let interrupts = Interrupts::before_all()?;
        let session = Session::start(&below, bytes, rates, &is_held)
            .context("mounting a file system in user space, which takes root and /dev/fuse")?;
        let looped = Looped::on(&below.join(FILE))?;
        // All is written now, and nothing of it in the background while something is measured.
        let at_once = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        perform("mkfs.ext4", [OsStr::new("-q"), "-E".as_ref(), at_once.as_ref(), looped.as_ref()])?;
        let mounted = Mounted::at(&looped, above)?;
        Ok(Self {
            is_held,
            mounted,
            _looped: looped,
            _session: session,
            _interrupts: interrupts,
            _places: places,
        })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.mounted.0
    }

    /// Holds it to its rates from now on, or lets it go.
    pub fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Relaxed);
    }
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
            perform("chrt", ["--fifo", "--pid", PRIORITY, &thread])?;
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
            let (disk, thread) = Disk::new(bytes, rates, is_held)?;
            let mut config = Config::default();
            config.mount_options = vec![MountOption::FSName("bindery-medium".into())];
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

/// The kernel's threads that end the requests of a loop device, one a processor, before all others: those
/// of a disk end in its interrupts. They are bound to their processors, and would wait there for the end of
/// a time slice while another is idle.
#[derive(Debug)]
struct Interrupts(Vec<String>);

impl Interrupts {
    fn before_all() -> Result<Self> {
        let mut threads = Self(Vec::new());
        for process in std::fs::read_dir("/proc")? {
            let place = process?.path();
            // Others end meanwhile.
            let name = std::fs::read_to_string(place.join("comm")).unwrap_or_default();
            if let Some(pid) = place.file_name().filter(|_| name.starts_with("ksoftirqd/")) {
                let pid = pid.to_string_lossy().into_owned();
                perform("chrt", ["--fifo", "--pid", PRIORITY, &pid])?;
                threads.0.push(pid);
            }
        }
        Ok(threads)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for pid in &self.0 {
            complain("ksoftirqd's priority", perform("chrt", ["--other", "--pid", "0", pid]));
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

/// The file system on it.
#[derive(Debug)]
struct Mounted(PathBuf);

impl Mounted {
    fn at(device: &Looped, place: PathBuf) -> Result<Self> {
        perform("mount", ["-t".as_ref(), "ext4".as_ref(), device.as_ref(), place.as_os_str()])?;
        Ok(Self(place))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        complain(&self.0.display().to_string(), perform("umount", [self.0.as_os_str()]));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
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

    fn mounts() -> usize {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().filter(|line| line.contains("bindery-medium")).count()
    }

    #[test]
    fn a_held_medium_takes_its_time_and_leaves_nothing_behind() {
        if let Some(what) = lacks() {
            return bindery_testkit::skipped!("a medium cannot be made: {what} is missing");
        }
        let (place, before) = (tempfile::tempdir().unwrap(), mounts());
        let medium = Medium::create(place.path(), 64 << 20, RATES).unwrap();
        assert_eq!(mounts(), before + 1);
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
        assert_eq!(mounts(), before);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
