//! Records of guests that are paused for a checkpoint: a daemon that is killed in a pause leaves its guest paused, and
//! the next one lets it run.
//!
//! A record is a file of the daemon's own, `bindery.pauses/PID` beside its `bindery.sock`, there while a guest that ran
//! is captured. It names the guest's monitor and the time at which its process began, since numbers come again.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bindery_sys::process::effective_user;
use bindery_vmm::{Qemu, QemuSettings, Vmm as _, VmmError};
use serde::{Deserialize, Serialize};

use crate::endpoint::EndpointError;

/// Extension of the directory, in place of that of the daemon's socket.
const EXTENSION: &str = "pauses";

/// Records of one daemon and those before it.
#[derive(Debug)]
pub(crate) struct Pauses {
    directory: PathBuf,
    /// Processes that this daemon captures now.
    own: Mutex<BTreeSet<i32>>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    monitor: PathBuf,
    began: u64,
}

/// Record of a guest, removed when this is dropped.
pub(crate) struct Pause<'p> {
    pauses: &'p Pauses,
    pid: i32,
}

impl Pauses {
    /// Makes the directory of the daemon that listens at `socket`, and removes records of processes that are gone.
    ///
    /// # Errors
    /// [`EndpointError::UnsafeDirectory`] if something of another user's is in its place; [`EndpointError::Io`].
    pub(crate) fn prepare(socket: &Path) -> Result<Self, EndpointError> {
        let directory = socket.with_extension(EXTENSION);
        let failed = |action| {
            let path = directory.clone();
            move |source| EndpointError::Io { action, path, source }
        };
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("make the directory")(error));
            }
            _ => {}
        }
        let found = fs::symlink_metadata(&directory).map_err(failed("look at"))?;
        if !found.is_dir() || found.uid() != effective_user() {
            let reason = format!("{} is no directory of this daemon's user", directory.display());
            let directory = directory.parent().unwrap_or(&directory).into();
            return Err(EndpointError::UnsafeDirectory { directory, reason });
        }
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&directory, private).map_err(failed("guard"))?;
        let pauses = Self { directory, own: Mutex::default() };
        pauses.sweep();
        Ok(pauses)
    }

    fn own(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        // Each change is one insertion or removal: a panic elsewhere leaves the set whole.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, pid: i32) -> PathBuf {
        self.directory.join(pid.to_string())
    }

    fn sweep(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if pid.is_some_and(|pid| began(pid).is_none()) {
                remove(&entry.path());
            }
        }
    }

    /// Records that the process `pid` is about to be paused. Without a record the checkpoint is made all the same.
    pub(crate) fn begin(&self, pid: i32, monitor: &Path) -> Pause<'_> {
        self.own().insert(pid);
        let written = began(pid).map(|began| {
            let record = Record { monitor: monitor.into(), began };
            let bytes = serde_json::to_vec(&record).map_err(io::Error::other)?;
            fs::write(self.path(pid), bytes)
        });
        if let Some(Err(error)) = written {
            tracing::warn!(
                pid,
                "if this daemon is killed in a pause, the guest stays paused: cannot write {}: {error}",
                self.path(pid).display()
            );
        }
        Pause { pauses: self, pid }
    }

    /// Lets the guest of a process run that an earlier daemon left paused.
    pub(crate) fn let_run(&self, pid: i32) {
        if self.own().contains(&pid) {
            return;
        }
        let Some(record) = self.take(pid) else { return };
        match resume(&record.monitor, pid) {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(pid, "a guest runs on that a daemon left paused in a checkpoint")
            }
            Err(error) => tracing::error!(
                pid,
                "a guest may be paused since a daemon was killed in its checkpoint, and `cont` at its monitor lets \
                 it run: {error}"
            ),
        }
    }

    /// Takes the record of a process away. Returns it, if it is about this process and no earlier one.
    fn take(&self, pid: i32) -> Option<Record> {
        let path = self.path(pid);
        let bytes = fs::read(&path).ok()?;
        remove(&path);
        let record: Record = serde_json::from_slice(&bytes).ok()?;
        (Some(record.began) == began(pid)).then_some(record)
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        remove(&self.pauses.path(self.pid));
        self.pauses.own().remove(&self.pid);
    }
}

/// Returns true if the guest was paused.
fn resume(monitor: &Path, pid: i32) -> Result<bool, VmmError> {
    let settings = QemuSettings { pid: Some(pid), ..QemuSettings::default() };
    let mut qemu = Qemu::connect(monitor, settings)?;
    if qemu.describe()?.is_running {
        return Ok(false);
    }
    qemu.resume().map(|_| true)
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
        _ => {}
    }
}

/// Returns the time at which a process began, in the kernel's ticks; `None` if it is gone.
pub(super) fn began(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may have any letters, from the third field on: this is the 22nd.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_one_process_and_taken_once() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("b.sock");
        let pid = std::process::id().cast_signed();
        let pauses = Pauses::prepare(&socket).unwrap();
        drop(pauses.begin(pid, Path::new("/m")));
        assert_eq!(pauses.take(pid), None);
        // Killed in the pause.
        std::mem::forget(pauses.begin(pid, Path::new("/m")));
        pauses.let_run(pid);
        fs::write(pauses.path(i32::MAX), "{}").unwrap();
        let next = Pauses::prepare(&socket).unwrap();
        assert!(!next.path(i32::MAX).exists(), "its process is gone");
        assert_eq!(next.take(pid).map(|record| record.monitor), Some("/m".into()));
        assert_eq!(next.take(pid), None);
        let earlier = Record { monitor: "/m".into(), began: began(pid).unwrap() - 1 };
        fs::write(next.path(pid), serde_json::to_vec(&earlier).unwrap()).unwrap();
        assert_eq!(next.take(pid), None);
    }
}
