//! Which physical pages are behind an address, from `/proc/PID/pagemap`
//! (`Documentation/admin-guide/mm/pagemap.rst`).
//!
//! Two domains share nothing exactly when no frame is behind pages of both.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bindery_units::PAGE_BYTES;

const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Why the frames cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The process has ended, or is not ours to look at.
    #[error("cannot read the page map of process {pid}: {source}")]
    Unreadable {
        /// Whose it is.
        pid: u32,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The kernel hides frame numbers from those without `CAP_SYS_ADMIN`.
    #[error("the kernel hides physical page numbers; run as root (CAP_SYS_ADMIN)")]
    Hidden,
}

/// The physical page behind each of `pages` pages from `address` on; `None` where nothing is
/// present. The answer is as old as the call: pages move.
///
/// # Errors
/// [`FrameError`].
pub fn physical_frames(
    pid: u32,
    address: u64,
    pages: usize,
) -> Result<Vec<Option<u64>>, FrameError> {
    let unreadable = |source| FrameError::Unreadable { pid, source };
    let file = File::open(format!("/proc/{pid}/pagemap")).map_err(unreadable)?;
    let mut bytes = vec![0; pages * 8];
    let first = address / PAGE_BYTES as u64;
    file.read_exact_at(&mut bytes, first * 8).map_err(unreadable)?;
    bytes
        .chunks_exact(8)
        .map(|entry| {
            let entry = entry.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            match (entry & PRESENT != 0, entry & FRAME) {
                (false, _) => Ok(None),
                // Frame 0 is the firmware's on a PC and never given out: this is a refusal.
                (true, 0) => Err(FrameError::Hidden),
                (true, frame) => Ok(Some(frame)),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skipped;

    #[test]
    fn touched_pages_have_frames_of_their_own() {
        let pages = 8;
        let block = vec![1_u8; (pages + 1) * PAGE_BYTES];
        let address = (block.as_ptr() as u64).next_multiple_of(PAGE_BYTES as u64);
        let found = match physical_frames(std::process::id(), address, pages) {
            Err(FrameError::Hidden) => return skipped!("{}", FrameError::Hidden),
            found => found.unwrap(),
        };
        let mut frames: Vec<u64> = found.into_iter().flatten().collect();
        frames.sort_unstable();
        frames.dedup();
        assert_eq!(frames.len(), pages);
        assert_eq!(block[0], 1);
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        let gone = physical_frames(u32::MAX, 0, 1);
        assert!(matches!(gone, Err(FrameError::Unreadable { .. })));
    }
}
