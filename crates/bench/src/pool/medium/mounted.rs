//! The played disk's file system.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::perform;

/// How long a file system may be busy with processes that have ended: the kernel puts files of a killed
/// process's io_uring some time after the process was reaped.
const BUSY_TIME_MAX: Duration = Duration::from_secs(20);

/// An ext4 that is mounted. Unmounted when dropped.
#[derive(Debug)]
pub(super) struct Mounted(PathBuf);

impl Mounted {
    pub(super) fn at(device: &OsStr, place: PathBuf) -> Result<Self> {
        perform("mount", ["-t".as_ref(), "ext4".as_ref(), device, place.as_os_str()])?;
        Ok(Self(place))
    }

    pub(super) fn place(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.0) {
            let place = self.0.display();
            eprintln!(
                "{place} is left: {error}; end who uses it (fuser -vm {place}), and unmount it"
            );
        }
    }
}

/// Unmounts, once nobody uses it any more.
pub(super) fn unmount(place: &Path) -> rustix::io::Result<()> {
    let began = Instant::now();
    loop {
        match rustix::mount::unmount(place, UnmountFlags::empty()) {
            Err(Errno::BUSY) if began.elapsed() < BUSY_TIME_MAX => {
                thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
}
