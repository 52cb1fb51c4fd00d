//! What managed memory was mapped from.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use bindery_sys::memfd;

use crate::Space;
use crate::wire::control::Region;

impl Space {
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
