//! The file that QEMU writes device state to.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bindery_sys::memfd;

use crate::VmmError;

/// Interval between looks for a file that a command of QEMU's writes.
const WRITER_POLL: Duration = Duration::from_millis(1);

/// A file for one stream.
pub(super) enum StateFile {
    /// Memory that QEMU is passed a descriptor of.
    Memory(File),
    /// A path that QEMU opens. Dropping it removes the file.
    Path(TemporaryPath),
}

/// A path that nothing is at, until QEMU makes it.
pub(super) struct TemporaryPath(pub(super) PathBuf);

impl TemporaryPath {
    /// Returns the path of the file while it is being written by a command that QEMU runs.
    pub(super) fn unfinished(&self) -> PathBuf {
        self.0.with_extension("unfinished")
    }

    /// Returns the path of the file once that command has failed to write all of it.
    pub(super) fn failed(&self) -> PathBuf {
        self.0.with_extension("failed")
    }

    /// Waits until the command has written the file. QEMU itself does not.
    pub(super) fn wait_written(&self, limit: Duration) -> Result<(), VmmError> {
        let begun = Instant::now();
        while !self.0.exists() {
            if self.failed().exists() {
                let words = format!("{} could not be written: is there room?", self.0.display());
                return Err(VmmError::Save { words });
            }
            if begun.elapsed() > limit {
                return Err(VmmError::TimedOut { what: "writing device state", limit });
            }
            thread::sleep(WRITER_POLL);
        }
        Ok(())
    }
}

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        for path in [&self.0, &self.unfinished(), &self.failed()] {
            // There is none if QEMU failed to make it.
            if let Err(error) = fs::remove_file(path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!("{} could not be removed: {error}", path.display());
            }
        }
    }
}

impl StateFile {
    /// Makes memory, or chooses a path in `directory`.
    pub(super) fn new(directory: Option<&Path>) -> Result<Self, VmmError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(directory) = directory else {
            let memory = memfd::create_growing("bindery-device-state");
            return memory
                .map(Self::Memory)
                .map_err(VmmError::io("making a memfd for device state"));
        };
        // A counter: orders nothing.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bindery-state-{}-{number}", std::process::id());
        Ok(Self::Path(TemporaryPath(directory.join(name))))
    }

    /// Returns a descriptor for QEMU. It can be written only: QEMU takes no other for output.
    pub(super) fn writer(memory: &File) -> Result<OwnedFd, VmmError> {
        let writer = memfd::reopen_write_only(memory).map(OwnedFd::from);
        writer.map_err(VmmError::io("opening a memfd for QEMU"))
    }

    /// Reads what QEMU wrote.
    pub(super) fn take(self, bytes_max: u64) -> Result<Vec<u8>, VmmError> {
        let (mut file, _path) = match self {
            Self::Memory(file) => (file, None),
            Self::Path(path) => {
                let file = File::open(&path.0);
                let doing = format!("opening {}", path.0.display());
                (file.map_err(VmmError::io(doing))?, Some(path))
            }
        };
        let size = file.metadata().map_err(VmmError::io("looking at device state"))?.len();
        if size > bytes_max {
            let words = format!(
                "it has {size} bytes, more than the {bytes_max} allowed: guest memory may be among them"
            );
            return Err(VmmError::Save { words });
        }
        let mut bytes = Vec::with_capacity(size as usize);
        file.read_to_end(&mut bytes).map_err(VmmError::io("reading device state"))?;
        Ok(bytes)
    }
}
