//! What managed memory was mapped from, and giving it back there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use bindery_sys::memfd;
use bindery_units::{HostAddress, PageRange};

use crate::wire::control::Region;
use crate::{ReleaseError, Space};

/// How long, and how often, giving memory back is tried while I/O into it is under way.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

impl Space {
    /// [`release_range`](Self::release_range), for callers that can wait: memory that goes back to a
    /// file cannot while I/O into it is under way, so it is tried for up to a second.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn release_when_idle(
        &self,
        address: HostAddress,
        bytes: usize,
    ) -> Result<Vec<PageRange>, ReleaseError> {
        let begun = Instant::now();
        loop {
            match self.release_range(address, bytes) {
                Err(ReleaseError::Pinned) if begun.elapsed() < PATIENCE => thread::sleep(PAUSE),
                result => return result,
            }
        }
    }

    /// The regions that were mapped from `file` when they came under management, each with where in
    /// the file it begins, in bytes. The file itself has none of their content until they are
    /// [released](Self::release_range).
    ///
    /// # Errors
    /// As fstat(2).
    pub fn regions_of_file(&self, file: BorrowedFd<'_>) -> io::Result<Vec<(Region, u64)>> {
        let asked = memfd::identity(file)?;
        let mut found = Vec::new();
        for region in self.core.regions.read().iter() {
            let Some(file) = &region.file else { continue };
            if memfd::identity(file.as_fd())? == asked {
                found.push((region.announced, region.file_offset_bytes));
            }
        }
        Ok(found)
    }
}
